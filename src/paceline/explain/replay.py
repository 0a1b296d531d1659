"""What a job with pipeline stages would take without stragglers: its operations, replayed with their dependencies.

Every rank computes in the order that was recorded. A receive precedes the computation that needs it, a send follows the
computation that makes it; an exchange begins when its last rank arrives. Without stragglers, each computation takes the
mean of its kind and each exchange the median time after its last rank arrived. Then one group of operations at a time
(a stage, a rank, a kind) keeps its measured times: the longer step is what that group costs. (Method: Lin et al.,
Understanding Stragglers in Large Model Training Using What-if Analysis, OSDI 2025.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.measurements.foreign.operations import COMPUTES, Operations

__all__ = ["Replay", "replay"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
CLOCK = 5e-4
"""Seconds by which the clocks of two streams of a rank may differ, unless computations are not much longer."""
CLOCK_SHARE = 0.1
"""The same, of a usual computation."""
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
DATA_PARALLEL = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")
BLAMED = 0.03
"""A step that becomes longer by less has nobody to blame."""
MOST_RANKS = 256
"""Ranks that are replayed one by one; of a larger job, data-parallel ranks and stages are."""


@dataclass(frozen=True)
class Replay:
    """Seconds per step, mean over steps, and the slowdown that each group of operations causes by itself."""

    num_steps: int
    measured_s: float
    replayed_s: float
    """With the recorded times, without delays between operations."""
    ideal_s: float
    """With equal times for equal operations."""
    by_stage: dict[str, float]
    """Step with this group as recorded over the ideal step, largest first."""
    by_rank: dict[str, float]
    by_dp_rank: dict[str, float]
    by_kind: dict[str, float]
    clock_s: float = 0.0
    """By how much the ends of one collective differ between ranks, usually: nothing if they have one clock."""
    unpaired: int = 0
    """Sends and receives that lack their computation or their peer: some operations were not recorded."""

    @property
    def slowdown(self) -> float:
        """Replayed over ideal step."""
        return self.replayed_s / self.ideal_s if self.ideal_s else 1.0

    @property
    def blame(self) -> tuple[str, str] | None:
        """What is named first: a rank that no other is like, a replica as a whole, or a stage.

        Nobody, where the step is as long as without stragglers and no stage is unlike the others: slow steps of
        everybody make each of them look slow.
        """
        if self.slowdown <= 1 + BLAMED and not _stands_out(self.by_stage):
            return None
        (stage, of_stage), (rank, of_rank), (replica, of_replica) = map(
            _first, (self.by_stage, self.by_rank, self.by_dp_rank)
        )
        alone = len(self.by_dp_rank) > 1 and len(self.by_stage) > 1 and _stands_out(self.by_rank)
        if alone and of_rank > max(BLAMED, 0.9 * of_stage, 0.9 * of_replica):
            return "rank", rank
        if of_replica > max(BLAMED, of_stage) and _stands_out(self.by_dp_rank):
            return "data-parallel rank", replica
        return ("stage", stage) if of_stage > BLAMED else None

    @property
    def document(self) -> dict[str, Any]:
        """Everything as plain data."""
        return {**vars(self), "slowdown": self.slowdown, "blame": self.blame}


def _first(found: dict[str, float]) -> tuple[str, float]:
    """The first of a group, and how much longer it makes the step."""
    name, value = next(iter(found.items()), ("", 1.0))
    return name, value - 1


def _stands_out(found: dict[str, float]) -> bool:
    """Whether the first makes the step longer by more than twice what the second does."""
    first, *others = found.values()
    return not others or others[0] - 1 < 0.5 * (first - 1)


def replay(operations: Operations) -> Replay:
    """Replay every step of a job as recorded, without stragglers, and with one group of operations as recorded."""
    steps = [np.flatnonzero(operations.step == step) for step in np.unique(operations.step)]
    graphs = [_graph(operations, rows) for rows in steps]
    unpaired = _check_transfers(operations, graphs)
    recorded = operations.seconds.copy()
    for graph in graphs:
        recorded[graph.rows] = graph.alone(operations)
    ideal = _ideal(operations, recorded, np.concatenate([graph.is_exchange for graph in graphs]), steps)
    groups = _groups(operations)
    kept = np.stack([np.ones(recorded.size, dtype=bool), np.zeros(recorded.size, dtype=bool),
                     *(mask for masks in groups.values() for mask in masks.values())], axis=1)  # fmt: skip
    totals = np.mean([_step_seconds(graph, recorded, ideal, kept) for graph in graphs], axis=0)
    split, place = {}, 2
    for name, masks in groups.items():
        values = {key: float(totals[place + number] / totals[1]) for number, key in enumerate(masks)}
        split[name] = dict(sorted(values.items(), key=lambda item: -item[1]))
        place += len(masks)
    measured = float(np.mean(list(operations.step_seconds().values())))
    return Replay(
        len(steps), measured, float(totals[0]), float(totals[1]), **split, clock_s=_clocks(operations, graphs),
        unpaired=unpaired,
    )  # fmt: skip


def _check_transfers(operations: Operations, graphs: list[_Graph]) -> int:
    """How many sends and receives lack their other half; a kind that is not there at all is an error."""
    for kind in TRANSFERS:
        lacking = sum(graph.lacking.get(kind, 0) for graph in graphs)
        if lacking and not (operations.kind == kind).any():
            raise InputError(f"{operations.path}: no {kind} is recorded, and {lacking} computations have one",
                             hint="record sends and receives: without them nobody knows who waits")  # fmt: skip
    return sum(sum(graph.lacking.values()) for graph in graphs)


def _clocks(operations: Operations, graphs: list[_Graph]) -> float:
    """The largest usual distance of a rank's end of a collective from the first end of it."""
    late: dict[int, list[float]] = defaultdict(list)
    for graph in graphs:
        for members in (group for group in graph.members if len(group) > 1):
            rows = graph.rows[members]
            if operations.kind[rows[0]] not in TRANSFERS:
                for row in rows.tolist():
                    late[int(operations.rank[row])].append(float(operations.end[row] - operations.end[rows].min()))
    return max((float(np.median(values)) for values in late.values()), default=0.0)


