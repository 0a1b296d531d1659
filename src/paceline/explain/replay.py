"""Replay of a job with pipeline stages: its operations with their dependencies, with and without stragglers.

Every rank computes in the order that was recorded. A receive precedes the computation that uses its data, a send
follows the computation that produces it; a collective begins when its last rank arrives. Without stragglers, each
computation takes the mean of its kind and each exchange the median time after its last rank arrived. Then one group of
operations at a time (a stage, a rank, a kind) keeps its measured times: the longer step is what that group costs.
(Method: Lin et al., Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.explain.pipeline import TRANSFERS, Floats, PipelineGraph, is_exchange, pipeline_graphs
from paceline.measurements.foreign.operations import COMPUTES, Operations
from paceline.measurements.summary import Interval, amount_interval

__all__ = ["Replay", "replay"]

Labels = NDArray[np.int64]
BLAMED = 0.03
"""Minimum slowdown of a step for which a cause is named."""
MOST_RANKS = 256
"""Ranks that are replayed one by one; of a larger job, those whose stage and data-parallel rank cost most."""
MOST_VALUES = 4_000_000
"""Times that are replayed at once: operations of a step by cases."""
SAME_LENGTH = 0.9
"""Correlation of forward and backward times, from which micro-batches are taken to be of unequal length."""
FEWEST_STEPS = 4
"""Steps that tell a slow stage from noise, of which another stage has most in every step."""
LASTING = 0.8
"""Share of the steps from which a cause acts in all of them."""
PIPELINE = {kind: f"{kind.split('-')[0]}-pp-comm" for kind in TRANSFERS}
"""A send and its receive are one transfer; so the study calls it."""


@dataclass(frozen=True)
class Replay:
    """Seconds per step, mean over steps, and the slowdown that each group of operations causes alone."""

    num_steps: int
    measured_s: float
    replayed_s: float
    """Step with the recorded times, without delays between operations."""
    ideal_s: float
    """Step with equal times for equal operations."""
    by_stage: dict[str, float]
    """Step with this group as recorded over the ideal step, largest first."""
    by_rank: dict[str, float]
    by_dp_rank: dict[str, float]
    by_kind: dict[str, float]
    clock_s: float = 0.0
    """Typical difference between ranks in the end of one collective; 0 with a common clock."""
    unpaired: int = 0
    """Sends and receives that lack their computation or their peer: some operations were not recorded."""
    even_s: float = 0.0
    """Step with every computation at the mean of its rank and kind, as for micro-batches of equal length."""
    lengths: float = 0.0
    """Correlation of forward and backward times of a rank's micro-batches; 0 where they do not go together."""
    delays: dict[str, dict[str, float]] = field(default_factory=dict)
    """Ratio of the step with the delays of one group to the replayed step, by stage, data-parallel rank and kind.

    Empty if delays between operations cost little.
    """
    by_step: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Times and slowdowns of each step."""

    @property
    def slowdown(self) -> float:
        """Replayed over ideal step."""
        return self.replayed_s / self.ideal_s if self.ideal_s else 1.0

    @property
    def blame(self) -> tuple[str, str] | None:
        """The first cause: a single slow rank, a whole replica, or a stage. None if the step is as long as without
        stragglers and no stage differs from the others: steps that are slow on all ranks make every rank look slow.
        """
        if self.slowdown <= 1 + BLAMED and not _stands_out(self.by_stage):
            return None
        uneven = (self.replayed_s - self.even_s) / self.ideal_s if self.even_s else 0.0
        if uneven > max(BLAMED, (self.even_s - self.ideal_s) / self.ideal_s) and self.lengths >= SAME_LENGTH:
            return "micro-batches", f"{uneven + 1:.3f}"
        (stage, of_stage), (rank, of_rank), (replica, of_replica) = map(
            _first, (self.by_stage, self.by_rank, self.by_dp_rank)
        )
        alone = len(self.by_dp_rank) > 1 and len(self.by_stage) > 1 and _stands_out(self.by_rank)
        if alone and of_rank > max(BLAMED, 0.9 * of_stage, 0.9 * of_replica):
            return "rank", rank
        if len(self.by_stage) == 1 < len(self.by_dp_rank):  # the only stage is every rank's
            of_stage = BLAMED
        if of_replica > max(BLAMED, of_stage) and _stands_out(self.by_dp_rank):
            return "data-parallel rank", replica
        return ("stage", stage) if of_stage > BLAMED and self._lasts(stage) else None

    def _lasts(self, stage: str) -> bool:
        """Whether the steps show that a stage costs more than the others do; few steps cannot tell."""
        if len(self.by_step) < FEWEST_STEPS or _stands_out(self.by_stage):
            return True
        more = [
            one["by_stage"][stage] - fmean(value for key, value in one["by_stage"].items() if key != stage)
            for one in self.by_step.values()
        ]
        return amount_interval(more, confidence=0.99).low > 0

    @property
    def cost(self) -> Interval:
        """Share of the time that stragglers cost, at least 0, with the interval over steps."""
        each = [1 - one["ideal_s"] / one["replayed_s"] for one in self.by_step.values() if one["replayed_s"]]
        mean = max(0.0, 1 - 1 / self.slowdown)
        found = amount_interval(each) if len(each) > 1 else Interval(mean, mean, mean)
        return Interval(mean, max(0.0, min(found.low, mean)), max(found.high, mean))

    @property
    def slow_steps(self) -> tuple[int, ...]:
        """Steps in which the first cause has more than half of its largest effect."""
        what, which = self.blame or ("", "")
        effects = {int(step): _effect(one, what, which) for step, one in self.by_step.items()}
        most = max(effects.values(), default=0.0)
        return tuple(step for step, effect in effects.items() if effect > 0.5 * most)

    @property
    def since(self) -> int | None:
        """The step from which the first cause acts until the end; None if it acts from the start or ends earlier."""
        steps, slow = [int(step) for step in self.by_step], self.slow_steps
        return slow[0] if 0 < len(slow) < LASTING * len(steps) and list(slow) == steps[-len(slow) :] else None

    @property
    def pattern(self) -> str:
        """The pattern of the first cause: whether it acts to the end, and in most steps."""
        lasts = self.since is not None and len(self.slow_steps) > 1
        return "persistent" if lasts or len(self.slow_steps) >= LASTING * len(self.by_step) else "transient"

    @property
    def document(self) -> dict[str, Any]:
        """Everything as plain data."""
        when = {"slow_steps": list(self.slow_steps), "since": self.since, "pattern": self.pattern} if self.blame else {}
        cost = [self.cost.low, self.cost.value, self.cost.high]
        return {**vars(self), "slowdown": self.slowdown, "blame": self.blame, "cost": cost, **when}


def _effect(step: Mapping[str, Any], what: str, which: str) -> float:
    """Effect of one cause on one step; the effect of a rank is that of its stage and replica."""
    stages, replicas = step["by_stage"], step["by_dp_rank"]
    if what == "stage":
        return float(stages[which]) - 1
    if what == "data-parallel rank":
        return float(replicas[which]) - 1
    return float(min(max(stages.values()), max(replicas.values()))) - 1


def _first(found: dict[str, float]) -> tuple[str, float]:
    """The first of a group, and how much longer it makes the step."""
    name, value = next(iter(found.items()), ("", 1.0))
    return name, value - 1


def _stands_out(found: dict[str, float]) -> bool:
    """Whether the first lengthens the step by more than twice as much as the second."""
    first, *others = found.values() or (1.0, 1.0)
    return not others or others[0] - 1 < 0.5 * (first - 1)


def replay(operations: Operations) -> Replay:
    """Replay every step of a job as recorded, without stragglers, and with one group of operations as recorded."""
    job = _Job(operations)
    whole = job.cases([_Case("recorded"), _Case("ideal"), _Case("even")])
    replayed, ideal, even = (float(mean) for mean in whole.mean(axis=0))
    labels = _labels(operations)
    found = {name: job.split(values, "ideal") for name, values in labels.items() if name != "by_rank"}
    ranks = _chosen_ranks(operations, {name: _means(split, ideal) for name, split in found.items()})
    found["by_rank"] = job.split(labels["by_rank"], "ideal", ranks)
    measured = np.array(list(operations.step_seconds().values()))
    late = measured.mean() > (1 + BLAMED) * replayed
    delays = {name: job.split(values, "delays") for name, values in _labels(operations, first=True).items()
              if name != "by_rank" and late}  # fmt: skip
    return Replay(
        measured.size, float(measured.mean()), replayed, ideal,
        **{name: _means(split, ideal) for name, split in found.items()},
        clock_s=_clocks(operations, job.graphs), unpaired=job.unpaired, even_s=even, lengths=_lengths(operations),
        delays={name: _means(split, replayed) for name, split in delays.items()},
        by_step=_by_step(job.steps, measured, whole, found),
    )  # fmt: skip


def _means(split: Mapping[str, Floats], over: float) -> dict[str, float]:
    """Mean over steps of each group over a step without it, largest first."""
    values = {key: float(seconds.mean() / over) if over else 1.0 for key, seconds in split.items()}
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _by_step(
    steps: list[int], measured: Floats, whole: Floats, found: Mapping[str, Mapping[str, Floats]]
) -> dict[str, dict[str, Any]]:
    ideal = whole[:, 1]
    return {
        str(step): {
            "measured_s": float(measured[at]), "replayed_s": float(whole[at, 0]), "ideal_s": float(ideal[at]),
            **{name: {key: round(float(seconds[at] / ideal[at]), 6) if ideal[at] else 1.0
                      for key, seconds in split.items()}
               for name, split in found.items() if name != "by_rank"},
        }
        for at, step in enumerate(steps)
    }  # fmt: skip


def _labels(operations: Operations, *, first: bool = False) -> dict[str, NDArray[Any]]:
    """The group of each operation in each split. The first operation of a rank's step waits for the previous step."""
    names, kinds = np.unique(operations.kind, return_inverse=True)
    kind = np.array([PIPELINE.get(str(name), str(name)) for name in names], dtype=object)[kinds]
    if first:
        begins = np.where(operations.stage == operations.stage.min(), COMPUTES[0], "forward-recv") == operations.kind
        rows = np.flatnonzero(begins)
        ordered = rows[np.argsort(operations.start[rows], kind="stable")]
        places = np.stack([operations.step[ordered], operations.rank[ordered]])
        kind[ordered[np.unique(places, axis=1, return_index=True)[1]]] = "first-op"
    return {"by_stage": operations.stage, "by_rank": operations.rank, "by_dp_rank": operations.dp_rank, "by_kind": kind}


