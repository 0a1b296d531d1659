"""The trace of one rank: what its phases cover, its steps, its exchanges; gathered in bounded memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

from paceline.errors import InputError
from paceline.measurements.run import PHASES, Span
from paceline.measurements.trace.intervals import Cover, Division, Gathering, divide

__all__ = ["ON_HOST", "WAIT", "RankTrace", "StepShares", "check_clock", "gather_spans", "phase_by_words", "shares_of"]

COMPUTE = ("update", "backward", "forward")
WAIT = "wait"
"""Time in which an operator of the host waits for an exchange: exposed, whatever encloses it."""
ON_HOST = (WAIT, "update", "backward", "io", "h2d", "forward", "aggregate")
"""Priority of phases that cover the same time: operators of the host lie inside annotations of update and input."""
ON_DEVICE = ("update", "backward", "forward", "aggregate", "h2d", "io")
"""Priority for kernels: compute of the device hides copies, and reading of the next batch by the host."""
WORDS = (
    ("aggregate", ("send", "recv", "all-", "all_", "allreduce", "scatter", "clip")),
    ("forward", ("forward",)),
    ("backward", ("backward",)),
    ("update", ("optimizer", "update")),
    ("io", ("dataloader", "data_loader")),
)
MOST_EXCHANGES = 100_000
"""Exchanges of a rank that are kept one by one."""
MOST_SPANS = 300_000
"""The same for all ranks of a file together; a large job keeps its first steps."""


@dataclass(frozen=True)
class RankTrace:
    """One rank of a trace; times are seconds on its own clock."""

    path: str
    rank: int
    world: int | None
    """Number of ranks of the job, if the trace states it."""
    steps: Mapping[int, tuple[float, float]]
    """Start and end by number of the step."""
    covers: Mapping[str, Cover]
    """The time that each phase covers, exchanges as `aggregate`."""
    exchanges: tuple[Span, ...] = ()
    source: str = "kineto"
    on_device: bool = False
    """Whether phases are kernels of a device, not operators of the host."""
    closed_s: float = 0.0
    """Length of short gaps that were closed to bound memory."""

    @property
    def order(self) -> tuple[str, ...]:
        """Priority of phases that cover the same time."""
        order = ON_DEVICE if self.on_device else ON_HOST
        return (*order, *sorted(set(self.covers) - set(order)))


@dataclass(frozen=True)
class StepShares:
    """The time of one step of one rank: exposed phases and idle time, which sum to the step."""

    rank: int
    step: int
    start_s: float
    seconds: float
    exposed: dict[str, float]
    """Seconds by phase; `aggregate` is exchange that nothing hides."""
    communication_s: float
    """All exchange, hidden and exposed."""
    pieces: tuple[tuple[str, float, float], ...]

    @property
    def compute_s(self) -> float:
        """Forward, backward and update."""
        return sum(self.exposed.get(phase, 0.0) for phase in COMPUTE)

    @property
    def exposed_s(self) -> float:
        """Exchange that nothing hides."""
        return self.exposed.get("aggregate", 0.0)

    @property
    def overlap_s(self) -> float:
        """Exchange while something else of the rank was busy."""
        return max(0.0, self.communication_s - self.exposed_s)

    @property
    def idle_s(self) -> float:
        """Time in which nothing was recorded."""
        return max(0.0, self.seconds - sum(self.exposed.values()))


def shares_of(trace: RankTrace, steps: Iterable[int]) -> tuple[StepShares, ...]:
    """The shares of these steps of a rank."""
    return tuple(_shares(trace, step) for step in steps)


def _shares(trace: RankTrace, step: int) -> StepShares:
    begin, end = trace.steps[step]
    division: Division = divide(trace.covers, trace.order, begin, end)
    exchange = trace.covers.get("aggregate")
    communication = exchange.within(begin, end).seconds if exchange is not None else 0.0
    exposed = {phase: seconds for phase, seconds in division.seconds.items() if phase != WAIT}
    if WAIT in division.seconds:
        exposed["aggregate"] = exposed.get("aggregate", 0.0) + division.seconds[WAIT]
    pieces = tuple(("aggregate" if phase == WAIT else phase, start, stop) for phase, start, stop in division.pieces)
    return StepShares(trace.rank, step, begin, end - begin, exposed, communication, pieces)


def phase_by_words(name: str) -> str | None:
    """The phase that the name of an operation tells; None if it tells none."""
    lowered = name.lower()
    return next((phase for phase, words in WORDS if any(word in lowered for word in words)), None)


def gather_spans(path: str, spans: Iterable[Span], source: str) -> tuple[RankTrace, ...]:
    """Spans that know their rank, step and phase, by rank; a step lasts from its first span to its last."""
    covers: dict[int, dict[str, Gathering]] = defaultdict(lambda: defaultdict(Gathering))
    steps: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)
    exchanges: dict[int, list[Span]] = defaultdict(list)
    kept = 0
    for span in spans:
        end = span.start_s + span.seconds
        phase = span.phase if span.phase in PHASES else phase_by_words(span.name) or "other"
        covers[span.rank][phase].add(span.start_s, end)
        first, last = steps[span.rank].get(span.step, (span.start_s, end))
        steps[span.rank][span.step] = (min(first, span.start_s), max(last, end))
        if phase == "aggregate" and kept < MOST_SPANS and len(exchanges[span.rank]) < MOST_EXCHANGES:
            exchanges[span.rank].append(span if span.phase == phase else replace(span, phase=phase))
            kept += 1
    return tuple(
        RankTrace(
            path=path,
            rank=rank,
            world=None,
            steps=steps[rank],
            covers={phase: parts.cover() for phase, parts in covers[rank].items()},
            exchanges=tuple(exchanges[rank]),
            source=source,
            closed_s=sum(parts.closed_s for parts in covers[rank].values()),
        )
        for rank in sorted(covers)
    )


def check_clock(path: str, steps: Mapping[int, tuple[float, float]]) -> None:
    """Refuse steps that lie before or far behind the step before them: the clock was set while the trace was taken."""
    ordered = sorted(steps.items())
    empty = next((number for number, (begin, end) in ordered if end <= begin), None)
    if empty is not None:
        raise InputError(
            f"{path}: step {empty} takes no time",
            hint="events need `ts` and `dur` in microseconds; steps are marked by `prof.step()` after every iteration",
        )
    usual = median(end - begin for begin, end in steps.values()) if steps else 0.0
    for (number, (_, end)), (later, (begin, _)) in pairwise(ordered):
        jump = begin - end
        if jump < -(0.001 + 0.01 * usual) or (later == number + 1 and jump > 1.0 + 3 * usual):
            raise InputError(
                f"{path}: the clock jumps by {jump:+.3f} s between step {number} and step {later}",
                hint="steps follow each other on one clock: record again without setting the clock (NTP slews, "
                "`chronyd -x`), and call `prof.step()` once per iteration in one thread",
            )
