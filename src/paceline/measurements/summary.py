"""Medians with t intervals over launches, comparisons, phases.

Launches are the independent samples. The throughput of a launch is all its samples divided by its elapsed time. The
throughput of a case is the median over its launches. Its interval is Student's t interval of the logarithms:

    mean(log x) +- t(n-1) scale / sqrt(n),   scale = s(n), or max of s(k), k = pilot .. n, after optional stopping

with s(k) the standard deviation of the first k launches. Launches that were added because the interval was still wide
stop when s happens to be small; the largest s seen makes up for it (docs/decisions/0072). Two cases are compared by
Welch's t interval of the difference of logarithms, or by the paired one where both were launched in the same rounds.

Too few launches are compared by their steps, which depend on each other (docs/decisions/0151).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.measurements.run import PASS_PHASES, PHASES

__all__ = [
    "FEWEST_LAUNCHES",
    "Comparison",
    "Interval",
    "TimedLaunch",
    "Verdict",
    "amount_interval",
    "compare",
    "compare_steps",
    "gate_code",
    "median_interval",
    "phases_of",
    "speedup_interval",
    "split_closes",
]

CLOSES_WITHIN = 0.05
"""Largest remainder of a split into phases, as a share of the step, at which the split can be trusted."""
FEWEST_LAUNCHES = 3
"""Launches of each side below which a comparison gives no verdict; common rounds below which nothing is paired."""
ENOUGH_STEPS = 20
"""Steps of each launch below which launches are not compared by their steps."""
FEWEST_BLOCKS = 8

Floats = NDArray[np.float64]
TimedLaunch = tuple[float, Sequence[float]]
"""Samples per second of a launch, and the seconds of its timed steps in order."""
Rounds = tuple[Sequence[Hashable], Sequence[Hashable]]
Verdict = Literal["faster", "slower", "no difference shown", "too few launches"]


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


def median_interval(sample: Sequence[float], *, confidence: float = 0.95, pilot: int | None = None) -> Interval:
    """Median over launches of a positive quantity, with the t interval of its logarithm; one launch has no interval.

    `sample` is in the order of launches. `pilot` is the number of launches after which the case could first have
    stopped, where the launches themselves decided how many there are; None where the number was fixed beforehand.
    """
    values = np.asarray(sample, dtype=np.float64)
    middle = float(np.median(values))
    if values.size < 2:
        return _unknown(middle)
    logs = np.log(values)
    half = _quantile(confidence, values.size - 1) * _scale(logs, pilot) / values.size**0.5
    return _exponential(middle, float(logs.mean()), half)


def amount_interval(sample: Sequence[float], *, confidence: float = 0.95) -> Interval:
    """The interval of an amount that may be zero or negative (a phase, share or difference), without logarithms."""
    values = np.asarray(sample, dtype=np.float64)
    middle = float(np.median(values))
    if values.size < 2:
        return _unknown(middle)
    half = _quantile(confidence, values.size - 1) * _scale(values, None) / values.size**0.5
    mean = float(values.mean())
    return Interval(middle, min(mean - half, middle), max(mean + half, middle))


def speedup_interval(
    sample: Sequence[float],
    base: Sequence[float],
    *,
    confidence: float = 0.95,
    rounds: Rounds | None = None,
    pilot: int | None = None,
) -> Interval:
    """Ratio of two medians over launches, with its t interval: paired if `rounds` contains common rounds, otherwise
    Welch's.

    `rounds` names the round of each launch of either side; a launch is paired with the other side's of the same round.
    """
    value = float(np.median(sample) / np.median(base))
    difference = _difference(sample, base, rounds, pilot)
    if difference is None:
        return _unknown(value)
    mean, error, freedom, _ = difference
    return _exponential(value, mean, _quantile(confidence, freedom) * error)


@dataclass(frozen=True)
class Comparison:
    """Two groups of launches: the ratio of their medians, and whether they differ significantly."""

    ratio: Interval
    p_value: float
    """Two-sided t test of the logarithms, of the same kind as the interval; nan where there is none."""
    launches: tuple[int, int]
    num_pairs: int
    """Rounds in which both were launched, if the comparison is paired by round; else 0."""
    verdict: Verdict
    steps: tuple[int, int] | None = None
    """Steps of each side, where too few launches were compared by their steps."""


def compare(
    sample: Sequence[float], base: Sequence[float], *, confidence: float = 0.95, rounds: Rounds | None = None
) -> Comparison:
    """Compare the throughput of two groups of launches."""
    ratio = speedup_interval(sample, base, confidence=confidence, rounds=rounds)
    counts = (len(sample), len(base))
    difference = _difference(sample, base, rounds, None)
    if difference is None:
        return Comparison(ratio, float("nan"), counts, 0, "too few launches")
    p_value = _p_value(*difference[:3])
    verdict: Verdict = "no difference shown"
    if min(counts) < FEWEST_LAUNCHES:
        verdict = "too few launches"
    elif p_value <= 1 - confidence and not ratio.low <= 1 <= ratio.high:
        verdict = "faster" if ratio.value > 1 else "slower"
    return Comparison(ratio, p_value, counts, difference[3], verdict)


def compare_steps(
    sample: Sequence[TimedLaunch], base: Sequence[TimedLaunch], *, confidence: float = 0.95
) -> Comparison | None:
    """Compare too few launches by their steps; None if a launch has too few of them.

    How much launches differ is unknown with one launch of a side. With two, the larger of both errors counts.
    """
    sides = (sample, base)
    if min(len(steps) for side in sides for _, steps in side) < ENOUGH_STEPS:
        return None
    rates = [np.log([rate for rate, _ in side]) for side in sides]
    terms = [term for side, logs in zip(sides, rates, strict=True) for term in _side_error(side, logs)]
    variance, spread = sum(one for one, _ in terms), sum(one**2 / freedom for one, freedom in terms)
    freedom = variance**2 / spread if spread > 0 else float(len(terms))
    mean, error = float(rates[0].mean() - rates[1].mean()), variance**0.5
    value = float(np.exp(np.median(rates[0]) - np.median(rates[1])))
    ratio = _exponential(value, mean, _quantile(confidence, freedom) * error)
    verdict: Verdict = "no difference shown"
    if not ratio.low <= 1 <= ratio.high:
        verdict = "faster" if value > 1 else "slower"
    counts, steps = ((len(sample), len(base)), tuple(sum(len(found) for _, found in side) for side in sides))
    return Comparison(ratio, _p_value(mean, error, freedom), counts, 0, verdict, (steps[0], steps[1]))


def _side_error(side: Sequence[TimedLaunch], logs: Floats) -> list[tuple[float, float]]:
    """Terms of the variance of a side's mean, with their degrees of freedom: of its steps, or between its launches."""
    within = [_step_error(np.asarray(steps, dtype=np.float64)) for _, steps in side]
    terms = [(variance / len(side) ** 2, freedom) for variance, freedom in within]
    if len(side) > 1 and (between := float(logs.var(ddof=1)) / len(side)) > sum(one for one, _ in terms):
        return [(between, len(side) - 1.0)]
    return terms


