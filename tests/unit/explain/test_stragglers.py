"""What counts as a straggler, at its thresholds: 3 % of a step, 70 % of the steps, 1.5 times the usual step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline.explain.cases.stragglers import find_stragglers
from paceline.measurements.summary import Interval

STEPS = 10
Times = dict[int, list[list[float]]]


class Evidence(SimpleNamespace):
    """Seconds of each rank, launch and step of the pass without exchange, and of its forward pass."""

    __hash__ = object.__hash__

    def rank_median(self, name: str) -> dict[int, float]:
        found = {}
        for rank, launches in self.rank_times[name].items():
            values = sorted(second for steps in launches.values() for second in steps)
            found[rank] = values[len(values) // 2]
        return found

    def host_of(self, rank: int) -> str:
        return f"node{rank}"


def evidence(compute: Times, *, step: float = 1.0, forward: Times | None = None) -> Any:
    def by_launch(times: Times) -> dict[int, dict[str, list[float]]]:
        return {rank: {f"run{n}": steps for n, steps in enumerate(launches)} for rank, launches in times.items()}

    halves = {rank: [[value / 2 for value in steps] for steps in launches] for rank, launches in compute.items()}
    return Evidence(
        run=SimpleNamespace(ranks=len(compute)),
        result=SimpleNamespace(step_s=Interval(step, step, step)),
        rank_times={"compute": by_launch(compute), "forward": by_launch(forward or halves)},
    )


def steady(seconds: float, launches: int = 4) -> list[list[float]]:
    return [[seconds] * STEPS for _ in range(launches)]


@pytest.mark.parametrize(("slower", "found"), [(0.029, 0), (0.031, 1)])
def test_a_rank_counts_from_three_percent_of_the_step(slower: float, found: int) -> None:
    assert len(find_stragglers(evidence({0: steady(1.0), 1: steady(1.0), 2: steady(1.0 + slower)}))) == found
    longer = evidence({0: steady(1.0), 1: steady(1.0), 2: steady(1.0 + 2 * slower)}, step=2.0)
    assert len(find_stragglers(longer)) == found


def test_a_straggler_costs_what_it_is_slower_than_the_slowest_other() -> None:
    (one,) = find_stragglers(evidence({0: steady(1.0), 1: steady(1.1), 2: steady(1.4)}, step=2.0))
    assert (one.rank, one.host, one.kind, one.share_slowest) == (2, "node2", "persistent", 1.0)
    assert one.cost_s.value == pytest.approx(0.3)
    assert one.cost_per_day_s == pytest.approx(86400 * 0.3 / 2.0)
    assert one.slower == pytest.approx(1.4 / 1.05)


@pytest.mark.parametrize(("ahead", "kind"), [(7, None), (8, "persistent")])
def test_a_persistent_straggler_is_the_slowest_in_most_steps(ahead: int, kind: str | None) -> None:
    mine = [[1.2] * ahead + [0.9] * (STEPS - ahead)] * 4
    found = find_stragglers(evidence({0: steady(1.0), 1: mine, 2: steady(1.0)}))
    assert [one.kind for one in found] == ([kind] if kind else [])


@pytest.mark.parametrize(("outlier", "found"), [(1.49, []), (1.51, ["transient"])])
def test_a_transient_straggler_has_steps_of_half_as_much_again(outlier: float, found: list[str]) -> None:
    mine = [[1.0] * 8 + [outlier] * 2] * 4
    stragglers = find_stragglers(evidence({0: steady(1.0), 1: mine}))
    assert [one.kind for one in stragglers] == found
    if stragglers:
        assert stragglers[0].cost_s.value == pytest.approx(0.2 * (outlier - 1))


@pytest.mark.parametrize(("outlier", "found"), [(1.29, 0), (1.31, 1)])
def test_slow_steps_count_from_three_percent_of_the_step(outlier: float, found: int) -> None:
    # One of ten steps: 2.9 and 3.1 % of every step, the same in every launch.
    mine = [[1.0] * 9 + [1.0 + 2 * (outlier - 1)]] * 4
    assert len(find_stragglers(evidence({0: steady(1.0), 1: mine}, step=2.0))) == found


def test_a_rank_that_is_always_a_little_slower_is_judged_by_its_slow_steps() -> None:
    mine = [[1.01] * 8 + [1.71] * 2] * 4
    (one,) = find_stragglers(evidence({0: steady(1.0), 1: mine, 2: steady(1.0)}))
    assert (one.kind, one.share_slowest, one.cost_s.value) == ("transient", 1.0, pytest.approx(0.2 * 0.7))


def test_what_is_noticeable_is_a_share_of_the_step() -> None:
    mine = [[1.04] * 8 + [1.9] * 2] * 4
    (one,) = find_stragglers(evidence({0: steady(1.0), 1: mine, 2: steady(1.0)}, step=2.0))
    assert (one.kind, one.cost_s.value) == ("transient", pytest.approx(0.2 * 0.86)), "4 % of a second, 2 % of the step"
    (short,) = find_stragglers(evidence({0: steady(1.0), 1: steady(1.0), 2: steady(1.02)}, step=0.5))
    assert (short.kind, short.cost_s.value) == ("persistent", pytest.approx(0.02))


def test_launches_that_disagree_name_nobody() -> None:
    mine = [*steady(1.2, 2), *steady(1.0, 1)]
    assert find_stragglers(evidence({0: steady(1.0, 3), 1: mine, 2: steady(1.0, 3)})) == ()


@pytest.mark.parametrize(("apart", "found"), [(0.0218, 1), (0.0262, 0)])
def test_the_interval_of_a_cost_begins_above_half_of_what_is_noticeable(apart: float, found: int) -> None:
    """Launches of 0.06 s and so much more or less: t of 3.18, so it begins at 0.020 or at 0.012 of 0.015 s."""
    mine = [[1.06 + apart * sign] * STEPS for sign in (-1, 1, -1, 1)]
    assert len(find_stragglers(evidence({0: steady(1.0), 1: mine}))) == found


def test_the_costliest_comes_first_and_the_phase_is_that_of_the_larger_loss() -> None:
    compute = {0: [[1.0, 1.0, 1.0, 1.0, 1.7]] * 4, 1: steady(1.0), 2: steady(1.5)}
    forward = {0: steady(0.4), 1: steady(0.4), 2: steady(0.8)}
    found = find_stragglers(evidence(compute, forward=forward))
    assert [(one.rank, one.phase) for one in found] == [(2, "forward"), (0, "backward")]
    backward = find_stragglers(evidence(compute, forward={0: steady(0.4), 1: steady(0.4), 2: steady(0.6)}))
    assert backward[0].phase == "backward"


def test_one_rank_has_nobody_to_wait_for_it() -> None:
    assert find_stragglers(evidence({0: steady(1.0)})) == ()
