"""Dependencies between the operations of a pipeline: one graph for all steps with equal operations in equal order.

Every rank computes in the order that was recorded. A receive precedes the computation that uses its data, a send
follows the computation that produces it; a collective begins when its last rank arrives.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from paceline.errors import InputError
from paceline.measurements.foreign.operations import COMPUTES, Operations

__all__ = ["TRANSFERS", "Floats", "PipelineGraph", "is_exchange", "pipeline_graphs"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CLOCK = 5e-4
"""Seconds by which the clocks of two streams of a rank may differ, unless computations are not much longer."""
CLOCK_SHARE = 0.1
"""The same as a share of a typical computation."""
TRANSFERS = ("forward-send", "forward-recv", "backward-send", "backward-recv")
LOOKED_AT = 64
"""Maximum number of concurrent operations of a stream."""
DATA_PARALLEL = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all")


def is_exchange(kind: str) -> bool:
    """Whether an operation communicates, by its name."""
    return kind in TRANSFERS or "clip" in kind or any(word in kind for word in DATA_PARALLEL)


def _stream(kind: str) -> str:
    """Operations of one stream of a rank follow each other."""
    if kind in TRANSFERS:
        return kind
    if kind in COMPUTES:
        return "compute"
    return "exchange" if kind.startswith(("params-", "grads-")) else "rest"


def pipeline_graphs(operations: Operations) -> list[PipelineGraph]:
    """The graphs of a job, each with all steps of its form."""
    names, kinds = np.unique(operations.kind, return_inverse=True)
    streams = {name: number for number, name in enumerate(sorted({_stream(str(name)) for name in names}))}
    stream = np.array([streams[_stream(str(name))] for name in names])[kinds]
    steps = np.unique(operations.step)
    # Stable sorts of the whole table: by step, rank and stream, then by begin.
    order = np.lexsort((operations.sequence, operations.start, stream, operations.rank, operations.step))
    parts = np.split(order, np.flatnonzero(np.diff(operations.step[order])) + 1)
    forms: dict[bytes, list[Ints]] = defaultdict(list)
    for rows in parts:
        what = (operations.rank, kinds, operations.micro_batch, operations.chunk)
        forms[b"".join(column[rows].tobytes() for column in what)].append(rows)
    assert len(parts) == steps.size
    return [_Form(operations, np.stack(found)).graph() for found in forms.values()]


@dataclass(frozen=True)
class PipelineGraph:
    """Dependencies of the operations of a step, and the groups that run together."""

    rows: Ints
    """Rows of the table: one line for each step, its operations in one order."""
    before: list[list[int]]
    """Operations that each operation waits for."""
    members: list[list[int]]
    """Operations that begin their exchange together; a computation is alone."""
    lacking: dict[str, int]
    """Numbers by kind: transfers without computation, computations without transfer, and transfers without peer."""
    where: str

    def levels(self) -> list[_Level]:
        """The operations in topological order of their dependencies."""
        size = len(self.before)
        group_of = np.empty(size, dtype=np.int64)
        for number, group in enumerate(self.members):
            group_of[group] = number
        counts = np.array([len(found) for found in self.before])
        after = np.repeat(np.arange(size), counts)
        first = np.array([one for found in self.before for one in found], dtype=np.int64)
        pairs = np.unique(np.stack([group_of[first], group_of[after]]), axis=1)
        depth = _depths(pairs, len(self.members))
        if depth is None:
            raise InputError(f"{self.where}: operations wait for each other in a circle",
                             hint="start_ts has to be on one clock for all ranks; where a stage has several chunks of "
                             "the model, the column gmc has to say which")  # fmt: skip
        by_depth: list[list[int]] = [[] for _ in range(int(depth.max()) + 1)]
        for number, level in enumerate(depth.tolist()):
            by_depth[level].append(number)
        return [self._level(groups) for groups in by_depth]

    def _level(self, groups: list[int]) -> _Level:
        members = [one for number in groups for one in self.members[number]]
        before = [self.before[one] or [len(self.before)] for one in members]  # a row of zeros represents the start
        return _Level(
            np.array(members),
            np.array([one for found in before for one in found]),
            np.cumsum([0, *(len(found) for found in before)])[:-1],
            np.cumsum([0, *(len(self.members[number]) for number in groups)])[:-1],
            np.array([len(self.members[number]) for number in groups]),
        )


@dataclass(frozen=True)
class _Level:
    """Operations that wait for none of each other."""

    members: Ints
    before: Ints
    first_before: Ints
    first_member: Ints
    sizes: Ints

    def run(self, ends: Floats, seconds: Floats, delays: Floats | None) -> None:
        """Fill in the ends of these operations, one column for each case."""
        begin = np.maximum.reduceat(ends[self.before], self.first_before, axis=0)
        if delays is not None:
            begin += delays[self.members]
        begin = np.maximum.reduceat(begin, self.first_member, axis=0)
        ends[self.members] = np.repeat(begin, self.sizes, axis=0) + seconds[self.members]


def _depths(pairs: Ints, size: int) -> Ints | None:
    """The longest path to each group from a group without dependencies; None if there is a cycle."""
    order = np.argsort(pairs[0], kind="stable")
    followers = pairs[1][order]
    first = np.searchsorted(pairs[0][order], np.arange(size + 1))
    left = np.bincount(pairs[1], minlength=size)
    depth = np.zeros(size, dtype=np.int64)
    ready, seen, level = np.flatnonzero(left == 0), 0, 0
    while ready.size:
        depth[ready] = level
        seen, level = seen + ready.size, level + 1
        reached = np.concatenate([followers[first[one] : first[one + 1]] for one in ready.tolist()])
        counts = np.bincount(reached, minlength=size) if reached.size else np.zeros(size, dtype=np.int64)
        left -= counts
        ready = np.flatnonzero((counts > 0) & (left == 0))
    return depth if seen == size else None


def _toward(direction: str, side: str) -> int:
    """Whether the peer of a transfer has the next or the previous chunk of the model."""
    return 1 if (direction == "forward") == (side == "send") else -1


def _shards(operations: Operations) -> Ints:
    """For each operation, the index of its rank among the ranks of its stage and replica, which share layers."""
    places, inverse = np.unique(np.stack([operations.dp_rank, operations.stage, operations.rank]), axis=1,
                                return_inverse=True)  # fmt: skip
    fresh = np.concatenate([[True], np.diff(places[:2], axis=1).any(axis=0)])
    numbers = np.arange(fresh.size)
    shards: Ints = (numbers - np.maximum.accumulate(np.where(fresh, numbers, 0)))[inverse.reshape(-1)]
    return shards


class _Form:
    """The dependencies of steps of one form, rank by rank, by the times of the first of them."""

    def __init__(self, operations: Operations, rows: Ints) -> None:
        first = rows[0]
        self._rows, self._where = rows, f"{operations.path}: step {operations.step[first[0]]}"
        numbers = operations.stage - operations.stage.min()
        self.kind, self.stage = operations.kind[first].tolist(), numbers[first].tolist()
        self.dp, self.chunk = operations.dp_rank[first].tolist(), operations.chunk[first].tolist()
        begin, end, rank = operations.start[first], operations.end[first], operations.rank[first]
        self.start, self.end, self.rank = begin.tolist(), end.tolist(), rank.tolist()
        self.shard = _shards(operations)[first].tolist()
        self.last_stage = int(numbers.max())
        self.last_chunk = max(self.last_stage, int(operations.chunk.max()))
        usual = np.median(operations.seconds[np.isin(operations.kind, COMPUTES)])
        self._clock = min(CLOCK, CLOCK_SHARE * float(usual)) if usual else CLOCK
        self._place = np.argsort(np.lexsort((operations.sequence[first], begin))).tolist()
        self.before: list[list[int]] = [[] for _ in range(first.size)]
        self.lacking: dict[str, int] = defaultdict(int)
        self._transfers: dict[tuple[int, ...], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for part in np.split(np.arange(first.size), np.flatnonzero(np.diff(rank)) + 1):
            self._rank(part.tolist())

    def graph(self) -> PipelineGraph:
        """The graph of these steps."""
        members = self._exchanges()
        joined = {one for group in members for one in group}
        alone = [[index] for index in range(len(self.kind)) if index not in joined]
        return PipelineGraph(self._rows, self.before, [*members, *alone], dict(self.lacking), self._where)

    def _rank(self, rows: list[int]) -> None:
        streams: dict[str, list[int]] = defaultdict(list)
        for row in rows:  # the order of the rows is that of each stream
            streams[_stream(self.kind[row])].append(row)
        for stream in streams.values():
            for earlier, row in pairwise(stream):
                self.before[row].append(earlier)
        for kind in TRANSFERS:
            self._match(kind, streams)
        for name in ("exchange", "rest"):
            for row in streams[name]:
                for other in {"compute", "exchange", "rest"} - {name}:
                    self._wait(row, self._feeding(row, streams[other]))
        self._hold_up(streams)

    def _feeding(self, row: int, stream: list[int]) -> list[int]:
        """The operations that a collective may wait for: for gradients of a chunk, the backward passes of that
        chunk."""
        if self.kind[row].startswith("grads-") and self.chunk[row] >= 0:
            own = [one for one in stream if self.kind[one] == COMPUTES[1] and self.chunk[one] == self.chunk[row]]
            return own or stream
        return stream

    def _hold_up(self, streams: dict[str, list[int]]) -> None:
        """Computations wait for the weights of their chunk, and for the operations of the rank in between."""
        computes, gathers = streams["compute"], [row for row in streams["exchange"] if "all-gather" in self.kind[row]]
        between = [row for row in streams["rest"] if not self._beside(row, computes)]
        seen: set[int] = set()
        for row in computes:
            self._wait(row, between)
            if self.kind[row] != COMPUTES[0] or (self.chunk[row] in seen and self.chunk[row] >= 0):
                continue
            seen.add(self.chunk[row])
            own = [one for one in gathers if self.chunk[one] in (-1, self.chunk[row]) or self.chunk[row] < 0]
            self._wait(row, own)

    def _beside(self, row: int, computes: list[int]) -> bool:
        """Whether an operation overlapped with a computation of its rank, which therefore does not depend on it."""
        later = next((one for one in computes if self.end[one] > self.start[row] + self._clock), None)
        return later is not None and self.start[later] < self.end[row] - self._clock

    def _wait(self, row: int, stream: list[int], but: int = -1) -> bool:
        """Make an operation depend on the last operation of a stream that had ended before it began; whether there is
        one."""
        limit = self.start[row] + self._clock
        earlier = bisect_left(stream, self._place[row], key=self._place.__getitem__)
        for one in reversed(stream[max(0, earlier - LOOKED_AT) : earlier]):
            if self.end[one] <= limit and one != but:
                self.before[row].append(one)
                return True
        return False

    def _match(self, kind: str, streams: dict[str, list[int]]) -> None:
        """Receives before, sends after the computation with the same number, and both with their peer."""
        direction, side = kind.split("-")
        computes = same = [row for row in streams["compute"] if self.kind[row] == f"{direction}-compute"]
        transfers = self._used(streams.get(kind, []), computes, side)
        beside = [row for row in computes if self._has_peer(row, direction, side)]
        if len(transfers) not in (len(beside), len(computes), len(computes) - (side == "recv")):
            self.lacking[kind] += abs(len(transfers) - len(beside))
        if len(transfers) == len(beside):
            computes = beside
        elif side == "recv" and len(transfers) == len(computes) - 1:  # the first receive has no sender
            computes = computes[1:]
        for row, compute in zip(transfers, computes, strict=False):
            if side == "send":
                self.before[row].append(compute)
            else:
                self.before[compute].append(row)
                # A receive needs no computation of the other direction: one that is posted after it is delayed.
                if not self._wait(row, same, but=compute):
                    self._wait(row, streams["compute"], but=compute)
            self._join(row, direction, side, compute)

    def _used(self, transfers: list[int], computes: list[int], side: str) -> list[int]:
        """The transfers that are used, without sends before a result and receives for which no operation waits."""
        if len(transfers) <= len(computes) or not computes:
            return transfers
        if side == "recv":
            last = max(self.start[one] for one in computes) + self._clock
            return [row for row in transfers if self.start[row] <= last]
        first = min(self.end[one] for one in computes) - self._clock
        return [row for row in transfers if self.end[row] >= first]

    def _has_peer(self, compute: int, direction: str, side: str) -> bool:
        """Whether another stage has the neighbouring chunk of a computation; the ends of the model have no
        neighbour."""
        chunk = self.chunk[compute] if self.chunk[compute] >= 0 else self.stage[compute]
        return bool(self.last_stage and 0 <= chunk + _toward(direction, side) <= self.last_chunk)

    def _join(self, row: int, direction: str, side: str, compute: int) -> None:
        """Record a transfer under its sender, if it has a peer: some profilers record receives without a sender."""
        if self._has_peer(compute, direction, side):
            beside = (self.stage[row] + _toward(direction, side)) % (self.last_stage + 1)
            sender = self.stage[row] if side == "send" else beside
            self._transfers[self.dp[row], self.shard[row], direction == "forward", sender][side].append(row)

    def _exchanges(self) -> list[list[int]]:
        """Operations that need each other: pairs of send and receive, collectives over their group."""
        groups = []
        for sides in self._transfers.values():
            sends, receives = sides["send"], sides["recv"]
            groups += [list(pair) for pair in zip(sends, receives, strict=False)]
            if sends and receives and len(sends) != len(receives):
                self.lacking[self.kind[sends[0]]] += abs(len(sends) - len(receives))
        return [*groups, *self._collectives(sorted(range(len(self.kind)), key=self._place.__getitem__))]

    def _collectives(self, rows: Iterable[int]) -> list[list[int]]:
        collectives: dict[tuple[object, ...], list[int]] = defaultdict(list)
        seen: dict[tuple[object, ...], int] = defaultdict(int)
        for row in rows:
            key = self._group(row)
            if key is not None:
                number = seen[key, self.rank[row]]
                seen[key, self.rank[row]] += 1
                collectives[(*key, number)].append(row)
        return list(collectives.values())

    def _group(self, row: int) -> tuple[object, ...] | None:
        """Participants of a collective: stages that share an embedding, or all ranks for the norm of all gradients."""
        kind = self.kind[row]
        if kind in TRANSFERS or not is_exchange(kind) or "layernorm" in kind:
            return None
        if "clip" in kind:
            return (kind,)
        shared = ("dp", self.dp[row]) if "embedding" in kind else ("stage", self.stage[row])
        return (kind, *shared, self.shard[row])
