"""Which gradients travel together: the partition into buckets that ends the exchange earliest.

Gradients become ready one after the other; a bucket leaves when its last gradient is ready and the link is free, and
takes alpha + beta * bytes. Sending it also costs the sender's processor an effort, for which the computation of the
gradients after it stands still where both run on the same processor. With r_j the time at which gradient j is ready
and s(i, j) the bytes of gradients i+1..j, the last of k buckets that hold j gradients ends at

    end(j, k) = min over i < j of  max(end(i, k-1), r_j + (k-1) * effort) + alpha + beta * s(i, j)

which gives the best of all partitions, not only the best uniform size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["LinkCost", "buckets_from", "buckets_up_to", "exchange_end", "fit_link", "schedule_buckets"]

MAX_ATOMS = 160
"""More gradients than this are first merged with their neighbours, so that the search stays quick."""


@dataclass(frozen=True)
class LinkCost:
    """Seconds of an all-reduce: alpha + beta * bytes."""

    alpha: float
    beta: float
    effort: float = 0.0
    """Seconds of this rank's processor that each message takes."""

    def seconds(self, size: float) -> float:
        """Time of one all-reduce of so many bytes."""
        return self.alpha + self.beta * size


def fit_link(small: tuple[int, float], large: tuple[int, float], effort: float = 0.0) -> LinkCost:
    """The cost through two measured sizes; noise never makes a byte free or a message negative."""
    beta = max((large[1] - small[1]) / (large[0] - small[0]), 1e-12)
    return LinkCost(alpha=max(small[1] - beta * small[0], 1e-6), beta=beta, effort=effort)


def schedule_buckets(sizes: Sequence[int], ready: Sequence[float], link: LinkCost) -> list[list[int]]:
    """The best partition of gradients, given in the order in which they become ready."""
    atoms = _atoms(sizes)
    bounds = [0]
    for atom in atoms:
        bounds.append(bounds[-1] + sum(sizes[index] for index in atom))
    moments = [ready[atom[-1]] for atom in atoms]
    ways = [[_Way(0.0, 0, 0, None)]]
    """Of the first j atoms: those of which no other ends earlier with as few buckets."""
    for j in range(1, len(atoms) + 1):
        options = []
        for i in range(j):
            seconds = link.seconds(bounds[j] - bounds[i])
            for way in ways[i]:
                end = max(way.end, moments[j - 1] + way.buckets * link.effort) + seconds
                options.append(_Way(end, way.buckets + 1, i, way))
        ways.append(_best(options))
    buckets: list[list[int]] = []
    last: _Way | None = ways[-1][0]
    j = len(atoms)
    while last is not None and j > 0:
        buckets.insert(0, [index for atom in atoms[last.cut : j] for index in atom])
        j, last = last.cut, last.before
    return buckets


class _Way(NamedTuple):
    """How the first gradients can be exchanged."""

    end: float
    buckets: int
    cut: int
    """Where the last bucket begins."""
    before: _Way | None


def _best(options: list[_Way]) -> list[_Way]:
    """The earliest first, then those that end later but with fewer buckets."""
    found: list[_Way] = []
    for option in sorted(options, key=lambda option: option[:2]):
        if not found or option.buckets < found[-1].buckets:
            found.append(option)
    return found


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
    for sent, bucket in enumerate(buckets):
        end = max(end, ready[bucket[-1]] + sent * link.effort) + link.seconds(sum(sizes[index] for index in bucket))
    return end


def _atoms(sizes: Sequence[int]) -> list[list[int]]:
    if len(sizes) <= MAX_ATOMS:
        return [[index] for index in range(len(sizes))]
    return buckets_up_to(sizes, 2 * sum(sizes) / MAX_ATOMS)
