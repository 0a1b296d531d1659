"""Which gradients travel together: how frameworks fill buckets, MG-WFBP's greedy rule, and the optimum.

Gradients are given in the order in which they become ready. A bucket is a run of consecutive gradients; it is ready
when its last gradient is, and leaves when the link is free. Buckets are written as the index of the last gradient of
each. Standard library and Python 3.9 only: training processes and measured processes import this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.catalog import Policy

__all__ = [
    "LinkCost",
    "bucket_bytes",
    "bucket_members",
    "cycle_buckets",
    "fill_buckets",
    "fit_link",
    "mgwfbp_buckets",
    "optimal_buckets",
    "policy_buckets",
    "schedule_buckets",
]

MAX_ATOMS = 160
"""More gradients than this are first merged with their neighbours, so that the search for the optimum stays quick."""

SecondsOf = Callable[[Sequence[float]], Iterable[float]]
"""Seconds of an exchange of each of some sizes in bytes."""


@dataclass(frozen=True)
class LinkCost:
    """Seconds of an all-reduce: alpha + beta * bytes."""

    alpha: float
    beta: float
    effort: float = 0.0
    """CPU overhead of communication: seconds of this rank's processor that each message takes."""

    def seconds(self, size: float) -> float:
        """Time of one all-reduce of this many bytes."""
        return self.alpha + self.beta * size


def fit_link(small: tuple[int, float], large: tuple[int, float], effort: float = 0.0) -> LinkCost:
    """The cost through two measured sizes; noise never makes a byte free or a message negative."""
    beta = max((large[1] - small[1]) / (large[0] - small[0]), 1e-12)
    return LinkCost(alpha=max(small[1] - beta * small[0], 1e-6), beta=beta, effort=effort)


def bucket_members(last: Iterable[int]) -> list[list[int]]:
    """Indices of the gradients of each bucket."""
    ends = [int(index) for index in last]
    return [list(range(begin, end + 1)) for begin, end in zip([0, *(end + 1 for end in ends)], ends)]


def bucket_bytes(sizes: Iterable[float], last: Iterable[int]) -> list[float]:
    """Bytes of each bucket."""
    totals = list(accumulate(float(size) for size in sizes))
    ends = [totals[index] for index in last]
    return [end - before for before, end in zip([0.0, *ends], ends)]


def fill_buckets(sizes: Iterable[float], limits: Sequence[float]) -> list[int]:
    """A bucket closes when it holds at least its limit; the last limit holds for all buckets that follow.

    This is how PyTorch's reducer closes buckets. A limit of 0 sends every gradient separately.

    >>> fill_buckets([1, 1, 1, 5, 1, 1], [1, 6])
    [0, 3, 5]
    """
    last: list[int] = []
    held, index = 0.0, -1
    for index, size in enumerate(sizes):
        held += float(size)
        if held >= limits[min(len(last), len(limits) - 1)]:
            last.append(index)
            held = 0.0
    return last if last and last[-1] == index else [*last, index]


def cycle_buckets(
    sizes: Sequence[float], ready: Sequence[float], limit: float, *, cycle: float, cost: SecondsOf
) -> list[int]:
    """Buckets of a background thread that polls every `cycle` seconds and sends ready gradients, up to the limit.

    While an exchange runs, gradients collect for the next one: this is Horovod's tensor fusion.
    """
    last: list[int] = []
    first, free = 0, 0.0
    while first < len(sizes):
        start = max(free, math.ceil(ready[first] / cycle) * cycle)
        end, held = first + 1, float(sizes[first])
        while end < len(sizes) and ready[end] <= start and held + sizes[end] <= limit:
            held += float(sizes[end])
            end += 1
        last.append(end - 1)
        free = start + float(next(iter(cost([held]))))
        first = end
    return last


