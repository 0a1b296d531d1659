"""Which gradients travel together: the partition into buckets that ends the exchange earliest.

Gradients become ready one after the other; a bucket leaves when its last gradient is ready and the link is free, and
takes alpha + beta * bytes. With r_j the time at which gradient j is ready and s(i, j) the bytes of gradients i+1..j:

    end(j) = min over i < j of  max(end(i), r_j) + alpha + beta * s(i, j)

which gives the best of all partitions, not only the best uniform size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LinkCost", "buckets_from", "buckets_up_to", "exchange_end", "fit_link", "schedule_buckets"]

MAX_ATOMS = 160
"""More gradients than this are first merged with their neighbours, so that the search stays quick."""


@dataclass(frozen=True)
class LinkCost:
    """Seconds of an all-reduce: alpha + beta * bytes."""

    alpha: float
    beta: float

    def seconds(self, size: float) -> float:
        """Time of one all-reduce of so many bytes."""
        return self.alpha + self.beta * size


def fit_link(small: tuple[int, float], large: tuple[int, float]) -> LinkCost:
    """The cost through two measured sizes; noise never makes a byte free or a message negative."""
    beta = max((large[1] - small[1]) / (large[0] - small[0]), 1e-12)
    return LinkCost(alpha=max(small[1] - beta * small[0], 1e-6), beta=beta)


def schedule_buckets(sizes: Sequence[int], ready: Sequence[float], link: LinkCost) -> list[list[int]]:
    """The best partition of gradients, given in the order in which they become ready."""
    atoms = _atoms(sizes)
    bounds = [0]
    for atom in atoms:
        bounds.append(bounds[-1] + sum(sizes[index] for index in atom))
    moments = [ready[atom[-1]] for atom in atoms]
    ends, cuts = [0.0], [0]
    for j in range(1, len(atoms) + 1):
        options = [max(ends[i], moments[j - 1]) + link.seconds(bounds[j] - bounds[i]) for i in range(j)]
        best = min(range(j), key=options.__getitem__)
        ends.append(options[best])
        cuts.append(best)
    buckets: list[list[int]] = []
    j = len(atoms)
    while j > 0:
        buckets.insert(0, [index for atom in atoms[cuts[j] : j] for index in atom])
        j = cuts[j]
    return buckets


def buckets_up_to(sizes: Sequence[int], limit: float) -> list[list[int]]:
    """Neighbours filled together up to a size; one that is larger is alone."""
    buckets: list[list[int]] = []
    filled = float("inf")
    for index, size in enumerate(sizes):
        if filled + size > limit:
            buckets.append([])
            filled = 0.0
        buckets[-1].append(index)
        filled += size
    return buckets


def buckets_from(sizes: Sequence[int], limits: Sequence[float]) -> list[list[int]]:
    """Neighbours filled together until a bucket reaches its limit; the last limit holds for all that follow.

    This is how DistributedDataParallel fills its buckets, so that equal buckets give equal rounding.
    """
    buckets: list[list[int]] = [[]]
    filled = 0
    for index, size in enumerate(sizes):
        if buckets[-1] and filled >= limits[min(len(buckets), len(limits)) - 1]:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += size
    return buckets


def exchange_end(
    buckets: Sequence[Sequence[int]], sizes: Sequence[int], ready: Sequence[float], link: LinkCost
) -> float:
    """When the last bucket has arrived."""
    end = 0.0
    for bucket in buckets:
        end = max(end, ready[bucket[-1]]) + link.seconds(sum(sizes[index] for index in bucket))
    return end


def _atoms(sizes: Sequence[int]) -> list[list[int]]:
    if len(sizes) <= MAX_ATOMS:
        return [[index] for index in range(len(sizes))]
    return buckets_up_to(sizes, 2 * sum(sizes) / MAX_ATOMS)
