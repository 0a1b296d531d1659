"""How a batch is split over unequal devices so that all finish at the same time.

A device takes a + b * n seconds for n samples; where its memory holds only c samples at once, it takes them in chunks
and pays a for each:

    t(n) = a * ceil(n / c) + b * n            minimise  max_i t_i(n_i)   with   sum_i n_i = N,  n_i whole

Every t is increasing, so the best finish time T is the smallest for which the devices can take N samples together.
Standard library only: training processes import this module.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InputError

__all__ = ["Cost", "Split", "proportional_split", "split_batch"]

HALVINGS = 64


@dataclass(frozen=True)
class Cost:
    """Cost of a step on one device."""

    a: float
    """Seconds of a chunk of any size: launches, input, and other costs that do not grow with the batch."""
    b: float
    """Seconds per sample."""
    chunk: int | None = None
    """Samples that fit into its memory at once."""
    least: int = 0
    """Minimum samples, for instance because a layer needs every rank to participate."""

    def seconds(self, samples: int) -> float:
        """Time of a step with this many samples; none cost nothing."""
        if samples <= 0:
            return 0.0
        chunks = 1 if self.chunk is None else -(-samples // self.chunk)
        return self.a * chunks + self.b * samples

    def samples_within(self, seconds: float) -> int:
        """The most samples it finishes in this time."""
        if self.chunk is None:
            return max(self.least, math.floor((seconds - self.a) / self.b))
        whole = self.a + self.b * self.chunk
        chunks = max(0, math.floor(seconds / whole))
        rest = math.floor((seconds - chunks * whole - self.a) / self.b)
        return max(self.least, chunks * self.chunk + max(rest, 0))


@dataclass(frozen=True)
class Split:
    """Samples of each device, and when the last of them is done."""

    samples: tuple[int, ...]
    seconds: float


def split_batch(costs: Sequence[Cost], total: int) -> Split:
    """The split of `total` samples whose last device finishes first."""
    least = sum(cost.least for cost in costs)
    if least > total:
        raise InputError(
            f"a global batch of {total} is too small for {len(costs)} devices that need at least {least} samples",
            hint=f"use a global batch of {least} or more, or fewer devices",
        )
    finish = _finish_time(costs, total)
    samples = [min(cost.samples_within(finish), total) for cost in costs]
    _give_back(samples, costs, sum(samples) - total)
    return Split(tuple(samples), max(cost.seconds(n) for cost, n in zip(costs, samples, strict=True)))


def proportional_split(weights: Sequence[float], total: int, *, least: Sequence[int] = ()) -> tuple[int, ...]:
    """Whole shares of `total` nearest to the weights, none below its least; they sum to the total exactly.

    >>> proportional_split([90, 9, 1], 10, least=[1, 1, 1])
    (8, 1, 1)
    """
    needed = list(least) or [0] * len(weights)
    if sum(needed) > total:
        raise InputError(f"{total} samples are too few for shares of at least {needed}", hint="raise the global batch")
    raised = [False] * len(weights)
    while True:
        free = [weight for weight, high in zip(weights, raised, strict=True) if not high]
        rest = iter(_nearest(free, total - sum(n for n, high in zip(needed, raised, strict=True) if high)))
        samples = [n if high else next(rest) for n, high in zip(needed, raised, strict=True)]
        low = [n < must for n, must in zip(samples, needed, strict=True)]
        if not any(low):
            return tuple(samples)
        raised = [high or below for high, below in zip(raised, low, strict=True)]


def _nearest(weights: Sequence[float], total: int) -> list[int]:
    """Rounded shares; the remaining samples go to the largest remainders."""
    scale = total / (sum(weights) or 1.0)
    samples = [math.floor(weight * scale) for weight in weights]
    order = sorted(range(len(weights)), key=lambda i: samples[i] - weights[i] * scale)
    for index in order[: total - sum(samples)]:
        samples[index] += 1
    return samples


def _finish_time(costs: Sequence[Cost], total: int) -> float:
    counts = Counter(costs)  # many devices are equal
    low, high = 0.0, min(cost.seconds(total) for cost in counts)
    high = max(high, *(cost.seconds(cost.least) for cost in counts)) if len(costs) > 1 else high
    high *= 1 + 1e-12
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if sum(cost.samples_within(middle) * count for cost, count in counts.items()) >= total:
            high = middle
        else:
            low = middle
    return high


def _give_back(samples: list[int], costs: Sequence[Cost], surplus: int) -> None:
    """Remove the excess samples from the devices that finish last."""
    ends = [(-costs[i].seconds(n), i) for i, n in enumerate(samples) if n > costs[i].least]
    heapq.heapify(ends)
    for _ in range(surplus):
        _, last = heapq.heappop(ends)
        samples[last] -= 1
        if samples[last] > costs[last].least:
            heapq.heappush(ends, (-costs[last].seconds(samples[last]), last))
