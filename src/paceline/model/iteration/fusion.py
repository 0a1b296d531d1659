"""Which gradients travel together: a framework's rule, the optimum by dynamic programming, MG-WFBP's greedy rule.

Exchange of a bucket of n bytes costs `startup + n * per_byte`. Gradients are given in the order in which they become
ready; a bucket is a run of consecutive gradients and is ready when its last one is.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["bucket_bytes", "buckets_of_size", "cycle_buckets", "finish_of", "mgwfbp_buckets", "optimal_buckets"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def buckets_of_size(sizes: Floats, limit: float, *, first: float | None = None) -> Ints:
    """Index of the last gradient of each bucket: a bucket closes when it holds at least its limit.

    A limit of 0 sends every gradient by itself. This is how PyTorch's reducer closes buckets.
    """
    last, held, cap = [], 0.0, limit if first is None else first
    for index, size in enumerate(sizes):
        held += float(size)
        if held >= cap:
            last.append(index)
            held, cap = 0.0, limit
    if not last or last[-1] != len(sizes) - 1:
        last.append(len(sizes) - 1)
    return np.asarray(last, dtype=np.int64)


def cycle_buckets(
    ready: Floats, sizes: Floats, limit: float, *, cycle: float, cost: Callable[[Floats], Floats]
) -> Ints:
    """Buckets of a background thread that looks every `cycle` seconds and sends what is ready, up to the limit.

    While an exchange runs, gradients gather for the next: this is Horovod's tensor fusion.
    """
    last: list[int] = []
    first, free = 0, 0.0
    while first < len(sizes):
        start = max(free, np.ceil(float(ready[first]) / cycle) * cycle)
        held = np.cumsum(sizes[first:])
        count = max(1, int(np.sum((ready[first:] <= start) & (held <= limit))))
        last.append(first + count - 1)
        free = start + float(cost(held[count - 1 : count])[0])
        first += count
    return np.asarray(last, dtype=np.int64)


def bucket_bytes(sizes: Floats, last: Ints) -> Floats:
    """Bytes of each bucket."""
    ends = np.cumsum(sizes)[last]
    return np.diff(ends, prepend=0.0)


def finish_of(ready: Floats, sizes: Floats, last: Ints, cost: Callable[[Floats], Floats]) -> float:
    """When the last exchange ends with these buckets."""
    end = 0.0
    for at, seconds in zip(ready[last], cost(bucket_bytes(sizes, last)), strict=True):
        end = max(end, float(at)) + float(seconds)
    return end


def optimal_buckets(ready: Floats, sizes: Floats, cost: Callable[[Floats], Floats]) -> Ints:
    """The buckets that end first, exactly: best[k] = min over j of max(best[j], ready[k]) + cost(bytes j+1..k).

    Optimal because an earlier end of what went before never delays what follows; O(L^2) costs in L array calls.
    """
    count = len(sizes)
    total = np.concatenate([[0.0], np.cumsum(sizes)])
    best = np.zeros(count + 1)
    came_from = np.zeros(count + 1, dtype=np.int64)
    for k in range(1, count + 1):
        ends = np.maximum(best[:k], ready[k - 1]) + cost(total[k] - total[:k])
        came_from[k] = int(np.argmin(ends))
        best[k] = ends[came_from[k]]
    last, k = [], count
    while k > 0:
        last.append(k - 1)
        k = int(came_from[k])
    return np.asarray(last[::-1], dtype=np.int64)


def mgwfbp_buckets(ready: Floats, sizes: Floats, *, startup: float, per_byte: float) -> Ints:
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
    return np.asarray(last, dtype=np.int64)
