"""Rolling-origin evaluation: the first points of a series predict each later point. The prior of the physical curve,
the coefficients of the discrepancy and the supported distance are learned without the evaluated campaign. Baselines are
a power law and a straight line through the last two points, and Amdahl's law through all points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.model.measured.discrepancy import fit_discrepancy, interval
from paceline.model.measured.forecast import Forecast, Posterior, forecast, posteriors
from paceline.model.measured.forms import FEWER, SITUATIONS, amdahl, power_law, straight_line
from paceline.model.measured.points import Series
from paceline.model.measured.prior import Population, learn

__all__ = ["Task", "judge_origins", "judge_stripped", "learnt", "tasks_of"]

Floats = NDArray[np.float64]

LEAST_POINTS = 3
"""Two counts to fit and one to predict; a curve through one point is refused."""
REACH = ((0,), (1, 2, 3), (4,))
"""Situations that share a supported distance, so that more measurements never lead to more refusals."""
FARTHEST = 13
LEAST_TASKS = 4
LEAST_COVERED = 0.75
"""A distance is supported if this share of its predictions, a minimum number of them, lay in their 90 % interval."""
FEWER_DOUBLINGS = 4.0
"""Down to a sixteenth of the smallest count: by the same rule, of published first points predicted from later ones."""


@dataclass(frozen=True)
class Task:
    """One judged prediction: the first points of a series, and one later count."""

    series: Series
    origin: int
    """Points that were given."""
    target: int
    """Place of the count that is predicted."""
    forecast: Forecast
    baselines: dict[str, float]
    """Logarithms of seconds per sample and device by the simple laws."""
    intervals: dict[float, tuple[float, float]]
    """Bounds of the logarithm of throughput over its prediction, by promised share."""

    @property
    def truth(self) -> float:
        """Logarithm of the measured seconds per sample and device."""
        return float(self.series.log_seconds[self.target])

    @property
    def largest(self) -> bool:
        """All points but the largest were given, and the largest is predicted."""
        return self.origin == self.target == self.series.num_points - 1

    @property
    def factor(self) -> int:
        """Times the largest given count, as a power of two."""
        return int(2 ** round(np.log2(self.series.devices[self.target] / self.series.devices[self.origin - 1])))

    def error(self, by: str = "") -> float:
        """Relative error of throughput, positive if the prediction was too fast; by a simple law if one is named."""
        predicted = self.baselines[by] if by else self.forecast.centre
        return float(np.expm1(self.truth - predicted))

    def held(self, share: float) -> bool:
        """Whether the interval of this share held the truth."""
        low, high = self.intervals[share]
        return low <= self.forecast.centre - self.truth <= high

    def score(self, share: float = 0.9) -> float:
        """Interval score in logarithms (Gneiting and Raftery, 2007): width, and a price for each miss."""
        low, high = self.intervals[share]
        away = self.forecast.centre - self.truth
        return (high - low) + 2 / (1 - share) * (max(low - away, 0.0) + max(away - high, 0.0))


def tasks_of(series: Sequence[Series], population: Population) -> list[Task]:
    """All origins of all series with at least three counts, under one population."""
    long = [one for one in series if one.num_points >= LEAST_POINTS]
    cuts = [one.first(origin) for one in long for origin in range(2, one.num_points)]
    if not cuts:
        return []
    fits = iter(posteriors(cuts, population))
    return [task for one in long for task in _tasks(one, [next(fits) for _ in range(2, one.num_points)], population)]


def _tasks(series: Series, fits: Sequence[Posterior], population: Population) -> Iterable[Task]:
    before: Posterior | None = None
    for origin, posterior in enumerate(fits, start=2):
        for target in range(origin, series.num_points):
            count = float(series.devices[target])
            made = forecast(posterior, before, count, float(series.batches[target]))
            given = posterior.series
            yield Task(
                series=series,
                origin=origin,
                target=target,
                forecast=made,
                baselines={
                    "power law": power_law(given, count),
                    "straight line": straight_line(given, count),
                    "Amdahl": amdahl(given, count),
                },
                intervals=_intervals(made, population),
            )
        before = posterior


def _intervals(made: Forecast, population: Population) -> dict[float, tuple[float, float]]:
    bounds = {share: interval(population.discrepancy, made.doubt, share) for share in (0.5, 0.9)}
    return {share: (-high, -low) for share, (low, high) in bounds.items()}


def _priors(series: Sequence[Series]) -> dict[str, Population]:
    """By campaign, the prior that was learned from the other campaigns."""
    teaching = {one.campaign for one in series if one.has_one_batch}
    priors, known = {}, {}
    for name in sorted({one.campaign for one in series if one.num_points >= LEAST_POINTS}):
        left = name if name in teaching else ""  # campaigns that teach nothing are judged by the same prior
        if left not in known:
            known[left] = learn([one for one in series if one.campaign != left and one.has_one_batch])
        priors[name] = known[left]
    return priors


def _left_out(series: Sequence[Series], priors: dict[str, Population]) -> list[tuple[str, list[Task]]]:
    """Tasks of each campaign under its prior."""
    return [(name, tasks_of([one for one in series if one.campaign == name], prior)) for name, prior in priors.items()]


def judge_origins(series: Sequence[Series]) -> list[Task]:
    """Every task, each under the prior of the other campaigns."""
    judged = _left_out(series, _priors(series))
    return _with_intervals(judged, judged)


def judge_stripped(series: Sequence[Series], strips: Sequence[Callable[[Series], Series]]) -> list[list[Task]]:
    """Every task of the series as they are, and then of all that each strip makes of them: files that state less."""
    priors = _priors(series)
    judged = _left_out(series, priors)
    less = [_left_out([strip(one) for one in series], priors) for strip in strips]
    return [_with_intervals(some, judged) for some in (judged, *less)]


def _with_intervals(judged: Sequence[tuple[str, list[Task]]], known: Sequence[tuple[str, list[Task]]]) -> list[Task]:
    """The tasks with intervals from the discrepancy of the other campaigns' known tasks."""
    tasks = []
    for name, mine in judged:
        coefficients = _coefficients([task for other, group in known if other != name for task in group])
        population = Population(discrepancy=coefficients)
        tasks += [replace(task, intervals=_intervals(task.forecast, population)) for task in mine]
    return tasks


def _coefficients(tasks: Sequence[Task]) -> Floats:
    return fit_discrepancy(
        [task.forecast.doubt for task in tasks],
        [task.truth - task.forecast.centre for task in tasks],
        [task.series.campaign for task in tasks],
    )


def learnt(series: Sequence[Series]) -> Population:
    """The shipped population: prior of all series, discrepancy of left-out campaigns, supported distance."""
    judged = _left_out(series, _priors(series))
    coefficients = _coefficients([task for _, group in judged for task in group])
    population = learn([one for one in series if one.has_one_batch])
    return replace(population, discrepancy=coefficients, supported=_supported(_with_intervals(judged, judged)))


def _supported(tasks: Sequence[Task]) -> Floats:
    """Doublings beyond the largest measured count up to which intervals held; one number beyond a host."""
    supported = np.ones(len(SITUATIONS))
    supported[FEWER] = FEWER_DOUBLINGS
    for group in REACH:
        mine = [task for task in tasks if task.forecast.doubt.situation in group]
        for doublings in range(1, FARTHEST):
            far = [task for task in mine if task.forecast.doubt.doublings > doublings - 0.5]
            if len(far) < LEAST_TASKS or np.mean([task.held(0.9) for task in far]) < LEAST_COVERED:
                break
            supported[list(group)] = doublings
    return supported
