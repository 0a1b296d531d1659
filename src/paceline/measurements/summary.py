"""Medians with bootstrap intervals over launches, comparisons, phases.

Launches are the independent samples. The throughput of a launch is all its samples divided by all its time (harmonic).
The throughput of a case is the median over its launches, with a percentile bootstrap interval. Two cases are compared
by the ratio of their medians with its interval and by a rank test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.measurements.run import PHASES

__all__ = [
    "FEWEST_LAUNCHES",
    "Comparison",
    "Interval",
    "compare",
    "median_interval",
    "phases_of",
    "speedup_interval",
    "split_closes",
]


CLOSES_WITHIN = 0.05
"""Largest remainder of a split into phases, as a share of the step, at which the split can be trusted."""
FEWEST_LAUNCHES = 4
"""Fewest launches of each side of a comparison with a verdict."""
RESAMPLES = 4000
"""Number of bootstrap resamples; the error of an interval is then below a tenth of its width."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval around it."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """Full width relative to the value."""
        return (self.high - self.low) / self.value if self.value else float("inf")

    @property
    def half(self) -> float:
        """Half the relative width, for 'value ± half'."""
        return self.width / 2


def median_interval(sample: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Median over launches and its bootstrap interval; the interval of a single launch is infinite."""
    values = np.asarray(sample, dtype=np.float64)
    middle = float(np.median(values))
    if values.size < 2:
        return Interval(middle, float("-inf"), float("inf"))
    low, high = _bounds(_resampled_medians(values, seed), confidence)
    return Interval(middle, low, high)


def speedup_interval(
    sample: Sequence[float], base: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Ratio of two medians over launches, with the bootstrap interval of the ratio."""
    top, bottom = np.asarray(sample, dtype=np.float64), np.asarray(base, dtype=np.float64)
    value = float(np.median(top) / np.median(bottom))
    if min(top.size, bottom.size) < 2:
        return Interval(value, float("-inf"), float("inf"))
    ratios = _resampled_medians(top, seed) / _resampled_medians(bottom, seed + 1)
    return Interval(value, *_bounds(ratios, confidence))


def _resampled_medians(values: Floats, seed: int) -> Floats:
    """Medians of resamples of sorted values; the indices of the medians are computed once for every size."""
    lower, upper = _middles(values.size, seed)
    ordered = np.sort(values)
    medians: Floats = (ordered[lower] + ordered[upper]) / 2
    return medians


@lru_cache(maxsize=64)
def _middles(size: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices, in the sorted launches, of the two middle elements of each resample."""
    picks = np.sort(np.random.default_rng(seed).integers(0, size, size=(RESAMPLES, size)), axis=1)
    return picks[:, (size - 1) // 2].copy(), picks[:, size // 2].copy()


def _bounds(estimates: Floats, confidence: float) -> tuple[float, float]:
    """Both quantiles by linear interpolation, as `numpy.quantile` does but without its overhead."""
    tail = (1 - confidence) / 2 * (estimates.size - 1)
    places = (tail, estimates.size - 1 - tail)
    below = [int(place) for place in places]
    above = [min(place + 1, estimates.size - 1) for place in below]
    ordered = np.partition(estimates, [*below, *above])
    low, high = (
        ordered[one] + (place - one) * (ordered[other] - ordered[one])
        for place, one, other in zip(places, below, above, strict=True)
    )
    return float(low), float(high)


@dataclass(frozen=True)
class Comparison:
    """Two groups of launches: the ratio of their medians, and whether they differ significantly."""

    ratio: Interval
    p_value: float
    """Two-sided Mann-Whitney rank test."""
    launches: tuple[int, int]
    verdict: Literal["faster", "slower", "no difference shown", "too few launches"]


def compare(sample: Sequence[float], base: Sequence[float], *, confidence: float = 0.95, seed: int = 0) -> Comparison:
    """Compare the throughput of two groups of launches."""
    from scipy.stats import mannwhitneyu

    ratio = speedup_interval(sample, base, confidence=confidence, seed=seed)
    counts = (len(sample), len(base))
    p_value = float(mannwhitneyu(sample, base, alternative="two-sided").pvalue)
    verdict: Literal["faster", "slower", "no difference shown", "too few launches"]
    if min(counts) < FEWEST_LAUNCHES:
        verdict = "too few launches"
    elif p_value > 1 - confidence or ratio.low <= 1 <= ratio.high:
        verdict = "no difference shown"
    else:
        verdict = "faster" if ratio.value > 1 else "slower"
    return Comparison(ratio, p_value, counts, verdict)


def phases_of(passes: dict[str, float]) -> dict[str, float]:
    """Seconds of each exposed phase, by differences between passes; `other` makes them sum to the clean step.

    forward pass; compute = forward + backward; exchange adds gradient exchange; resident adds the update;
    copied adds copying the batch to the device; full adds reading it. A pass that did not run adds nothing. The last
    pass repeats the complete step, and so does a pass that equals it: the clean step replaces them, so `other` is
    not zero only where a part took longer than the complete step.
    """
    order = (("forward", "forward"), ("compute", "backward"), ("exchange", "aggregate"), ("resident", "update"))
    ran = [(passes[name], phase) for name, phase in (*order, ("copied", "h2d"), ("full", "io")) if name in passes]
    result = dict.fromkeys((*PHASES, "other"), 0.0)
    reached = 0.0
    for seconds, phase in ran:
        until = passes["clean"] if seconds == ran[-1][0] else seconds
        result[phase] = max(0.0, until - reached)
        reached = max(reached, until)
    result["other"] = passes["clean"] - sum(result.values())
    return result


def split_closes(phases: dict[str, float]) -> bool:
    """Whether the phases sum to the step without a large remainder; true without phases."""
    step = sum(phases.values())
    return not phases or abs(phases["other"]) <= CLOSES_WITHIN * step
