"""The cost of a case's gradient exchange: start-up and cost per byte, fitted to the measured exposed time.

    cost of a bucket = startup + bytes x per_byte
    exposed          = the model's recurrence over buckets, when they overlap with backward; their sum, when not,
                       and where exchanges need the same cores as compute

Gradients, their sizes and their ready times come from the traced steps. The start-up is the latency of the link plus
the usual cost of one call; the cost per byte accounts for the rest of the measured exposed time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.cost.buckets import bucket_bytes, fill_buckets, optimal_buckets, policy_buckets
from paceline.cost.recurrence import exposed_fifo, exposed_none
from paceline.explain.cases.evidence import CaseEvidence, once_per_case
from paceline.measurements.summary import phases_of

__all__ = ["GradientExchange", "exchange_like", "exchanges_by_launch", "gradient_exchange", "gradients_of"]

CALL_S = 150e-6
"""Usual cost of one exchange in addition to the latency of the link: a call of Gloo or gRPC on a processor."""
FASTEST_PER_BYTE = 1 / 2e9
"""Cost per byte of moving and adding gradients in memory, a lower bound that no link removes."""

Floats = NDArray[np.float64]
Gradients = tuple[tuple[float, ...], tuple[float, ...]]
"""Sizes and ready times after the start of the backward pass, in order of readiness."""


@dataclass(frozen=True)
class GradientExchange:
    """The gradients of one step in order of readiness, their buckets, and the cost of the exchange."""

    sizes: tuple[float, ...]
    ready: tuple[float, ...]
    """Ready times in seconds after the start of the backward pass."""
    last: tuple[int, ...]
    """Index of the last gradient of each bucket."""
    overlap: bool
    startup: float
    per_byte: float
    contended: bool = False
    """Whether exchanges need the same cores as compute: then overlap hides nothing."""

    @property
    def num_exchanges(self) -> int:
        """Number of exchanges per step."""
        return len(self.last)

    @property
    def total_bytes(self) -> float:
        """Bytes of all gradients."""
        return sum(self.sizes)

    def cost(self, size: ArrayLike) -> Floats:
        """Seconds of an exchange of each size."""
        seconds: Floats = self.startup + np.asarray(size) * self.per_byte
        return seconds

    @property
    def communication(self) -> float:
        """Seconds of all exchanges, exposed or hidden."""
        return float(self.cost(self.bucket_sizes).sum())

    @property
    def exposed(self) -> float:
        """Seconds of exchange after the end of the backward pass."""
        costs = self.cost(self.bucket_sizes)
        return float(exposed_fifo(self.bucket_ready, costs) if self.hides else exposed_none(costs))

    @property
    def hides(self) -> bool:
        """Whether exchanges can overlap with the backward pass."""
        return self.overlap and not self.contended

    @cached_property
    def bucket_sizes(self) -> Floats:
        """Bytes of each bucket."""
        return np.asarray(bucket_bytes(self.sizes, self.last))

    @cached_property
    def bucket_ready(self) -> Floats:
        """When each bucket is ready."""
        return np.asarray(self.ready)[list(self.last)]

    def rebucketed(self, limit: float) -> GradientExchange:
        """The exchange with buckets of up to this size."""
        return replace(self, last=tuple(fill_buckets(self.sizes, [limit])))

    def best_buckets(self) -> GradientExchange:
        """The exchange with buckets of the best single size."""
        candidates = [self.rebucketed(self.total_bytes / parts) for parts in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)]
        return min(candidates, key=lambda item: item.exposed)

    @property
    def bucket_limit(self) -> float:
        """Bytes of the largest bucket."""
        return float(self.bucket_sizes.max())

    def bound(self) -> float:
        """Exposed seconds of the optimal buckets of any sizes."""
        return replace(self, last=tuple(optimal_buckets(self.sizes, self.ready, self.cost))).exposed


@once_per_case
def gradient_exchange(evidence: CaseEvidence) -> GradientExchange | None:
    """The exchange of a case; None with one rank, without spans or with an unknown policy."""
    return _exchange(evidence, gradients_of(evidence), evidence.result.phases)


def exchange_like(evidence: CaseEvidence, traced: CaseEvidence) -> GradientExchange | None:
    """The exchange of a case without traces, with the gradients of another case of the same network.

    The sizes are equal; the gradients are assumed to be ready at the same fractions of the backward pass.
    """
    return gradient_exchange(evidence) or _exchange(evidence, gradients_of(traced), evidence.result.phases)


@once_per_case
def exchanges_by_launch(evidence: CaseEvidence) -> tuple[tuple[float, tuple[GradientExchange, ...]], ...]:
    """The step and the fitted exchange of each launch, with half and with twice the usual cost of a call."""
    fitted = []
    for passes in evidence.launches.passes:
        fits = [
            _exchange(evidence, gradients_of(evidence), phases_of(passes), call=CALL_S * factor)
            for factor in (0.5, 1.0, 2.0)
        ]
        fitted.append((passes["clean"], tuple(fit for fit in fits if fit is not None)))
    return tuple(item for item in fitted if item[1])


def _exchange(
    evidence: CaseEvidence, gradients: Gradients | None, phases: dict[str, float], *, call: float = CALL_S
) -> GradientExchange | None:
    policy = evidence.policy
    if evidence.run.ranks < 2 or policy is None or not gradients or not phases:
        return None
    sizes, ready = gradients
    total = phases["backward"]
    scaled = tuple(time * total / ready[-1] for time in ready) if ready[-1] > 0 else ready
    factor = 0.5 if policy.compression == "float16" else 1.0
    plain = GradientExchange(
        sizes=tuple(size * factor for size in sizes),
        ready=scaled,
        last=tuple(range(len(sizes))),
        overlap=policy.overlap,
        startup=call + _hops(evidence),
        per_byte=FASTEST_PER_BYTE,
        contended=evidence.shares_cores,
    )
    return _fitted(_bundled(plain, evidence), phases["aggregate"])


@once_per_case
def gradients_of(evidence: CaseEvidence) -> Gradients | None:
    """Sizes and median ready times after the start of the backward pass on rank 0, in order of readiness."""
    ends: dict[str, list[float]] = defaultdict(list)
    sizes: dict[str, float] = {}
    starts: dict[int, float] = {}
    for span in evidence.spans:
        if span.rank == 0 and span.phase == "backward":
            starts[span.step] = min(span.start_s, starts.get(span.step, span.start_s))
            ends[span.name].append(span.start_s + span.seconds - starts[span.step])
            sizes[span.name] = float(span.size_bytes or 0)
    if not ends:
        return None
    order = sorted(ends, key=lambda name: median(ends[name]))
    return tuple(sizes[name] for name in order), tuple(median(ends[name]) for name in order)


def _hops(evidence: CaseEvidence) -> float:
    """Latency of every hop of a ring through the ranks."""
    cluster, ranks = evidence.cluster, evidence.run.ranks
    used = {item.host for item in evidence.placed}
    if cluster is None or not used:
        return 0.0
    links = [cluster.hosts[index].link if len(used) > 1 else cluster.hosts[index].inside for index in used]
    return 2 * (ranks - 1) * max(link.latency for link in links)


def _bundled(exchange: GradientExchange, evidence: CaseEvidence) -> GradientExchange:
    """The exchange in the buckets of the framework's policy."""
    policy = evidence.policy
    assert policy is not None
    return replace(exchange, last=tuple(policy_buckets(policy, exchange.sizes, exchange.ready, exchange.cost)))


def _fitted(exchange: GradientExchange, measured: float) -> GradientExchange:
    """Fit the cost per byte to the measured exposed time; the start-up is reduced if it alone exceeds that time.

    The exposed time is the maximum, over buckets k, of the exchanges from k on if k starts when it is ready. Each is
    linear in start-up and in seconds per byte, so the solution has a closed form.
    """
    sizes, ready = exchange.bucket_sizes, exchange.bucket_ready
    late, count, data = ready[-1] - ready, np.arange(len(sizes), 0, -1), np.cumsum(sizes[::-1])[::-1]
    if not exchange.hides:
        late, count, data = np.zeros(1), count[:1], data[:1]
    if exchange.exposed >= measured:
        startup = float(((measured + late - data * exchange.per_byte) / count).min())
        return replace(exchange, startup=min(exchange.startup, max(0.0, startup)))
    per_byte = float(((measured + late - count * exchange.startup) / np.maximum(data, 1.0)).min())
    return replace(exchange, per_byte=max(per_byte, exchange.per_byte))
