"""What a case's gradient exchange costs, seen through the model: two numbers that agree with what was measured.

    cost of a bucket = startup + bytes x per_byte
    exposed          = the model's recurrence over buckets, when they overlap with backward; their sum, when not

Gradients, their sizes and the order in which they are ready come from the traced steps. Start-up starts from the link's
latency and the usual cost of one call; bytes account for what then is missing to the exposed time that was measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from paceline.explain.evidence import CaseEvidence
from paceline.model.iteration.fusion import bucket_bytes, buckets_of_size, optimal_buckets
from paceline.model.iteration.recurrence import exposed_fifo, exposed_none

__all__ = ["Exchange", "exchange_of"]

CALL_S = 150e-6
"""Usual cost of one exchange beside the link's own latency: a call through Gloo or gRPC on a processor."""
FASTEST_PER_BYTE = 1 / 2e9
"""Moving and adding gradients through a processor's memory; no link makes an exchange faster than that here."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Exchange:
    """Gradients of one step in the order in which they are ready, how they are bundled, and what that costs."""

    sizes: tuple[float, ...]
    ready: tuple[float, ...]
    """Seconds after the start of backward."""
    last: tuple[int, ...]
    """Index of the last gradient of each bucket."""
    overlap: bool
    startup: float
    per_byte: float

    @property
    def num_exchanges(self) -> int:
        """Exchanges per step."""
        return len(self.last)

    @property
    def total_bytes(self) -> float:
        """Bytes of all gradients."""
        return sum(self.sizes)

    def cost(self, size: Floats) -> Floats:
        """Seconds of an exchange of each size."""
        seconds: Floats = self.startup + np.asarray(size) * self.per_byte
        return seconds

    @property
    def communication(self) -> float:
        """Seconds of all exchanges, hidden or not."""
        return float(self.cost(self.bucket_sizes).sum())

    @property
    def exposed(self) -> float:
        """Seconds by which the exchanges outlast backward."""
        return _exposed(self.bucket_ready, self.cost(self.bucket_sizes), overlap=self.overlap)

    @cached_property
    def bucket_sizes(self) -> Floats:
        """Bytes of each bucket."""
        return bucket_bytes(np.asarray(self.sizes), np.asarray(self.last))

    @cached_property
    def bucket_ready(self) -> Floats:
        """When each bucket is ready."""
        return np.asarray(self.ready)[list(self.last)]

    def rebucketed(self, limit: float) -> Exchange:
        """The same gradients in buckets of up to this size."""
        last = buckets_of_size(np.asarray(self.sizes), limit)
        return replace(self, last=tuple(int(index) for index in last))

    def best_buckets(self) -> Exchange:
        """The same gradients in the buckets that end first, as far as one size for all can come to it."""
        candidates = [self.rebucketed(self.total_bytes / parts) for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
        return min(candidates, key=lambda item: item.exposed)

    @property
    def bucket_limit(self) -> float:
        """Bytes of the largest bucket."""
        return float(self.bucket_sizes.max())

    def bound(self) -> float:
        """Exposed seconds of the best possible bundling, whatever its sizes."""
        sizes, ready = np.asarray(self.sizes), np.asarray(self.ready)
        last = optimal_buckets(ready, sizes, self.cost)
        return replace(self, last=tuple(int(index) for index in last)).exposed


@lru_cache(maxsize=4096)
def exchange_of(evidence: CaseEvidence) -> Exchange | None:
    """The exchange of a case; None with one rank, without spans or with a policy that nobody knows."""
    policy, result = evidence.policy, evidence.result
    gradients = _gradients(evidence)
    if evidence.run.ranks < 2 or policy is None or not gradients or not result.phases:
        return None
    sizes, ready = gradients
    total = result.phases["backward"]
    scaled = tuple(time * total / ready[-1] for time in ready) if ready[-1] > 0 else ready
    factor = 0.5 if policy.compression == "float16" else 1.0
    plain = Exchange(
        sizes=tuple(size * factor for size in sizes),
        ready=scaled,
        last=tuple(range(len(sizes))),
        overlap=policy.overlap,
        startup=_startup(evidence),
        per_byte=FASTEST_PER_BYTE,
    )
    return _fitted(_bundled(plain, evidence), result.phases["aggregate"])


def _gradients(evidence: CaseEvidence, rank: int = 0) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Sizes and median ready times after the start of backward, in the order of readiness."""
    ends: dict[str, list[float]] = defaultdict(list)
    sizes: dict[str, float] = {}
    starts: dict[int, float] = {}
    for span in evidence.spans:
        if span.rank == rank and span.phase == "backward":
            starts[span.step] = min(span.start_s, starts.get(span.step, span.start_s))
            ends[span.name].append(span.start_s + span.seconds - starts[span.step])
            sizes[span.name] = float(span.size_bytes or 0)
    if not ends:
        return None
    order = sorted(ends, key=lambda name: median(ends[name]))
    return tuple(sizes[name] for name in order), tuple(median(ends[name]) for name in order)


def _startup(evidence: CaseEvidence) -> float:
    """Latency of every hop of a ring through the ranks, and the call itself."""
    cluster, ranks = evidence.cluster, evidence.run.ranks
    used = {item.host for item in evidence.placed}
    if cluster is None or not used:
        return CALL_S
    links = [cluster.hosts[index].link if len(used) > 1 else cluster.hosts[index].inside for index in used]
    return CALL_S + 2 * (ranks - 1) * max(link.latency for link in links)


def _bundled(exchange: Exchange, evidence: CaseEvidence) -> Exchange:
    """In the buckets that the framework's policy makes of them."""
    policy = evidence.policy
    assert policy is not None
    if policy.fusion == "all" or policy.aggregation == "parameter_server":
        return exchange.rebucketed(float("inf"))
    if policy.fusion == "bytes" and policy.bucket is not None:
        first = policy.first_bucket if policy.overlap else None
        last = buckets_of_size(np.asarray(exchange.sizes), policy.bucket, first=first)
        return replace(exchange, last=tuple(int(index) for index in last))
    return exchange


def _fitted(exchange: Exchange, measured: float) -> Exchange:
    """With seconds per byte such that the exposed time is the measured one; start-up shrinks if it alone exceeds it."""
    sizes, ready = exchange.bucket_sizes, exchange.bucket_ready

    def exposed(startup: float, per_byte: float) -> float:
        return _exposed(ready, startup + sizes * per_byte, overlap=exchange.overlap)

    if exchange.exposed >= measured:
        bounds = (0.0, exchange.startup)
        return replace(exchange, startup=_bisect(lambda x: exposed(x, exchange.per_byte), measured, bounds))
    high = exchange.per_byte
    while exposed(exchange.startup, high) < measured and high < 1.0:
        high *= 2
    bounds = (exchange.per_byte, high)
    return replace(exchange, per_byte=_bisect(lambda x: exposed(exchange.startup, x), measured, bounds))


def _exposed(ready: Floats, costs: Floats, *, overlap: bool) -> float:
    return float(exposed_fifo(ready, costs) if overlap else exposed_none(costs))


def _bisect(grows: Callable[[float], float], target: float, bounds: tuple[float, float]) -> float:
    """Where a growing function reaches the target; the nearer bound if it does not."""
    low, high = bounds
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if grows(middle) < target else (low, middle)
    return (low + high) / 2