def _groups(operations: Operations) -> dict[str, dict[str, Bools]]:
    ranks = np.unique(operations.rank)
    return {
        "by_stage": {str(one): operations.stage == one for one in np.unique(operations.stage)},
        "by_rank": {str(one): operations.rank == one for one in ranks} if ranks.size <= MOST_RANKS else {},
        "by_dp_rank": {str(one): operations.dp_rank == one for one in np.unique(operations.dp_rank)},
        "by_kind": {str(one): operations.kind == one for one in np.unique(operations.kind)},
    }


def _ideal(operations: Operations, recorded: Floats, exchanges: Bools, steps: list[NDArray[np.int64]]) -> Floats:
    """The mean of each kind of computation, and the median of each kind of exchange."""
    is_exchange = np.zeros(recorded.size, dtype=bool)
    is_exchange[np.concatenate(steps)] = exchanges
    ideal = recorded.copy()
    for kind in np.unique(operations.kind):
        chosen = operations.kind == kind
        middle = np.median if is_exchange[chosen].any() else np.mean
        ideal[chosen] = middle(recorded[chosen])
    return ideal


@dataclass(frozen=True)
class _Graph:
    """One step: its operations, what each waits for, and which run together."""

    rows: NDArray[np.int64]
    after: list[list[int]]
    """Operations that each operation waits for."""
    members: list[list[int]]
    """Operations that begin their exchange together, in an order in which everything they wait for comes before."""
    is_exchange: Bools
    lacking: dict[str, int]
    """By kind: transfers that have no computation, computations that have no transfer, and transfers without peer."""

    def alone(self, operations: Operations) -> Floats:
        """Seconds of each operation after the last of its members arrived."""
        start, end = operations.start[self.rows], operations.end[self.rows]
        arrived = start.copy()
        for members in self.members:
            arrived[members] = start[members].max()
        return np.maximum(0.0, end - arrived)


def _step_seconds(graph: _Graph, recorded: Floats, ideal: Floats, kept: Bools) -> Floats:
    """Seconds of the step, one for each column of `kept`: the operations that keep their recorded time."""
    seconds = np.where(kept[graph.rows], recorded[graph.rows, None], ideal[graph.rows, None])
    ends = np.zeros_like(seconds)
    for members in graph.members:
        before = [one for member in members for one in graph.after[member]]
        begin = ends[before].max(axis=0) if before else np.zeros(seconds.shape[1])
        ends[members] = begin + seconds[members]
    total: Floats = ends.max(axis=0)
    return total


