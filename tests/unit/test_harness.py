"""The worker's side of a launch, with a framework that does nothing."""

from __future__ import annotations

import itertools
import math
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

from paceline.bench.frameworks import harness
from paceline.bench.frameworks.graph import InOut
from paceline.bench.frameworks.harness import settled, trend
from paceline.bench.frameworks.rendezvous import ControlChannel
from paceline.bench.verify import PROOF_NETWORKS
from paceline.spec.network import plain_network


class Idle(harness.Session):
    """Takes down which steps it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def step(self, upto: str) -> None:
        self.asked.append(upto)


JOB = {
    "passes": ["forward", "compute", "exchange", "resident"], "input": "resident", "phases": True, "phase_steps": 15,
    "steps": 40,
}  # fmt: skip
ALONE = ControlChannel(0, [])
NEVER = math.inf


def test_whole_and_partial_steps_take_turns_in_blocks() -> None:
    session = Idle()
    clean, split = harness._alternate(JOB, session, ALONE, (40, 15), NEVER)
    assert len(clean) == 40
    assert [len(split[name]) for name in JOB["passes"]] == [15, 15, 15, 20]
    blocks = [(name, len(list(group))) for name, group in itertools.groupby(session.asked)]
    # the first step of every block is not counted
    assert blocks == [*3 * [("resident", 11), ("forward", 6), ("compute", 6), ("exchange", 6)], ("resident", 11)]
    assert all(start >= 0 and seconds >= 0 for start, seconds in clean)
    assert [start for start, _ in clean] == sorted(start for start, _ in clean)


def test_the_last_pass_is_every_second_block_of_complete_steps() -> None:
    clean, split = harness._alternate(JOB, Idle(), ALONE, (40, 15), NEVER)
    assert split["resident"] == clean[10:20] + clean[30:40]


def test_a_pass_that_is_the_same_as_another_is_not_run_twice() -> None:
    session = Idle()
    session.same = {"resident": "exchange"}
    copied = {**JOB, "passes": [*JOB["passes"], "copied"], "input": "copied"}
    _, split = harness._alternate(copied, session, ALONE, (8, 15), NEVER)
    assert split["resident"] == split["exchange"]
    assert session.asked.count("exchange") == 18
    assert session.asked.count("resident") == 0
    assert session.asked.count("copied") == 8 + 4


def test_a_pass_that_is_the_same_as_the_complete_step_is_not_run_again() -> None:
    session = Idle()
    session.same = {"resident": "exchange"}
    clean, split = harness._alternate(JOB, session, ALONE, (8, 15), NEVER)
    assert split["resident"] == split["exchange"] == clean[2:4] + clean[6:8]
    assert session.asked.count("exchange") == 0


def test_without_phases_one_step_is_not_counted() -> None:
    session = Idle()
    clean, split = harness._alternate({**JOB, "phases": False}, session, ALONE, (9, 0), NEVER)
    assert (len(clean), split, session.asked) == (9, {}, 10 * ["resident"])


def test_a_launch_ends_with_the_turn_after_which_another_would_exceed_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = itertools.count()  # every look at the clock takes a second
    monkeypatch.setattr(harness, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    session = Idle()
    first, split = harness._alternate(JOB, session, ALONE, (40, 15), 0.0)
    assert len(first) == 10  # at least one turn
    assert split["resident"] == first[1::2]
    turn = 11 + 3 * 6 + 1
    for turns, end in ((1, 2 * turn - 1), (2, 2 * turn), (2, 3 * turn - 1), (3, 3 * turn)):
        clock = itertools.count()
        clean, split = harness._alternate(JOB, session, ALONE, (40, 15), float(end))
        assert (len(clean), len(split["compute"])) == (10 * turns, 5 * turns)


@pytest.mark.parametrize("phases", [True, False])
def test_a_launch_without_time_left_takes_five_complete_steps(phases: bool) -> None:
    clean, split = harness._alternate({**JOB, "phases": phases}, Idle(), ALONE, (5, 2 * phases), -math.inf)
    assert len(clean) == 5
    assert all(len(rows) >= 2 for rows in split.values())


@pytest.mark.parametrize(
    ("most", "expected"),
    [(1000, [40, 15]), (103, [40, 15]), (51.5, [20, 7]), (10, [5, 2]), (-3, [5, 2])],
)
def test_steps_fit_what_is_left_of_the_budget(most: float, expected: list[int]) -> None:
    # 40 complete steps, 15 of each of three partial passes and of the framework's timers, 3 traced ones
    assert harness._fitting(JOB, Idle(), most) == expected
    same = Idle()
    same.same = {"resident": "exchange"}
    assert harness._fitting(JOB, same, 88) == [40, 15]
    assert harness._fitting({**JOB, "phases": False}, Idle(), 20) == [20, 0]


@pytest.mark.parametrize(("count", "number"), [(40, 4), (7, 3), (5, 5), (2, 4)])
def test_steps_are_dealt_out_evenly(count: int, number: int) -> None:
    parts = harness._parts(count, number)
    assert (sum(parts), len(parts)) == (count, number)
    assert max(parts) - min(parts) <= 1


@pytest.mark.parametrize("name", sorted(PROOF_NETWORKS))
@pytest.mark.parametrize("channels_last", [True, False])
def test_a_layout_can_be_undone(name: str, channels_last: bool) -> None:
    network = plain_network(PROOF_NETWORKS[name])
    layout = InOut(network, channels_last=channels_last)
    for tensor in (item for layer in network["layers"] for item in layer["tensors"]):
        array = np.random.default_rng(1).standard_normal(tensor["shape"])
        assert (layout.plain(tensor["name"], layout.native(tensor["name"], array)) == array).all()


def test_warm_up_ends_when_two_windows_agree_within_the_tolerance() -> None:
    flat = [0.1, 0.1001, 0.0999] * 4
    assert not settled(flat[:9], least=3, tolerance=0.01)  # two windows of five
    assert settled(flat[:10], least=3, tolerance=0.01)
    assert not settled(flat[:10], least=11, tolerance=0.01)
    stairs = [0.102, 0.1021, 0.1019, 0.102, 0.102, 0.1, 0.1001, 0.0999, 0.1, 0.1]
    assert not settled(stairs, least=3, tolerance=0.01)
    assert not settled(stairs[::-1], least=3, tolerance=0.01)


def test_warm_up_goes_on_while_a_trend_is_visible_below_the_tolerance() -> None:
    falling = [0.1 * (1 - 0.0005 * step) for step in range(12)]
    assert trend(falling) == pytest.approx(-66 / (12 * 11 * 29 / 18) ** 0.5)
    assert not settled(falling, least=3, tolerance=0.01)
    assert not settled(falling[::-1], least=3, tolerance=0.01)
    assert settled([falling[place] for place in (3, 8, 0, 10, 5, 1, 11, 6, 2, 9, 4, 7)], least=3, tolerance=0.01)


def test_warm_up_goes_on_while_noise_could_hide_a_trend() -> None:
    noisy = [0.1 + 0.002 * math.sin(7 * step**2) for step in range(300)]
    ends = [count for count in range(10, 300, 5) if settled(noisy[:count], least=10, tolerance=0.01)]
    assert ends
    assert 40 <= ends[0] <= 120
    assert not any(settled(noisy[:count], least=10, tolerance=0.0005) for count in range(10, 300, 5))


def test_a_slow_start_of_twenty_percent_is_not_measured() -> None:
    """Over 30 steps: warm-up by the first agreement of two windows of five leaves 4 %."""
    steps = [1 + 0.2 * math.exp(-step / 30) + 0.01 * math.sin(5 * step**2) for step in range(400)]
    end = next(count for count in range(10, 400, 5) if settled(steps[:count], least=10, tolerance=0.01))
    left = statistics.fmean(steps[end : end + 100]) - 1
    assert left < 0.003


def test_warm_up_says_when_its_limit_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"warmup": 10, "tolerance": 0.01, "launch_budget": 1e9}
    session = Idle()
    clock = itertools.count()
    monkeypatch.setattr(harness, "time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    rows, limited = harness._warm_up(job, session, ControlChannel(0, []), "resident")
    assert (len(rows), limited) == (10, False)
    growing = (float(number) ** 2 for number in itertools.count())
    monkeypatch.setattr(harness, "time", SimpleNamespace(perf_counter=lambda: next(growing)))
    rows, limited = harness._warm_up(job, session, ControlChannel(0, []), "resident")
    assert (len(rows), limited) == (harness.MAX_WARMUP, True)
    rows, limited = harness._warm_up({**job, "launch_budget": 1.0}, session, ControlChannel(0, []), "resident")
    assert (len(rows), limited) == (10, True)
    # Half of the budget at most: the clock shows 144 after ten steps, 361 after fifteen.
    for budget, steps in ((200.0, 10), (300.0, 15)):
        growing = (float(number) ** 2 for number in itertools.count())
        rows, limited = harness._warm_up({**job, "launch_budget": budget}, session, ControlChannel(0, []), "resident")
        assert (len(rows), limited) == (steps, True)
