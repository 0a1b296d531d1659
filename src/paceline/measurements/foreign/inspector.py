"""Logs of the NCCL Inspector, one line of JSON per collective and rank: bandwidth of collectives, and the rank that
enters last.

A rank's time of a collective contains its wait for the ranks that enter later. Of a collective that several ranks
logged, the shortest time is therefore its own, and the rank that has it entered last.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from paceline.errors import InputError
from paceline.measurements.foreign.nccl_tests import MOST_RANKS, CollectiveTest, TestedSize, reason_of
from paceline.measurements.trace.stream import BROKEN, begin_of, open_trace

__all__ = ["InspectedJob", "LateRank", "looks_like_inspector", "read_inspector"]

OPERATIONS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "ReduceScatter": "reduce_scatter",
    "Broadcast": "broadcast", "SendRecv": "point_to_point",
}  # fmt: skip
LONGEST = 1 << 20
MOST_CALLS = 2_000_000
OFTEN = 0.5
"""Share of the collectives that a rank enters last, from which it is named."""
HINT = (
    "NCCL_PROFILER_PLUGIN=.../libnccl-profiler-inspector.so NCCL_INSPECTOR_ENABLE=1 "
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500 write it; without NCCL_INSPECTOR_PROM_DUMP"
)


@dataclass(frozen=True)
class _Call:
    group: str
    rank: int
    ranks: int
    host: str
    operation: str
    number: int
    size_bytes: int
    seconds: float
    bus_bandwidth: float


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for most often."""

    group: str
    rank: int
    host: str
    share: float
    """Share of the collectives that every rank of the group has logged."""
    collectives: int
    wait_s: float
    """Median time that the others wait for it."""


@dataclass(frozen=True)
class InspectedJob:
    """All logs of a job: collectives by size as tests, and ranks that are late."""

    tests: tuple[CollectiveTest, ...]
    late: LateRank | None
    calls: int
    skipped: tuple[str, ...]
    """Kinds of calls that have no place in the model."""


def looks_like_inspector(path: Path) -> bool:
    """Whether a file begins like a log of the Inspector."""
    begin = begin_of(path, 1 << 14)
    return begin.lstrip()[:1] == b"{" and (b'"coll_perf"' in begin or b'"inspector_output_format_version"' in begin)


def read_inspector(paths: Sequence[Path]) -> InspectedJob:
    """The logs of all processes of a job."""
    calls, skipped = list[_Call](), Counter[str]()
    for path in paths:
        for call in _calls(path):
            if call.operation in OPERATIONS.values():
                calls.append(call)
            else:
                skipped[call.operation] += 1
            if len(calls) > MOST_CALLS:
                raise InputError(f"more than {MOST_CALLS:,} collectives", hint="import the logs of fewer processes")
    if not calls:
        raise InputError(f"{paths[0]} has no collective of a known kind", hint=HINT)
    met = defaultdict[tuple[str, str, int], dict[int, _Call]](dict)
    for call in calls:
        met[call.group, call.operation, call.number][call.rank] = call
    return InspectedJob(tuple(_tests(met.values(), str(paths[0]))), _late(met.values()), len(calls), tuple(skipped))


def _calls(path: Path) -> Iterator[_Call]:
    """One call per line; an incomplete last line is from a process that was stopped."""
    with open_trace(path) as file:
        number = 0
        while True:
            number += 1
            try:
                line = file.readline(LONGEST)
            except BROKEN as error:
                raise InputError(f"{path} is truncated or damaged: {error}", hint=HINT) from None
            if not line:
                return
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                if "coll_perf" in record or "metadata" not in record:  # else of a send, or of the dump itself
                    yield _call(record)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
                if not line.endswith(b"\n") and number > 1:
                    return
                what = f"{path}, line {number}, is no record of the Inspector: {reason_of(error)}"
                raise InputError(what, hint=HINT) from None


def _call(record: dict[str, Any]) -> _Call:
    head, about, done = record["header"], record.get("metadata") or {}, record["coll_perf"]
    call = _Call(
        group=str(head["id"])[:80],
        rank=int(head["rank"]),
        ranks=int(head["n_ranks"]),
        host=str(about.get("hostname", ""))[:200],
        operation=OPERATIONS.get(str(done["coll"]), str(done["coll"])[:40]),
        number=int(done["coll_sn"]),
        size_bytes=int(done["coll_msg_size_bytes"]),
        seconds=float(done["coll_exec_time_us"]) / 1e6,
        bus_bandwidth=float(done["coll_busbw_gbs"]) * 1e9,
    )
    sound = 0 <= call.rank < call.ranks <= MOST_RANKS and 0 <= call.size_bytes < 2**63
    if not (sound and 0 <= call.seconds < math.inf and 0 <= call.bus_bandwidth < math.inf):
        raise ValueError(f"rank {call.rank} of {call.ranks}, {call.size_bytes} bytes in {call.seconds} s")
    return call


def _tests(met: Iterable[dict[int, _Call]], path: str) -> Iterator[CollectiveTest]:
    """Each kind of collective and number of ranks as a test: by size the median of the collectives' own times."""
    sizes = defaultdict[tuple[str, int], dict[int, list[_Call]]](lambda: defaultdict(list))
    hosts = defaultdict[tuple[str, int], dict[str, None]](dict)
    for calls in met:
        own = min(calls.values(), key=lambda call: call.seconds)
        hosts[own.operation, own.ranks] |= dict.fromkeys(call.host for call in calls.values())
        if own.seconds and own.size_bytes:
            sizes[own.operation, own.ranks][own.size_bytes].append(own)
    for (operation, ranks), rows in sorted(sizes.items()):
        if ranks > 1:
            tested = tuple(
                TestedSize(size, median(c.seconds for c in found), median(c.bus_bandwidth for c in found), 0)
                for size, found in sorted(rows.items())
            )
            yield CollectiveTest(path, operation, ranks, tuple(hosts[operation, ranks]), "", tested)


def _late(met: Iterable[dict[int, _Call]]) -> LateRank | None:
    """The rank that most often enters last, if it does so in more than half of the collectives."""
    last, waits = defaultdict[str, Counter[int]](Counter), defaultdict[tuple[str, int], list[float]](list)
    hosts = dict[tuple[str, int], str]()
    for calls in met:
        own = min(calls.values(), key=lambda call: call.seconds)
        if len(calls) == own.ranks > 1:
            last[own.group][own.rank] += 1
            hosts[own.group, own.rank] = own.host
            waits[own.group, own.rank].append(median(c.seconds for c in calls.values() if c is not own) - own.seconds)
    found = [
        LateRank(group, rank, hosts[group, rank], times / counts.total(), counts.total(), median(waits[group, rank]))
        for group, counts in last.items()
        for rank, times in counts.most_common(1)
    ]
    named = [one for one in found if one.share > OFTEN and one.collectives >= 10]
    return max(named, key=lambda one: one.share * one.collectives * one.wait_s, default=None)
