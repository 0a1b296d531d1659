"""Where the level of a series of steps changes: binary segmentation of the running median, in units of the noise.

And which series of several lie above the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["FEWEST_STALLS", "NOTICEABLE", "excess_of", "lasting", "levels_of", "period_of", "raised", "upper_rows"]

NOTICEABLE = 0.03
"""Share of the time below which nothing is a cause."""
NOISES = 8.0
"""A stall is this many robust standard deviations above the median, a change of level this many standard errors."""
FEWEST_STALLS = 3
"""Fewer long steps may be chance."""
LONGER_BY = 0.3
"""A stall adds at least this share of a step."""
RARE = 0.34
"""A larger share of long steps is a level, not stalls."""
SHORTEST = 8
"""Steps of the shortest level."""

Floats = NDArray[np.float64]


def levels_of(values: Floats, step_s: float) -> list[tuple[int, int, float]]:
    """Begin, end and median of each stretch of steps on one level."""
    smooth = _running_median(values)
    noise = 1.4826 * float(np.median(np.abs(np.diff(values)))) / 2**0.5
    cuts = _cuts(smooth, 0, len(smooth), max(noise, 1e-3 * step_s))
    while cuts:  # a change that is not noticeable divides nothing
        edges = [0, *cuts, len(values)]
        middles = [float(np.median(values[a:b])) for a, b in itertools.pairwise(edges)]
        steps = [abs(after - before) for before, after in itertools.pairwise(middles)]
        if min(steps) >= NOTICEABLE * step_s:
            break
        del cuts[int(np.argmin(steps))]
    edges = [0, *cuts, len(values)]
    return [(a, b, float(np.median(values[a:b]))) for a, b in itertools.pairwise(edges)]


def _cuts(values: Floats, begin: int, end: int, noise: float) -> list[int]:
    """Places at which the mean changes by more than its noise allows, in order."""
    count = end - begin
    if count < 2 * SHORTEST:
        return []
    sums = np.cumsum(values[begin:end])
    before = np.arange(SHORTEST, count - SHORTEST + 1)
    left, right = sums[before - 1] / before, (sums[-1] - sums[before - 1]) / (count - before)
    score = np.abs(left - right) * np.sqrt(before * (count - before) / count) / noise
    best = int(score.argmax())
    if score[best] < NOISES:
        return []
    place = begin + int(before[best])
    return [*_cuts(values, begin, place, noise), place, *_cuts(values, place, end, noise)]


def _running_median(values: Floats, width: int = 5) -> Floats:
    """Edges stay where they are, single outliers go."""
    padded = np.pad(values, width // 2, mode="edge")
    middle: Floats = np.median(np.lib.stride_tricks.sliding_window_view(padded, width), axis=1)
    return middle


def raised(levels: Sequence[tuple[int, int, float]], least: float) -> list[tuple[int, int]]:
    """Begin and end of the stretches on this level or above; levels that follow each other are one stretch."""
    stretches: list[tuple[int, int]] = []
    for begin, end, level in levels:
        if level < least:
            continue
        if stretches and stretches[-1][1] == begin:
            begin = stretches.pop()[0]
        stretches.append((begin, end))
    return stretches


def upper_rows(values: Floats) -> tuple[int, ...]:
    """The rows whose means lie above the largest gap between means, at most half of them."""
    order = np.argsort(-values.mean(axis=1), kind="stable")
    gaps = -np.diff(values.mean(axis=1)[order])[: len(order) // 2]
    return tuple(sorted(order[: int(gaps.argmax()) + 1].tolist())) if gaps.size else ()


def period_of(steps: NDArray[np.int64], cost: Floats) -> tuple[int, int]:
    """Distance and place of regular stalls: most steps at this distance stall, and have most of the cost; or zero."""
    longest = int(steps[-1] - steps[0]) // FEWEST_STALLS if cost.any() else 0
    for every in range(2, longest + 1):
        places = steps % every
        by_place = np.bincount(places, weights=cost, minlength=every)
        place = int(by_place.argmax())
        stalled = cost[places == place] > 0
        if by_place[place] >= 0.6 * cost.sum() and stalled.mean() >= 0.8 and len(stalled) >= FEWEST_STALLS:
            return every, place
    return 0, 0


def excess_of(values: Floats, step_s: float) -> Floats:
    """By how much single values of each row are longer than usual; nothing where many are."""
    usual = np.median(values, axis=1, keepdims=True)
    noise = 1.4826 * np.median(np.abs(values - usual), axis=1, keepdims=True)
    is_long = values - usual > np.maximum(LONGER_BY * step_s, NOISES * noise)
    is_long &= is_long.mean(axis=1, keepdims=True) <= RARE
    is_long &= ~lasting(is_long)
    excess: Floats = np.where(is_long, values - usual, 0.0)
    return excess


def lasting(is_long: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Long steps that follow each other at length: a level, not a stall."""
    found = np.zeros_like(is_long)
    for rank, row in enumerate(is_long):
        edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(np.int8), [0]))))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            found[rank, begin:end] = end - begin >= SHORTEST
    return found
