"""The traces of all ranks of a job: one file or many, checked together, with the steps that all ranks have."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

from paceline.errors import InputError, UnknownName
from paceline.measurements.run import PHASES, Span
from paceline.measurements.trace.chrome import checked_events, spans_from_events
from paceline.measurements.trace.formats import TRACE_READERS, checked_spans, format_of, read_trace
from paceline.measurements.trace.intervals import Gathering
from paceline.measurements.trace.profiled import scan_kineto
from paceline.measurements.trace.rank_trace import WAIT, RankTrace, StepShares, check_clock, gather_spans, shares_of
from paceline.measurements.trace.stream import EventStream

__all__ = ["TracedJob", "join_traces", "rank_in_name", "read_job", "traced_job"]

IN_NAME = re.compile(r"rank[-_. ]?(\d{1,6})|\.(\d{1,6})\.et$", flags=re.I)
EVERY_RANK = (
    "export a trace on every rank: on_trace_ready=lambda prof: prof.export_chrome_trace(f'trace-rank{rank}.json'), and "
    "name all files; --partial imports the ranks that are there"
)
ARRANGEMENTS = {"other": ("alltoall",), "staged": ("send", "recv"), "sharded": ("allgather", "reducescatter")}
"""Words in the names of exchanges, by what ranks have that exchange so."""
SHARDED = 0.1
"""Share of gathers, or of waits inside operators, in the time of exchanges; metrics and optimisers gather less."""
MOST_PIECES = 2000
"""Stored spans of one rank, phase by phase, in one step; the shortest are left out beyond."""


@dataclass(frozen=True)
class TracedJob:
    """The ranks of one job and the steps that all of them recorded."""

    format: str
    traces: tuple[RankTrace, ...]
    steps: tuple[int, ...]
    shares: tuple[StepShares, ...]
    """Rank by rank, step by step."""
    notes: tuple[str, ...]

    @property
    def starts(self) -> dict[int, float]:
        """When the first common step of each rank began, on the rank's clock."""
        return {trace.rank: trace.steps[self.steps[0]][0] for trace in self.traces}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that were recorded."""
        return tuple(trace.rank for trace in self.traces)

    @property
    def arrangement(self) -> Literal["staged", "sharded", ""]:
        """Whether exchanges show that ranks are stages of a pipeline, or have shards of the layers."""
        took: dict[str, float] = defaultdict(float)
        for span in (span for trace in self.traces for span in trace.exchanges if span.phase == "aggregate"):
            name = re.sub(r"[^a-z]", "", span.name.lower())
            kind = next((kind for kind, words in ARRANGEMENTS.items() if any(word in name for word in words)), "other")
            took[kind] += span.seconds
        total = sum(took.values())
        if 2 * took["staged"] > total:
            return "staged"
        waited = sum(trace.covers[WAIT].seconds for trace in self.traces if WAIT in trace.covers)
        return "sharded" if max(waited, took["sharded"]) > SHARDED * total else ""

    def spans(self) -> tuple[Span, ...]:
        """The exposed phases of every step, and the exchanges, from the start of their step."""
        places = {rank: place for place, rank in enumerate(self.ranks)}
        pieces = [span for one in self.shares for span in _pieces(one, places[one.rank], self.format)]
        return (*pieces, *(span for trace in self.traces for span in _exchanges(trace, places[trace.rank], self.steps)))


def read_job(paths: Sequence[Path], *, format: str | None = None, partial: bool = False) -> TracedJob:  # noqa: A002
    """Read the traces of a job; whatever makes the comparison of its ranks impossible is an error."""
    if format is not None and format not in TRACE_READERS:
        raise UnknownName("trace format", format, TRACE_READERS)
    kinds = {format or format_of(path) for path in paths}
    if len(kinds) > 1:
        raise InputError(f"the files are traces of different tools: {', '.join(sorted(kinds))}",
                         hint="import the traces of one run at a time")  # fmt: skip
    (kind,) = kinds
    traces = [trace for number, path in enumerate(paths) for trace in _scan(path, kind, rank_in_name(path, number))]
    if not traces:
        raise InputError(f"{paths[0]} holds no spans", hint="record at least two steps")
    return join_traces(kind, traces, partial=partial)


def join_traces(kind: str, traces: Sequence[RankTrace], *, partial: bool = False) -> TracedJob:
    """The job of these ranks, unless some are missing or there twice."""
    ordered = sorted(traces, key=lambda trace: (trace.rank, min(trace.steps.values(), default=(0.0, 0.0))))
    notes = (*_check_ranks(ordered, partial=partial), *_closed(ordered))
    ranks = itertools.groupby(ordered, key=lambda trace: trace.rank)
    return traced_job(kind, [_joined(list(files)) for _, files in ranks], notes)


def _joined(traces: list[RankTrace]) -> RankTrace:
    """The files of one rank as one trace: cycles of a schedule, with other steps each, one after the other."""
    follow = all(max(end for _, end in one.steps.values()) <= min(begin for begin, _ in other.steps.values())
                 and max(one.steps) < min(other.steps) for one, other in pairwise(traces))  # fmt: skip
    if not follow:
        raise InputError(
            f"rank {traces[0].rank} has two traces: {', '.join(trace.path for trace in traces)}",
            hint="one file for each rank; start the profiler after `init_process_group`, so that each trace says its "
            "rank (distributedInfo); cycles of one schedule have different steps",
        )
    covers: dict[str, Gathering] = defaultdict(Gathering)
    for phase, cover in ((phase, cover) for trace in traces for phase, cover in trace.covers.items()):
        covers[phase].extend(cover.starts, cover.ends)
    return traces[0] if len(traces) == 1 else replace(
        traces[0],
        steps={step: times for trace in traces for step, times in trace.steps.items()},
        covers={phase: found.cover() for phase, found in covers.items()},
        exchanges=tuple(span for trace in traces for span in trace.exchanges),
        closed_s=sum(trace.closed_s for trace in traces),
    )  # fmt: skip


def rank_in_name(path: Path, fallback: int) -> int:
    """The rank that the name of a file tells."""
    named = IN_NAME.findall(path.name)
    return int("".join(named[-1])) if named else fallback


def traced_job(kind: str, traces: Sequence[RankTrace], notes: Sequence[str] = (), fewest: int = 2) -> TracedJob:
    """The job of these ranks, with the shares of all steps that they have in common."""
    steps = _common_steps(traces, fewest)
    for trace in traces:
        _check_times(trace, steps)
    shares = tuple(one for trace in traces for one in shares_of(trace, steps))
    return TracedJob(kind, tuple(traces), steps, shares, tuple(notes))


def _check_times(trace: RankTrace, steps: Sequence[int]) -> None:
    """Refuse steps without length, and steps in which nothing lies."""
    empty = next((step for step in steps if trace.steps[step][1] <= trace.steps[step][0]), None)
    if empty is not None:
        raise InputError(f"{trace.path}: step {empty} of rank {trace.rank} takes no time",
                         hint="record the duration of every operation")  # fmt: skip
    if not any(cover.within(*trace.steps[step]).starts.size for cover in trace.covers.values() for step in steps):
        raise InputError(
            f"{trace.path}: nothing that rank {trace.rank} did lies within its steps",
            hint="marks of steps and operators have to be of one clock and one run of the profiler: record them again",
        )


def _scan(path: Path, kind: str, rank: int) -> tuple[RankTrace, ...]:
    if kind == "kineto":
        return (scan_kineto(path, fallback_rank=rank),)
    if kind == "chrome":
        found = gather_spans(str(path), checked_spans(path, spans_from_events(checked_events(EventStream(path)))), kind)
    else:
        spans = read_trace(path, kind, fallback_rank=rank)
        placed = _repeated(spans, rank) if kind == "horovod" else spans
        found = gather_spans(str(path), placed, kind)
    for trace in found:
        _check_steps(trace)
    return tuple(_from_begin_to_begin(trace) for trace in found) if kind == "horovod" else found


def _from_begin_to_begin(trace: RankTrace) -> RankTrace:
    """A timeline has exchanges alone: a step lasts until the next one begins, and the last has no end."""
    ordered = sorted(trace.steps.items())
    if len(ordered) < 3:
        return trace
    return replace(trace, steps={step: (begin, after) for (step, (begin, _)), (_, (after, _)) in pairwise(ordered)})


def _repeated(spans: Iterable[Span], rank: int) -> Iterator[Span]:
    """Spans of a timeline without steps: a step is what lies between two exchanges of the same tensor."""
    seen: dict[str, int] = {}
    for span in spans:
        seen[span.name] = seen.get(span.name, -1) + 1
        yield replace(span, rank=rank, step=span.step or seen[span.name])


def _check_steps(trace: RankTrace) -> None:
    if len(trace.steps) < 2:
        raise InputError(
            f"{trace.path}: rank {trace.rank} has {len(trace.steps)} step",
            hint="record several steps: events need `args.step`, or "
            "ProfilerStep marks: torch.profiler.schedule(wait=1, warmup=1, active=5) and `prof.step()`",
        )
    if set(trace.covers) <= {"other"}:
        raise InputError(
            f"{trace.path}: no event of rank {trace.rank} belongs to a phase that we know",
            hint=f"events need `args.phase`, one of {', '.join(PHASES)}; what torch.profiler exports needs nothing",
        )
    check_clock(trace.path, trace.steps)


def _check_ranks(traces: Sequence[RankTrace], *, partial: bool) -> list[str]:
    """Notes on the ranks; ranks that are not there are an error."""
    ranks = {trace.rank for trace in traces}
    worlds = {trace.world for trace in traces if trace.world is not None}
    if len(worlds) > 1:
        raise InputError(f"the traces belong to jobs of {' and '.join(map(str, sorted(worlds)))} ranks",
                         hint="import the traces of one run at a time")  # fmt: skip
    world = max([*worlds, max(ranks) + 1])
    if worlds and max(ranks) >= min(worlds):
        raise InputError(f"rank {max(ranks)} of a job of {min(worlds)} ranks", hint="import the traces of one run")
    missing = world - len(ranks)
    if not missing:
        return []
    # The search is bounded, because a trace may state any number of ranks.
    first = itertools.islice((rank for rank in range(world) if rank not in ranks), 8)
    named = ", ".join(map(str, first)) + (" ..." if missing > 8 else "")
    if not partial:
        raise InputError(f"traces of {missing} of {world} ranks are missing: {named}", hint=EVERY_RANK)
    return [f"{missing} of {world} ranks are missing ({named}): a slow one among them would not be seen"]


def _closed(traces: Sequence[RankTrace]) -> list[str]:
    closed = max(trace.closed_s for trace in traces)
    return [f"gaps of {closed:.3g} s in all were closed to bound memory"] if closed else []


def _common_steps(traces: Sequence[RankTrace], fewest: int) -> tuple[int, ...]:
    common = sorted(set.intersection(*(set(trace.steps) for trace in traces)))
    if len(common) < fewest:
        hint = "profile the same steps on every rank: the same torch.profiler.schedule(...)"
        raise InputError(f"the {len(traces)} ranks have {len(common)} steps in common", hint=hint)
    return tuple(common)


def _pieces(one: StepShares, rank: int, source: str) -> list[Span]:
    """The exposed phases of a step as spans; exchanges are stored as they are."""
    pieces = [piece for piece in one.pieces if piece[0] != "aggregate"]
    longest = sorted(sorted(pieces, key=lambda piece: piece[1] - piece[2])[:MOST_PIECES], key=lambda piece: piece[1])
    return [Span(rank, one.step, phase, phase, begin - one.start_s, end - begin, None, source)
            for phase, begin, end in longest]  # fmt: skip


def _exchanges(trace: RankTrace, rank: int, steps: Sequence[int]) -> Iterator[Span]:
    bounds = [(*trace.steps[step], step) for step in steps]
    place = 0
    for span in sorted(trace.exchanges, key=lambda span: span.start_s):
        while place < len(bounds) and bounds[place][1] <= span.start_s:
            place += 1
        if place == len(bounds):
            return
        begin, _, step = bounds[place]
        if begin <= span.start_s:
            yield replace(span, rank=rank, step=step, start_s=span.start_s - begin)