def _step_error(seconds: Floats) -> tuple[float, float]:
    """Relative variance of the mean of steps that depend on each other, with its degrees of freedom: the largest

    of the means of 8, 16, 32 ... consecutive blocks, s(b)^2 / b, and
    of 8 blocks, s(8)^2 / 8^k, where s(b)^2 ~ b^k, 0 <= k <= 1, over 8 to 64 blocks: noise at every time scale
    (k = 0) does not become less with more steps.
    """
    counts = [FEWEST_BLOCKS << n for n in range(32) if FEWEST_BLOCKS << n <= seconds.size]
    spreads = [float(np.var([part.mean() for part in np.array_split(seconds, b)], ddof=1)) for b in counts]
    found = [(spread / b, b - 1.0) for spread, b in zip(spreads, counts, strict=True)]
    longer = [b for b in counts if b <= min(64, seconds.size / 2)]
    if len(longer) > 1 and min(spreads) > 0:
        slope = float(np.polyfit(np.log(longer), np.log(spreads[: len(longer)]), 1)[0])
        found.append((spreads[0] / FEWEST_BLOCKS ** min(1.0, max(0.0, slope)), FEWEST_BLOCKS - 1.0))
    variance, freedom = max(found, key=lambda one: _quantile(0.95, one[1]) * one[0] ** 0.5)
    return variance / float(seconds.mean()) ** 2, freedom