def mgwfbp_buckets(sizes: Sequence[float], ready: Sequence[float], *, startup: float, per_byte: float) -> list[int]:
    """The greedy rule of Shi, Chu and Li, MG-WFBP, 2019.

    A gradient is merged into the next if the next is ready before this one's exchange would end, and either this one
    has not started by then or waiting for the next costs less than a start-up.
    """
    last: list[int] = []
    end, held = 0.0, 0.0
    for index in range(len(sizes)):
        held += float(sizes[index])
        start = max(end, float(ready[index]))
        finish = start + startup + held * per_byte
        if index + 1 < len(sizes):
            next_ready = float(ready[index + 1])
            if next_ready < finish and (start >= next_ready or next_ready - start < startup):
                continue
        last.append(index)
        end, held = finish, 0.0
    return last


if TYPE_CHECKING:
    Partition = tuple[float, int, int, "Partition | None"]
    """How the first gradients are exchanged: end, number of buckets, where the last begins, what went before it."""


def optimal_buckets(
    sizes: Iterable[float], ready: Iterable[float], cost: SecondsOf, *, effort: float = 0.0
) -> list[int]:
    """The buckets that end first, exactly, of all partitions.

    Every message takes an effort of the sender's processor, for which the computation of the gradients after it stands
    still where both run on the same processor. With r_j the time at which gradient j is ready and s(i, j) the bytes of
    gradients i+1..j, the last of k buckets that hold j gradients ends at

        end(j, k) = min over i < j of  max(end(i, k-1), r_j + (k-1) * effort) + cost(s(i, j))
    """
    bounds = [0.0, *accumulate(float(size) for size in sizes)]
    best: list[list[Partition]] = [[(0.0, 0, 0, None)]]
    for count, moment in enumerate(ready, start=1):
        seconds = cost([bounds[count] - bound for bound in bounds[:count]])
        options: list[Partition] = [
            (max(part[0], moment + part[1] * effort) + took, part[1] + 1, cut, part)
            for cut, took in enumerate(seconds)
            for part in best[cut]
        ]
        best.append(_earliest(options) if effort else [min(options)])
    last: list[int] = []
    part: Partition | None = best[-1][0]
    count = len(best) - 1
    while part is not None and count > 0:
        last.append(count - 1)
        count, part = part[2:]
    return last[::-1]


def _earliest(options: list[Partition]) -> list[Partition]:
    """The earliest first, then those that end later but with fewer buckets."""
    kept: list[Partition] = []
    for option in sorted(options, key=lambda option: option[:2]):
        if not kept or option[1] < kept[-1][1]:
            kept.append(option)
    return kept


def schedule_buckets(
    sizes: Sequence[float], ready: Sequence[float], cost: SecondsOf, *, effort: float = 0.0
) -> list[int]:
    """The optimum over at most MAX_ATOMS runs of gradients; the runtime uses it with measured times."""
    if len(sizes) <= MAX_ATOMS:
        return optimal_buckets(sizes, ready, cost, effort=effort)
    atoms = fill_buckets(sizes, [sum(sizes) / MAX_ATOMS])
    merged = optimal_buckets(bucket_bytes(sizes, atoms), [ready[index] for index in atoms], cost, effort=effort)
    return [atoms[index] for index in merged]


def policy_buckets(
    policy: Policy, sizes: Sequence[float], ready: Sequence[float], cost: SecondsOf, *, layers: Sequence[int] = ()
) -> list[int]:
    """The buckets of a framework's policy; `layers` maps gradients to layers."""
    if policy.fusion == "optimal":
        return schedule_buckets(sizes, ready, cost)
    if policy.fusion == "all":
        return [len(sizes) - 1]
    if policy.fusion == "bytes":
        limit = policy.bucket or 0.0
        if policy.cycle and policy.overlap and limit:
            return cycle_buckets(sizes, ready, limit, cycle=policy.cycle, cost=cost)
        first = policy.first_bucket if policy.overlap and policy.first_bucket is not None else limit
        return fill_buckets(sizes, [first, limit])
    if policy.fusion == "tensor" or not layers:
        return list(range(len(sizes)))
    return [i for i in range(len(sizes)) if i + 1 == len(sizes) or layers[i] != layers[i + 1]]