def _graph(operations: Operations, rows: NDArray[np.int64]) -> _Graph:
    step = _Step(operations, rows)
    members = step.exchanges()
    joined = {one for group in members for one in group}
    is_exchange = np.array([index in joined or step.is_exchange(index) for index in range(rows.size)])
    alone = [[index] for index in range(rows.size) if index not in joined]
    ordered = _in_order([*members, *alone], step.after, f"{operations.path}: step {operations.step[rows[0]]}")
    return _Graph(rows, step.after, ordered, is_exchange, step.lacking)


def _in_order(groups: list[list[int]], after: list[list[int]], where: str) -> list[list[int]]:
    """The groups in an order in which whatever an operation waits for comes before it."""
    group_of = {index: number for number, group in enumerate(groups) for index in group}
    waits = [{group_of[one] for index in group for one in after[index]} for group in groups]
    followers: dict[int, list[int]] = defaultdict(list)
    for number, before in enumerate(waits):
        for one in before:
            followers[one].append(number)
    left = [len(before) for before in waits]
    ready, ordered = deque(number for number, count in enumerate(left) if not count), list[int]()
    while ready:
        ordered.append(ready.popleft())
        for number in followers[ordered[-1]]:
            left[number] -= 1
            if not left[number]:
                ready.append(number)
    if len(ordered) < len(groups):
        stuck = len(groups) - len(ordered)
        raise InputError(f"{where}: {stuck} operations wait for each other in a circle",
                         hint="start_ts has to be on one clock for all ranks; where a stage has several chunks of the "
                         "model, the column gmc has to say which")  # fmt: skip
    return [groups[number] for number in ordered]


def _toward(direction: str, side: str) -> int:
    """Whether the peer of a transfer is at the next chunk of the model or at the one before."""
    return 1 if (direction == "forward") == (side == "send") else -1


def _shards(operations: Operations) -> NDArray[np.int64]:
    """Of each operation: the place of its rank among those of one stage and replica, which share layers."""
    places, inverse = np.unique(np.stack([operations.dp_rank, operations.stage, operations.rank]), axis=1,
                                return_inverse=True)  # fmt: skip
    fresh = np.concatenate([[True], np.diff(places[:2], axis=1).any(axis=0)])
    numbers = np.arange(fresh.size)
    shards: NDArray[np.int64] = (numbers - np.maximum.accumulate(np.where(fresh, numbers, 0)))[inverse.reshape(-1)]
    return shards


