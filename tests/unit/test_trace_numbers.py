"""Traces by hand: units of exports, phases by name, what covers a window, who owns it, and which job ranks make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import InputError
from paceline.measurements.run import Span
from paceline.measurements.trace import intervals
from paceline.measurements.trace.chrome import spans_from_events, to_chrome
from paceline.measurements.trace.horovod import to_horovod
from paceline.measurements.trace.intervals import Cover, Gathering
from paceline.measurements.trace.job import _exchanges, _pieces, _repeated, join_traces, rank_in_name
from paceline.measurements.trace.kineto import phase_of, size_of, to_kineto
from paceline.measurements.trace.rank_trace import RankTrace, StepShares, check_clock, gather_spans, shares_of

SPAN = Span(1, 3, "aggregate", "grad ALLREDUCE", 0.25, 0.5, 4096)


def test_exports_are_in_microseconds() -> None:
    (event,) = to_kineto([SPAN, replace(SPAN, rank=0)], rank=1)["traceEvents"]
    assert (event["ts"], event["dur"], event["pid"], event["cat"]) == (250_000.0, 500_000.0, 1, "cpu_op")
    (event,) = (one for one in to_chrome([SPAN])["traceEvents"] if one["ph"] == "X")
    assert (event["ts"], event["dur"], event["pid"], event["tid"]) == (250_000.0, 500_000.0, 1, 4)
    begin, end = to_horovod([SPAN, replace(SPAN, phase="update"), replace(SPAN, rank=0)], rank=1)[1:]
    assert (begin["ph"], begin["ts"], end["ph"], end["ts"]) == ("B", 250_000.0, "E", 750_000.0)


def test_events_without_exact_times_are_in_microseconds_too() -> None:
    (span,) = spans_from_events([{"ph": "X", "ts": 3e6, "dur": 5e5}, {"ph": "B", "ts": 1.0}])
    assert (span.rank, span.step, span.phase, span.start_s, span.seconds, span.size_bytes) == (
        0, 0, "other", 3.0, 0.5, None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("aten::conv2d", "forward"), ("c10d::broadcast_", "aggregate"), ("ncclDevKernel_AllReduce_Sum", "aggregate"),
        ("enumerate(DataLoader)#_next", "io"), ("Memcpy HtoD (Pinned)", "h2d"), ("Memcpy DtoH", "forward"),
        ("Optimizer.zero_grad#SGD", "update"), ("aten::_foreach_add_", "update"), ("ConvolutionBackward0", "backward"),
        ("torch::autograd::AccumulateGrad", "backward"),
    ],
)  # fmt: skip
def test_the_phase_of_an_operator(name: str, phase: str) -> None:
    assert phase_of(name) == phase


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({"size_bytes": 7, "In msg nelems": 10}, 7), ({"In msg nelems": 10, "dtype": "Half"}, 20),
        ({"In msg nelems": 10, "dtype": "Double"}, 80), ({"In msg nelems": 10}, 40), ({"In msg nelems": "10"}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_the_size_of_an_exchange(given: dict[str, Any], size: int | None) -> None:
    assert size_of(given) == size


def cover(*parts: tuple[float, float]) -> Cover:
    gathering = Gathering()
    for start, end in parts:
        gathering.add(start, end)
    return gathering.cover()


def test_a_union_of_intervals_joins_what_touches() -> None:
    found = cover((5.0, 6.0), (0.0, 2.0), (2.0, 3.0), (1.0, 1.5), (5.5, 8.0))
    assert (found.starts.tolist(), found.ends.tolist(), found.seconds) == ([0.0, 5.0], [3.0, 8.0], 6.0)
    inside = found.within(2.5, 5.0)
    assert (inside.starts.tolist(), inside.ends.tolist()) == ([2.5], [3.0])
    held = found.holds(np.array([-0.1, 0.0, 2.9, 3.0, 5.0, 7.9, 8.0]))
    assert held.tolist() == [False, True, True, False, True, True, False]
    assert cover().holds(np.array([0.0])).tolist() == [False]


def test_a_union_of_more_intervals_than_are_kept_closes_the_shorter_half_of_the_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intervals, "MOST", 3)
    gathering = Gathering()
    starts = np.array([0.0, 2.0, 5.0, 9.0])  # gaps of 1, 2 and 3
    gathering.extend(starts, starts + 1)
    assert (gathering.cover().starts.tolist(), gathering.closed_s) == ([0.0, 9.0], 3.0)


COVERS = {
    "forward": cover((1.0, 3.0)),
    "aggregate": cover((2.0, 6.0), (9.5, 12.0)),
    "io": cover((0.0, 1.5)),
    "gc": cover((7.0, 7.5)),
}
TRACE = RankTrace("a", 0, None, {4: (0.0, 10.0), 5: (10.0, 20.0)}, COVERS)


@pytest.mark.parametrize(("device", "forward", "io"), [(False, 1.5, 1.5), (True, 2.0, 1.0)])
def test_a_step_is_divided_between_its_phases(device: bool, forward: float, io: float) -> None:
    (one,) = shares_of(replace(TRACE, on_device=device), [4])
    assert one.exposed == {"forward": forward, "aggregate": 3.5, "io": io, "gc": 0.5}
    assert (one.communication_s, one.exposed_s, one.overlap_s, one.compute_s) == (4.5, 3.5, 1.0, forward)
    assert one.idle_s == pytest.approx(10 - 2 - 1 - 3.5 - 0.5)
    assert [piece for piece in one.pieces if piece[0] == "aggregate"] == [("aggregate", 3, 6), ("aggregate", 9.5, 10)]


def test_spans_of_a_rank_make_its_steps_and_covers() -> None:
    spans = [
        Span(1, 0, "forward", "a", 1.0, 1.0), Span(1, 0, "mine", "all-reduce", 1.5, 2.0, 8),
        Span(1, 0, "mine", "b", 0.5, 0.1), Span(1, 1, "io", "c", 4.0, 1.0), Span(0, 0, "io", "c", 0.0, 1.0),
    ]  # fmt: skip
    first, second = gather_spans("x", spans, "made")
    assert (first.rank, second.rank) == (0, 1)
    assert second.steps == {0: (0.5, 3.5), 1: (4.0, 5.0)}
    assert {phase: one.seconds for phase, one in second.covers.items()} == pytest.approx(
        {"forward": 1.0, "aggregate": 2.0, "other": 0.1, "io": 1.0}
    )
    assert [(span.phase, span.name) for span in second.exchanges] == [("aggregate", "all-reduce")]


@pytest.mark.parametrize(
    ("second", "refused"),
    [
        ((1, 1.988, 2.988), True), ((1, 1.99, 2.99), False), ((1, 5.9, 6.9), False), ((1, 6.1, 7.1), True),
        ((2, 6.1, 7.1), False),
    ],
)  # fmt: skip
def test_a_clock_that_was_set_is_refused(second: tuple[int, float, float], refused: bool) -> None:
    # After a step from 1 to 2, of the usual 1 s: more than 1 ms and 1 % back, or more than 1 s and three steps ahead.
    number, *times = second
    steps = {0: (1.0, 2.0), number: (times[0], times[1])}
    if not refused:
        return check_clock("x", steps)
    with pytest.raises(InputError, match="clock jumps"):
        check_clock("x", steps)
    return None


def ranks(*numbers: int, world: int | None = None, steps: tuple[int, ...] = (4, 5)) -> list[RankTrace]:
    times = {step: (float(step), step + 1.0) for step in steps}
    return [replace(TRACE, rank=n, world=world, steps=times) for n in numbers]


def test_the_ranks_of_a_job_are_there_once_each() -> None:
    job = join_traces("chrome", [*ranks(1), *ranks(0, steps=(3, 4, 5, 6))])
    assert (job.ranks, job.steps, job.notes) == ((0, 1), (4, 5), ())
    assert job.starts == {0: 4.0, 1: 4.0}
    assert [(one.rank, one.step) for one in job.shares] == [(0, 4), (0, 5), (1, 4), (1, 5)]
    wrong = {
        "rank 1 has two traces": ranks(1, 0, 1),
        "jobs of 2 and 3 ranks": [*ranks(0, world=2), *ranks(1, world=3)],
        "rank 2 of a job of 2 ranks": ranks(0, 1, 2, world=2),
        "traces of 1 of 3 ranks are missing: 1": ranks(0, 2),
        "traces of 2 of 4 ranks are missing: 2, 3": ranks(0, 1, world=4),
        "have 1 steps in common": [*ranks(0), *ranks(1, steps=(5, 6))],
    }
    for words, traces in wrong.items():
        with pytest.raises(InputError, match=words):
            join_traces("chrome", traces)
    assert join_traces("chrome", ranks(0, 2), partial=True).notes == (
        "1 of 3 ranks are missing (1): a slow one among them would not be seen",
    )
    assert join_traces("chrome", [replace(one, closed_s=0.5 * one.rank) for one in ranks(0, 1)]).notes == (
        "gaps of 0.5 s in all were closed to bound memory",
    )


def test_exchanges_belong_to_the_step_that_they_start_in() -> None:
    at = (-1.0, 0.0, 9.9, 10.0, 19.0, 20.0)
    trace = replace(TRACE, exchanges=tuple(Span(9, 0, "aggregate", "e", start, 1.0) for start in reversed(at)))
    found = [(span.rank, span.step, round(span.start_s, 6)) for span in _exchanges(trace, 2, (4, 5))]
    assert found == [(2, 4, 0.0), (2, 4, 9.9), (2, 5, 0.0), (2, 5, 9.0)]
    later = [(span.step, span.start_s) for span in _exchanges(trace, 2, (5,))]
    assert later == [(5, 0.0), (5, 9.0)]


def test_pieces_of_a_step_start_with_it_and_exchanges_are_none_of_them() -> None:
    pieces = (("io", 10.0, 10.5), ("aggregate", 10.5, 11.0), ("forward", 11.0, 12.0))
    found = _pieces(StepShares(7, 4, 10.0, 2.0, {}, 0.5, pieces), 1, "chrome")
    assert [(span.rank, span.step, span.phase, span.start_s, span.seconds) for span in found] == [
        (1, 4, "io", 0.0, 0.5), (1, 4, "forward", 1.0, 1.0),
    ]  # fmt: skip


def test_a_timeline_without_steps_counts_repetitions_of_a_tensor() -> None:
    spans = [replace(SPAN, name=name, step=0) for name in ("a", "b", "a", "a")] + [replace(SPAN, name="a", step=9)]
    assert [(span.rank, span.name, span.step) for span in _repeated(spans, 5)] == [
        (5, "a", 0), (5, "b", 0), (5, "a", 1), (5, "a", 2), (5, "a", 9),
    ]  # fmt: skip


@pytest.mark.parametrize(("name", "rank"), [("rank3.json", 3), ("job12_rank_4.json", 4), ("trace.json", 9)])
def test_the_rank_in_a_name(name: str, rank: int) -> None:
    assert rank_in_name(Path(name), 9) == rank