def gate_code(result: Comparison, least: float) -> int:
    """Exit code of a gate: 1 if the ratio is shown to be below `least`, 0 if shown not to be, 2 if neither is shown."""
    if result.verdict == "too few launches":
        return 2
    return 1 if result.ratio.high < least else 0 if result.ratio.low >= least else 2


def _difference(
    sample: Sequence[float], base: Sequence[float], rounds: Rounds | None, pilot: int | None
) -> tuple[float, float, float, int] | None:
    """Mean difference of logarithms, its standard error, degrees of freedom, and pairs; None without an interval."""
    top, bottom = np.log(np.asarray(sample, dtype=np.float64)), np.log(np.asarray(base, dtype=np.float64))
    pairs = _pairs(rounds) if rounds else []
    if pairs:
        apart = np.array([top[one] - bottom[other] for one, other in pairs])
        return float(apart.mean()), _scale(apart, pilot) / len(pairs) ** 0.5, len(pairs) - 1, len(pairs)
    if min(top.size, bottom.size) < 2:
        return None
    one, other = (_scale(logs, pilot) ** 2 / logs.size for logs in (top, bottom))
    spread = one**2 / (top.size - 1) + other**2 / (bottom.size - 1)
    freedom = (one + other) ** 2 / spread if spread > 0 else float(top.size + bottom.size - 2)
    return float(top.mean() - bottom.mean()), float(one + other) ** 0.5, float(freedom), 0


def _pairs(rounds: Rounds) -> list[tuple[int, int]]:
    """Places of the launches of common rounds; none if a round is not unique, or most launches would be left out."""
    ours, theirs = rounds
    places = {name: place for place, name in enumerate(theirs)}
    pairs = [(place, places[name]) for place, name in enumerate(ours) if name in places]
    unique = len(set(ours)) == len(ours) and len(places) == len(theirs)
    return pairs if unique and len(pairs) >= FEWEST_LAUNCHES and 2 * len(pairs) >= max(len(ours), len(theirs)) else []


def _scale(values: Floats, pilot: int | None) -> float:
    """Standard deviation; after optional stopping the largest of the first k values, from the pilot on."""
    first = values.size if pilot is None else min(max(pilot, 2), values.size)
    return max(float(values[:count].std(ddof=1)) for count in range(first, values.size + 1))


@lru_cache(maxsize=256)
def _quantile(confidence: float, freedom: float) -> float:
    """Student's t quantile of a two-sided interval."""
    from scipy.special import stdtrit  # imported here: verbs without intervals start faster

    return float(stdtrit(freedom, 0.5 + confidence / 2))


def _p_value(mean: float, error: float, freedom: float) -> float:
    from scipy.special import stdtr

    if error == 0:
        return 1.0 if mean == 0 else 0.0
    return float(2 * stdtr(freedom, -abs(mean) / error))


def _unknown(value: float) -> Interval:
    return Interval(value, float("-inf"), float("inf"))


def _exponential(value: float, centre: float, half: float) -> Interval:
    """The interval of a quantity from that of its logarithm, extended to contain the value."""
    with np.errstate(over="ignore"):
        low, high = float(np.exp(centre - half)), float(np.exp(centre + half))
    return Interval(value, min(low, value), max(high, value))


def phases_of(passes: dict[str, float]) -> dict[str, float]:
    """Seconds of each exposed phase, by differences between passes; `other` makes them sum to the clean step.

    forward pass; compute = forward + backward; exchange adds gradient exchange; resident adds the update;
    copied adds copying the batch to the device; full adds reading it; whole, of observed steps, adds the user's own
    code between the phases. A pass that did not run adds nothing. The last pass repeats the complete step, and so does
    a pass that equals it: the clean step replaces them, so without `whole` the phase `other` is not zero only where a
    part took longer than the complete step.
    """
    ran = [(passes[name], phase) for name, phase in PASS_PHASES if name in passes]
    result = dict.fromkeys((*PHASES, "other"), 0.0)
    reached = 0.0
    for seconds, phase in ran:
        until = passes["clean"] if seconds == ran[-1][0] else seconds
        result[phase] = max(0.0, until - reached)
        reached = max(reached, until)
    result["other"] += passes["clean"] - sum(result.values())
    return result


def split_closes(phases: dict[str, float]) -> bool:
    """Whether the phases sum to the step without a large remainder; true without phases."""
    step = sum(phases.values())
    return not phases or abs(phases["other"]) <= CLOSES_WITHIN * step