class _Step:
    """The dependencies of one step, rank by rank."""

    def __init__(self, operations: Operations, rows: NDArray[np.int64]) -> None:
        self.kind, self.stage = operations.kind[rows].tolist(), operations.stage[rows].tolist()
        self.dp, self.chunk = operations.dp_rank[rows].tolist(), operations.chunk[rows].tolist()
        self.start, self.end = operations.start[rows], operations.end[rows]
        self.last_stage = int(operations.stage.max())
        self.last_chunk = max(self.last_stage, int(operations.chunk.max()))
        self.after: list[list[int]] = [[] for _ in range(rows.size)]
        self._transfers: dict[tuple[int, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.lacking: dict[str, int] = defaultdict(int)
        rank = operations.rank[rows]
        self.rank, self.shard = rank.tolist(), _shards(operations)[rows].tolist()
        usual = np.median(operations.seconds[np.isin(operations.kind, COMPUTES)])
        self._clock = min(CLOCK, CLOCK_SHARE * float(usual)) if usual else CLOCK
        order = np.lexsort((operations.sequence[rows], self.start, rank))
        for part in np.split(order, np.flatnonzero(np.diff(rank[order])) + 1):
            self._rank(part.tolist())

    def is_exchange(self, index: int) -> bool:
        """Whether an operation communicates, by its name."""
        kind = self.kind[index]
        return kind in TRANSFERS or "clip" in kind or any(word in kind for word in DATA_PARALLEL)

    def _rank(self, rows: list[int]) -> None:
        streams: dict[str, list[int]] = defaultdict(list)
        for row in rows:
            streams[self._stream(row)].append(row)
        for stream in streams.values():
            for before, row in pairwise(stream):
                self.after[row].append(before)
        for kind in TRANSFERS:
            self._match(kind, streams)
        shared = [name for name in ("compute", "exchange", "rest") if name in streams]
        for row in [*streams["exchange"], *streams["rest"]]:
            self.after[row] += [one for name in shared if (one := self._latest(streams[name], row)) is not None]
        gathers = [row for row in streams["exchange"] if "all-gather" in self.kind[row]]
        for row in streams["compute"]:
            one = self._latest(gathers, row) if self.kind[row] == COMPUTES[0] else None
            self.after[row] += [] if one is None else [one]

    def _stream(self, row: int) -> str:
        kind = self.kind[row]
        if kind in TRANSFERS:
            return str(kind)
        if kind in COMPUTES:
            return "compute"
        overlapping = kind.startswith(("params-", "grads-"))
        return "exchange" if overlapping else "rest"

    def _latest(self, stream: list[int], row: int) -> int | None:
        """The last operation of a stream that had ended when another began."""
        ended = [one for one in stream if one != row and self.end[one] <= self.start[row] + self._clock
                 and self.start[one] < max(self.start[row], self.end[one])]  # fmt: skip
        return ended[-1] if ended else None

    def _match(self, kind: str, streams: dict[str, list[int]]) -> None:
        """Receives before, sends after the computation with the same number, and both with their peer."""
        direction, side = kind.split("-")
        transfers = streams.get(kind, [])
        computes = [row for row in streams["compute"] if self.kind[row] == f"{direction}-compute"]
        beside = [row for row in computes if self._has_peer(row, direction, side)]
        if len(transfers) not in (len(beside), len(computes), len(computes) - (side == "recv")):
            self.lacking[kind] += abs(len(transfers) - len(beside))
        if len(transfers) == len(beside):
            computes = beside
        elif side == "recv" and len(transfers) == len(computes) - 1:  # the first receive, from nobody, is left out
            computes = computes[1:]
        for row, compute in zip(transfers, computes, strict=False):
            if side == "send":
                self.after[row].append(compute)
            else:
                self.after[compute].append(row)
                one = self._latest([c for c in streams["compute"] if c != compute], row)
                self.after[row] += [] if one is None else [one]
            self._join(row, direction, side, compute)

    def _has_peer(self, compute: int, direction: str, side: str) -> bool:
        """Whether there is a chunk beside that of a computation; the ends of the model have nobody on one side."""
        chunk = self.chunk[compute] if self.chunk[compute] >= 0 else self.stage[compute]
        return bool(0 <= chunk + _toward(direction, side) <= self.last_chunk)

    def _join(self, row: int, direction: str, side: str, compute: int) -> None:
        """Note a transfer under its sender, if it has a peer: some profilers record receives from nobody."""
        if self._has_peer(compute, direction, side):
            beside = (self.stage[row] + _toward(direction, side)) % (self.last_stage + 1)
            sender = self.stage[row] if side == "send" else beside
            self._transfers[self.dp[row], self.shard[row], direction == "forward", sender][side].append(row)

    def exchanges(self) -> list[list[int]]:
        """Operations that need each other: pairs of send and receive, collectives over their group."""
        groups = []
        for sides in self._transfers.values():
            sends, receives = sides["send"], sides["recv"]
            groups += [list(pair) for pair in zip(sends, receives, strict=False)]
            if sends and receives and len(sends) != len(receives):
                self.lacking[self.kind[sends[0]]] += abs(len(sends) - len(receives))
        collectives: dict[tuple[object, ...], list[int]] = defaultdict(list)
        seen: dict[tuple[object, ...], int] = defaultdict(int)
        for row in np.argsort(self.start, kind="stable").tolist():
            key = self._group(row)
            if key is not None:
                number = seen[key, self.rank[row]]
                seen[key, self.rank[row]] += 1
                collectives[(*key, number)].append(row)
        return [*groups, *collectives.values()]

    def _group(self, row: int) -> tuple[object, ...] | None:
        """Who takes part in a collective: stages that share an embedding, everybody for the norm of all gradients."""
        kind = self.kind[row]
        if kind in TRANSFERS or not self.is_exchange(row) or "layernorm" in kind:
            return None
        if "clip" in kind:
            return (kind,)
        shared = ("dp", self.dp[row]) if "embedding" in kind else ("stage", self.stage[row])
        return (kind, *shared, self.shard[row])
