"""Parts of the verdict on watched steps, by hand: periods, stalls, and the ends of a stretch."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.explain import levels, watched
from paceline.explain.watched import StepCause, _Series
from paceline.measurements.summary import Interval


def costs(count: int, *places: int, height: float = 1.0) -> np.ndarray:
    found = np.zeros(count)
    found[list(places)] = height
    return found


@pytest.mark.parametrize(
    ("count", "places", "found"),
    [
        (10, (0, 3, 6, 9), (3, 0)),
        (9, (0, 3, 6), (0, 0)),  # from the first to the last step there is no room for three periods
        (12, (1, 5, 9), (0, 0)),
        (13, (1, 5, 9), (4, 1)),
    ],
)
def test_a_period_needs_room_for_three(count: int, places: tuple[int, ...], found: tuple[int, int]) -> None:
    assert levels.period_of(np.arange(count), costs(count, *places)) == found
    shifted = levels.period_of(np.arange(count) + 60, costs(count, *places))
    assert shifted == found, "steps of an epoch that begins at a multiple"


def cause(since: int | None, every: int | None) -> StepCause:
    return StepCause("stalls", "io", None, Interval(0.1, 0.1, 0.1), since, None, every)


def test_what_is_not_in_regular_stalls_is_left() -> None:
    excess = np.ones((2, 8))
    kept = watched._without(excess, [cause(1, 3)], np.arange(8))
    assert kept.tolist() == [[1, 0, 1, 1, 0, 1, 1, 0]] * 2
    both = watched._without(excess, [cause(1, 3), cause(None, 2)], np.arange(8))
    assert both.tolist() == [[0, 0, 0, 1, 0, 1, 0, 0]] * 2
    assert watched._without(excess, [], np.arange(8)).tolist() == excess.tolist()


def series(io: np.ndarray, *, collected: np.ndarray | None = None) -> _Series:
    """Steps of one second of work beside what they read."""
    count = io.shape[1]
    phases = {name: np.zeros_like(io) for name in ("h2d", "forward", "backward", "aggregate", "update", "other")}
    phases["forward"] = np.ones_like(io)
    seconds = phases["forward"] + io
    return _Series(np.arange(count), seconds, {"io": io, **phases}, np.zeros(count) if collected is None else collected)


def test_a_stall_is_of_the_rank_that_has_nearly_all_of_it() -> None:
    excess = np.zeros((2, 10))
    excess[0, [0, 5]] = (0.9, 0.9)
    for other, rank in ((0.19, 0), (0.21, None)):
        excess[1, 3] = other
        found = watched._stall(series(excess), "io", excess, None)
        assert (found.rank, found.count, found.num_steps, found.since) == (rank, 3, 10, 0)
        assert found.share.value == pytest.approx((1.8 + other) / (10 + 1.8 + other))
    alone = watched._stall(series(excess[:1]), "io", excess[:1], None)
    assert alone.rank is None, "of one rank nobody is named"


def test_a_regular_stall_has_the_interval_of_its_heights() -> None:
    excess = costs(12, 0, 4, 8, height=0.5)[None, :]
    found = watched._stall(series(excess), "io", excess, 4)
    share = 0.5 / 4 / (13.5 / 12)
    assert (found.share.value, found.share.low, found.share.high) == pytest.approx((share, share, share))
    irregular = watched._stall(series(excess), "io", excess, None)
    assert irregular.share.value == pytest.approx(share)
    assert irregular.share.high - irregular.share.low > share / 2


def test_the_ends_of_a_stretch_are_named_inside_of_the_run() -> None:
    run = series(np.zeros((1, 30)))
    assert watched._ends(run, 0, 30) == (None, None)
    assert watched._ends(run, 0, 29) == (None, 28)
    assert watched._ends(run, 1, 30) == (1, None)
