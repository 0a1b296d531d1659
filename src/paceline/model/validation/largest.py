"""Leave-largest-out: fit all smaller device counts of a series, predict its largest, with a prior from other series.

Series are dealt into folds by a hash of their label, or by campaign. When a fold is judged, the prior is learnt
without the largest points of any of its series.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.model.measured.extrapolate import extrapolate_series
from paceline.model.measured.points import Series
from paceline.model.measured.prior import Population, learn

__all__ = ["Held", "by_campaign", "by_series", "calibrated", "judge_largest"]

Floats = NDArray[np.float64]

NUM_FOLDS = 8
LEAST_POINTS = 3
"""Two counts to fit and one to predict; a curve through one point is refused."""


@dataclass(frozen=True)
class Held:
    """One predicted largest point."""

    campaign: str
    label: str
    devices: int
    published: float
    predicted: float
    interval_50: tuple[float, float]
    interval_90: tuple[float, float]

    @property
    def error(self) -> float:
        """Absolute relative error."""
        return abs(self.predicted / self.published - 1)

    @property
    def in_50(self) -> bool:
        """The 50 % interval held it."""
        return self.interval_50[0] <= self.published <= self.interval_50[1]

    @property
    def in_90(self) -> bool:
        """The 90 % interval held it."""
        return self.interval_90[0] <= self.published <= self.interval_90[1]


def by_series(series: Series) -> str:
    """A fold that depends on the label alone."""
    digest = hashlib.sha256(f"{series.campaign} {series.label}".encode()).digest()
    return str(digest[0] % NUM_FOLDS)


def by_campaign(series: Series) -> str:
    """A fold of its own for every campaign: nothing of it was ever seen."""
    return series.campaign


def judge_largest(
    series: Sequence[Series],
    *,
    others: Sequence[Series] = (),
    fold: Callable[[Series], str] = by_series,
    scales: tuple[float, float] = (1.0, 1.0),
) -> list[Held]:
    """Predictions of the largest count of every series with at least three counts; `others` only teach."""
    fit = [one for one in series if one.num_points >= LEAST_POINTS]
    found: list[Held] = []
    for name in sorted({fold(one) for one in fit}):
        mine = [one for one in fit if fold(one) == name]
        rest = [one for one in (*fit, *others) if fold(one) != name]
        short = [one.without_largest() for one in mine]
        population = learn([*rest, *short])
        population = Population(
            population.weights, population.covariance, population.offsets, population.counts, *scales
        )
        found += [_held(one, cut, population) for one, cut in zip(mine, short, strict=True)]
    return found


def _held(series: Series, cut: Series, population: Population) -> Held:
    count = int(series.devices[-1])
    rate = extrapolate_series([cut], [count], population=population, adapt=False)[0].predictions[0].samples_per_s
    return Held(
        campaign=series.campaign,
        label=series.label,
        devices=count,
        published=float(series.samples_per_s[-1]),
        predicted=rate.value,
        interval_50=rate.interval_50,
        interval_90=rate.interval_90,
    )


def calibrated(series: Sequence[Series]) -> Population:
    """The prior of all series, its intervals widened or narrowed to hold what they promise on held-out points."""
    held = judge_largest(series)
    scales = [_scale(held, attribute, share) for attribute, share in (("interval_50", 0.5), ("interval_90", 0.9))]
    population = learn(series)
    return Population(population.weights, population.covariance, population.offsets, population.counts, *scales)


def _scale(held: list[Held], attribute: str, share: float) -> float:
    """Factor on log half-widths at which this share of the held-out points lies inside."""
    needed = []
    for one in held:
        low, high = getattr(one, attribute)
        away = np.log(one.published / one.predicted)
        half = np.log(high / one.predicted) if away > 0 else np.log(one.predicted / low)
        needed.append(abs(away) / max(float(half), 1e-6))
    return float(np.quantile(needed, share))
