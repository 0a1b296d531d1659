"""The worker's side of a launch, with a framework that does nothing."""

from __future__ import annotations

import itertools
import json
import math
import resource
import statistics
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline import variables
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


class Clock:
    """Time that only steps take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.waits = 100.0, 0.0
        fake = SimpleNamespace(perf_counter=lambda: self.now, time=lambda: 12.5)
        monkeypatch.setattr(harness, "time", fake)


class Timed(Idle):
    """Steps of known seconds; work that was not waited for takes its time in `sync`."""

    versions = {"x": "1"}  # noqa: RUF012
    labels = ["made"]  # noqa: RUF012
    SECONDS = {"forward": 1.0, "compute": 3.0, "exchange": 4.0, "resident": 5.0}  # noqa: RUF012

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.marks, self.began = clock, 0, False

    def step(self, upto: str) -> None:
        super().step(upto)
        self.clock.now += 0.25
        self.clock.waits += self.SECONDS[upto] - 0.25

    def sync(self) -> None:
        self.clock.now += self.clock.waits
        self.clock.waits = 0.0

    def begin_timing(self) -> None:
        self.began = True

    def mark(self) -> dict[str, float]:
        self.marks += 1
        self.clock.now += 5.0
        return {"update": 2.0} if self.marks == 1 else {"update": 1.0, "seldom": 3.0}

    def trace(self, step: int) -> list[dict[str, int]]:
        self.clock.now += 5.0
        return [{"step": step}]

    def facts(self) -> dict[str, float]:
        return {"loss": 0.5}


WHOLE = {**JOB, "ranks": 1, "warmup": 10, "tolerance": 0.01, "phase_steps": 5, "steps": 10}


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that measures ends with its event file open; this one goes on."""
    opened = []

    class Kept(harness.Events):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            opened.append(self._file)

    monkeypatch.setattr(harness, "Events", Kept)
    yield
    for file in opened:
        file.close()


def events_of(tmp_path: Path, session: harness.Session, job: dict[str, object]) -> list[dict[str, Any]]:
    """What a launch of one rank writes."""
    harness._run(job, 0, session, ALONE, harness.Events(str(tmp_path / "events")))
    return [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]


def test_a_launch_writes_its_passes_timers_spans_and_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Timed(Clock(monkeypatch))
    found = events_of(tmp_path, session, {**WHOLE, "launch_budget": 1000.0})
    assert session.began
    assert [one["event"] for one in found] == ["phase", "facts", *5 * ["pass"], "facts", "spans", "facts"]
    passes = {one["name"]: one for one in found if one["event"] == "pass"}
    assert [(name, len(one["rows"])) for name, one in passes.items()] == [
        ("clean", 10), ("forward", 5), ("compute", 5), ("exchange", 5), ("resident", 5),
    ]  # fmt: skip
    assert {name: {seconds for _, seconds in one["rows"]} for name, one in passes.items()} == {
        "clean": {5.0}, "forward": {1.0}, "compute": {3.0}, "exchange": {4.0}, "resident": {5.0}
    }  # fmt: skip
    # Rows begin when their step does; one step before each block is not counted.
    assert [start for start, _ in passes["clean"]["rows"][:3]] == [5.0, 10.0, 15.0]
    assert (passes["clean"]["warmup"], len(passes["clean"]["warmup_rows"]), passes["forward"]["warmup"]) == (10, 10, 0)
    assert found[-3]["timers"] == {"seldom": 3.0 * 4 / 5, "update": (2.0 + 4 * 1.0) / 5}
    assert found[-2]["spans"] == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert found[-1]["facts"]["loss"] == 0.5
    assert found[-1]["facts"]["peak_memory_bytes"] % 1024 == 0
    assert found[-1]["facts"]["peak_memory_bytes"] == pytest.approx(
        1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, rel=0.01
    )


def test_a_launch_keeps_its_budget_with_what_it_does_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for budget in (150.0, 200.0, 300.0):
        clock = Clock(monkeypatch)
        (tmp_path / str(budget)).mkdir()
        events_of(
            tmp_path / str(budget), Timed(clock), {**WHOLE, "steps": 100, "phase_steps": 20, "launch_budget": budget}
        )
        assert 0.5 * budget < clock.now - 100.0 <= 1.1 * budget, budget


