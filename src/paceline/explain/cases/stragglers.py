"""Detection of slow ranks: host, phase, persistent or transient, and cost.

Ranks are compared in the pass without exchange, where no rank waits for another. A straggler is persistent if it is the
slowest in most steps, transient if single steps are outliers; both only if the launches agree.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from paceline.explain.cases.evidence import CaseEvidence, once_per_case
from paceline.measurements.summary import Interval, amount_interval

__all__ = ["Straggler", "find_stragglers"]

NOTICEABLE = 0.03
"""Share of the step below which a difference between ranks is not reported."""
OUTLIER = 1.5
"""A step longer than this multiple of the rank's median is a transient slowdown."""
DAY_S = 86400.0


@dataclass(frozen=True)
class Straggler:
    """A rank for which the others wait."""

    rank: int
    host: str
    phase: Literal["forward", "backward"]
    """The phase with the largest loss."""
    kind: Literal["persistent", "transient"]
    slower: float
    """Compute of the rank relative to that of the median rank."""
    share_slowest: float
    """Share of steps in which it was the slowest."""
    cost_s: Interval
    """Seconds that it adds to every step."""
    cost_per_day_s: float
    """Seconds per day that the other ranks wait for it."""


@once_per_case
def find_stragglers(evidence: CaseEvidence) -> tuple[Straggler, ...]:
    """Ranks that delay the others, largest cost first."""
    step = evidence.result.step_s
    if evidence.run.ranks < 2 or step is None:
        return ()
    medians = evidence.rank_median("compute")
    if len(medians) < 2:
        return ()
    stragglers = [_judge(evidence, rank, step.value, medians) for rank in medians]
    return tuple(sorted((item for item in stragglers if item), key=lambda item: -item.cost_s.value))


def _judge(evidence: CaseEvidence, rank: int, step_s: float, medians: dict[int, float]) -> Straggler | None:
    others = median(value for other, value in medians.items() if other != rank)
    share = _share_slowest(evidence, rank)
    kind: Literal["persistent", "transient"] = "transient"
    costs = [_transient_cost(steps) for steps in evidence.rank_times["compute"][rank].values()]
    if medians[rank] - others > NOTICEABLE * step_s and share > 0.7:
        kind, costs = "persistent", _cost_by_launch(evidence, rank)
    cost = amount_interval(costs) if costs else None
    if cost is None or cost.value < NOTICEABLE * step_s or cost.low < NOTICEABLE * step_s / 2:
        return None
    return Straggler(
        rank=rank,
        host=evidence.host_of(rank),
        phase=_phase(evidence, rank),
        kind=kind,
        slower=medians[rank] / others,
        share_slowest=share,
        cost_s=cost,
        cost_per_day_s=DAY_S * cost.value / step_s,
    )


def _cost_by_launch(evidence: CaseEvidence, rank: int) -> list[float]:
    """For each launch, the median compute of the rank minus that of the slowest other rank."""
    times = evidence.rank_times["compute"]
    mine, others = times[rank], [launches for other, launches in times.items() if other != rank]
    return [
        max(0.0, median(times) - max(median(other[run]) for other in others if run in other))
        for run, times in mine.items()
        if any(run in other for other in others)
    ]


def _transient_cost(seconds: list[float]) -> float:
    """Mean time per step that outlier steps add to the median."""
    usual = median(seconds)
    return sum(value - usual for value in seconds if value > OUTLIER * usual) / len(seconds)


def _share_slowest(evidence: CaseEvidence, rank: int) -> float:
    times = evidence.rank_times["compute"]
    won = [
        all(mine >= launches[run][step] for launches in times.values() if step < len(launches.get(run, ())))
        for run, seconds in times[rank].items()
        for step, mine in enumerate(seconds)
    ]
    return sum(won) / len(won)


def _phase(evidence: CaseEvidence, rank: int) -> Literal["forward", "backward"]:
    forward, compute = evidence.rank_median("forward"), evidence.rank_median("compute")
    ahead = median(value for other, value in forward.items() if other != rank)
    both = median(value for other, value in compute.items() if other != rank)
    lost_forward = forward.get(rank, 0.0) - ahead
    return "forward" if lost_forward > compute[rank] - both - lost_forward else "backward"