def _chosen_ranks(operations: Operations, found: Mapping[str, Mapping[str, float]]) -> list[int]:
    """The ranks that are replayed individually: a rank costs no more than its stage or its replica."""
    places = np.unique(np.stack([operations.rank, operations.stage, operations.dp_rank]), axis=1).T.tolist()
    cost = {rank: min(found["by_stage"][str(stage)], found["by_dp_rank"][str(dp)]) for rank, stage, dp in places}
    return sorted(sorted(cost, key=lambda rank: -cost[rank])[:MOST_RANKS])


@dataclass(frozen=True)
class _Case:
    """Times of the operations in one replay; those of a group are as recorded."""

    times: str
    group: NDArray[np.bool_] | None = None


class _Job:
    """A job with the graphs of its steps, and the times that its operations take in each case."""

    def __init__(self, operations: Operations) -> None:
        self.graphs = pipeline_graphs(operations)
        self.unpaired = _check_transfers(operations, self.graphs)
        self._levels = [graph.levels() for graph in self.graphs]
        self.steps = [int(step) for step in np.unique(operations.step)]
        self._recorded, self._delays = operations.seconds.copy(), np.zeros(operations.seconds.size)
        for graph in self.graphs:
            for rows in graph.rows:
                self._recorded[rows], self._delays[rows] = _alone(graph, operations, rows)
        self._times = {"recorded": self._recorded, "ideal": _ideal(operations, self._recorded),
                       "even": _even(operations, self._recorded), "delays": self._recorded}  # fmt: skip
        self._numbers = operations.step

    def split(self, labels: NDArray[Any], times: str, chosen: list[int] | None = None) -> dict[str, Floats]:
        """Seconds of each step with one group at a time as recorded."""
        values = np.unique(labels) if chosen is None else np.array(chosen)
        found = self.cases([_Case(times, labels == value) for value in values])
        return {str(value): found[:, place] for place, value in enumerate(values)}

    def cases(self, cases: list[_Case]) -> Floats:
        """Seconds of each step (rows) in each case (columns)."""
        found = np.zeros((len(self.steps), len(cases)))
        for graph, levels in zip(self.graphs, self._levels, strict=True):
            width = max(1, MOST_VALUES // graph.rows.shape[1])
            for rows in graph.rows:
                at = int(np.searchsorted(self.steps, self._numbers[rows[0]]))
                for begin in range(0, len(cases), width):
                    part = cases[begin : begin + width]
                    seconds = np.stack([self._seconds(case, rows) for case in part], axis=1)
                    delays = np.stack([self._delayed(case, rows) for case in part], axis=1) \
                        if part[0].times == "delays" else None  # fmt: skip
                    ends = np.zeros((rows.size + 1, len(part)))
                    for level in levels:
                        level.run(ends, seconds, delays)
                    found[at, begin : begin + width] = ends.max(axis=0)
        return found

    def _seconds(self, case: _Case, rows: NDArray[np.int64]) -> Floats:
        times = self._times[case.times][rows]
        return times if case.group is None else np.where(case.group[rows], self._recorded[rows], times)

    def _delayed(self, case: _Case, rows: NDArray[np.int64]) -> Floats:
        delays = self._delays[rows]
        return delays if case.group is None else np.where(case.group[rows], delays, 0.0)


def _alone(graph: PipelineGraph, operations: Operations, rows: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Seconds of each operation after the last of its members arrived, and its delay after its dependencies."""
    start, end = operations.start[rows], operations.end[rows]
    arrived = start.copy()
    for members in graph.members:
        if len(members) > 1:
            arrived[members] = start[members].max()
    begin = float(start.min())
    ready = np.array([max((end[one] for one in before), default=begin) for before in graph.before])
    return np.maximum(0.0, end - arrived), np.maximum(0.0, start - ready)


def _check_transfers(operations: Operations, graphs: list[PipelineGraph]) -> int:
    """How many sends and receives lack their other half; a kind that is not there at all is an error."""
    lacks = [{kind: count * graph.rows.shape[0] for kind, count in graph.lacking.items()} for graph in graphs]
    for kind in TRANSFERS:
        lacking = sum(found.get(kind, 0) for found in lacks)
        if lacking and not (operations.kind == kind).any():
            raise InputError(f"{operations.path}: no {kind} is recorded, and {lacking} computations have one",
                             hint="record sends and receives: without them nobody knows who waits")  # fmt: skip
    return sum(sum(found.values()) for found in lacks)


def _clocks(operations: Operations, graphs: list[PipelineGraph]) -> float:
    """The largest usual distance of a rank's end of a collective from the first end of it."""
    late: dict[int, list[float]] = {}
    for graph in graphs:
        shared = [group for group in graph.members
                  if len(group) > 1 and operations.kind[graph.rows[0, group[0]]] not in TRANSFERS]  # fmt: skip
        for rank, rows, ends in _collective_ends(operations, graph, shared):
            late.setdefault(rank, []).extend((operations.end[rows] - ends).tolist())
    return max((float(np.median(values)) for values in late.values()), default=0.0)


def _collective_ends(
    operations: Operations, graph: PipelineGraph, shared: list[list[int]]
) -> Iterator[tuple[int, NDArray[np.int64], Floats]]:
    """For each operation of a collective: its rank, its rows by step, and the first end of the collective."""
    for group in shared:
        rows = graph.rows[:, group]
        first = operations.end[rows].min(axis=1)
        for place in range(len(group)):
            yield int(operations.rank[rows[0, place]]), rows[:, place], first


def _ideal(operations: Operations, recorded: Floats) -> Floats:
    """The mean of each kind of computation, and the median of each kind of exchange."""
    ideal = recorded.copy()
    names, kinds = np.unique(operations.kind, return_inverse=True)
    for number, kind in enumerate(names):
        chosen = kinds == number
        ideal[chosen] = (np.median if is_exchange(str(kind)) else np.mean)(recorded[chosen])
    return ideal


def _even(operations: Operations, recorded: Floats) -> Floats:
    """The mean of each kind of computation of a rank; exchanges as recorded."""
    even = recorded.copy()
    for kind in COMPUTES:
        chosen = np.flatnonzero(operations.kind == kind)
        _, ranks = np.unique(operations.rank[chosen], return_inverse=True)
        if chosen.size:
            even[chosen] = (np.bincount(ranks, recorded[chosen]) / np.bincount(ranks))[ranks]
    return even


def _lengths(operations: Operations) -> float:
    """Correlation of forward and backward times of micro-batches, each relative to the mean of its rank and chunk."""
    parts = []
    for kind in COMPUTES:
        rows = np.flatnonzero((operations.kind == kind) & (operations.micro_batch >= 0))
        _, places = np.unique(np.stack([operations.rank[rows], operations.chunk[rows]]), axis=1, return_inverse=True)
        places = places.reshape(-1)
        seconds = operations.seconds[rows]
        beside = seconds / np.maximum(
            (np.bincount(places, seconds) / np.maximum(np.bincount(places), 1))[places], 1e-12
        )
        keys = zip(*(column[rows].tolist() for column in (operations.step, operations.rank, operations.chunk,
                                                            operations.micro_batch)), strict=True)  # fmt: skip
        parts.append(dict(zip(keys, beside.tolist(), strict=True)))
    pairs = np.array([(value, parts[1][key]) for key, value in parts[0].items() if key in parts[1]])
    if len(pairs) < 3 or not np.all(pairs.std(axis=0) > 0):
        return 0.0
    return max(0.0, float(np.corrcoef(pairs.T)[0, 1]))
