"""Medians with t intervals over launches, comparisons, phases.

Launches are the independent samples. The throughput of a launch is all its samples divided by its elapsed time. The
throughput of a case is the median over its launches. Its interval is Student's t interval of the logarithms:

    mean(log x) +- t(n-1) scale / sqrt(n),   scale = s(n), or max of s(k), k = pilot .. n, after optional stopping

with s(k) the standard deviation of the first k launches. Launches that were added because the interval was still wide
stop when s happens to be small; the largest s seen makes up for it (docs/decisions/0072). Two cases are compared by
Welch's t interval of the difference of logarithms, or by the paired one where both were launched in the same rounds.
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
    "Verdict",
    "amount_interval",
    "compare",
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

Floats = NDArray[np.float64]
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
    """The same for an amount that may be zero or negative (a phase, a share, a difference), without logarithms."""
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