def test_steps_are_counted_by_the_last_of_the_warm_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the first, which are slow: a launch would take a fraction of the steps that fit."""

    class Slow(Timed):
        def step(self, upto: str) -> None:
            super().step(upto)
            self.clock.waits += 45.0 if len(self.asked) <= 5 else 0.0

    found = events_of(
        tmp_path, Slow(Clock(monkeypatch)), {**WHOLE, "launch_budget": 2000.0, "phases": False, "steps": 60}
    )
    assert [len(one["rows"]) for one in found if one["event"] == "pass"] == [60]


class Ranks:
    """A channel whose other ranks say something else."""

    def __init__(self, *others: list[bool]) -> None:
        self.others, self.barriers = others, 0

    def barrier(self) -> None:
        self.barriers += 1

    def agree(self, value: Any) -> Any:
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


def test_warm_up_ends_when_every_rank_is_stable_or_any_rank_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"warmup": 10, "tolerance": 0.01, "launch_budget": 1000.0}
    for others, steps, limited in (
        ([[True, False]], 10, False),
        ([[True, False], [False, False]], 100, True),  # half of the budget
        ([[True, False], [False, True]], 10, True),
    ):
        channel = Ranks(*others)
        rows, late = harness._warm_up(job, Timed(Clock(monkeypatch)), channel, "resident")  # type: ignore[arg-type]
        assert (len(rows) // 10 * 10, late) == (steps, limited)


def test_ranks_begin_every_block_together() -> None:
    channel = Ranks()
    harness._alternate(JOB, Idle(), channel, (40, 15), NEVER)  # type: ignore[arg-type]
    assert channel.barriers == 3 * 4 + 1


def test_events_are_there_when_the_process_is_killed_the_moment_after(tmp_path: Path) -> None:
    events = harness.Events(str(tmp_path / "events"))
    events.write("phase", phase="setup")
    assert json.loads((tmp_path / "events").read_text()) == {"event": "phase", "phase": "setup"}
    events.write("done")
    assert (tmp_path / "events").read_text().splitlines()[1:] == ['{"event": "done"}']


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("shapes do not match"), False),
    ],
)
def test_a_rank_that_is_out_of_memory_ends_with_a_code_of_its_own(
    error: BaseException, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").write_text(json.dumps({"ranks": 1}))
    for name, value in ((variables.JOB, "job"), (variables.EVENTS, "events")):
        monkeypatch.setenv(name, str(tmp_path / value))
    monkeypatch.setenv(variables.RANK, "0")
    monkeypatch.setattr(harness, "_die_with_launcher", lambda: None)
    monkeypatch.setattr(harness, "join_job", lambda rank, ranks: ALONE)
    monkeypatch.setattr(harness, "faulthandler", SimpleNamespace(register=lambda *_, **__: None))

    class Ended(Exception):
        pass

    def end(code: int) -> None:
        raise Ended(code)

    def fails(job: object, rank: int) -> harness.Session:
        raise error

    monkeypatch.setattr(harness.os, "_exit", end)
    with pytest.raises(Ended) as ended:
        harness.main(fails)
    assert ended.value.args == (harness.OUT_OF_MEMORY_EXIT if expected else 1,)
    last = json.loads((tmp_path / "events").read_text().splitlines()[-1])
    assert (last["event"], last["kind"], last["message"]) == ("error", type(error).__name__, str(error))


def test_a_launch_that_becomes_slower_leaves_time_for_what_follows_its_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slower(Timed):
        def step(self, upto: str) -> None:
            super().step(upto)
            self.clock.waits += 5.0 * self.began

    clock = Clock(monkeypatch)
    job = {**WHOLE, "steps": 100, "phase_steps": 20, "launch_budget": 1200.0}
    events_of(tmp_path, Slower(clock), job)
    assert clock.now - 100.0 == 50.0 + 2 * 348.0 + 23 * 5.0  # a third turn of 348 s would end at 1209


def test_a_launch_ends_by_its_longest_turn_not_by_its_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    class Once(Idle):
        def step(self, upto: str) -> None:
            super().step(upto)
            clock.now += 10.0 if len(self.asked) < 10 else 1.0

    # Turns of 110 s (29 steps, 9 of them slow), then of 29 s; another one of 110 s might follow each.
    for end, turns in ((249.0, 3), (248.0, 2)):
        clock.now = 0.0
        clean, _ = harness._alternate(JOB, Once(), ALONE, (40, 15), end)
        assert len(clean) == 10 * turns, end
