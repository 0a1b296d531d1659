"""One prediction from measured points: forms averaged by evidence, with the uncertainty of the average.

Within one regime, the centre is never below the last point, because adding devices makes none of them faster. Once the
regime is known, it exceeds the last point by no more than the ratio of the counts, because total throughput does not
fall, unless the points themselves fall; then it falls no faster than they do, and does not rise again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.model.measured import curve
from paceline.model.measured.discrepancy import Doubt
from paceline.model.measured.fit import NOISES, Packed, draw, log_evidence, maximise, pack
from paceline.model.measured.forms import (
    BATCH,
    BEYOND_A_HOST,
    FEWER,
    FIRST_CROSSING,
    ONE_CROSSING,
    SHARPNESS,
    UNSTATED,
    WEIGHTS,
    closed_forms,
    fluke_of,
    least_slope,
    situation_of,
    slope_of,
)  # fmt: skip
from paceline.model.measured.line_rate import least_log_seconds, least_network
from paceline.model.measured.names import strategy_kind
from paceline.model.measured.points import HOST_SIZES, Series
from paceline.model.measured.prior import Population, bounded, prior_of

__all__ = ["Forecast", "Posterior", "centre_of", "forecast", "posteriors"]

Floats = NDArray[np.float64]

LABEL_TRUST = 0.8
"""Probability that a label is right about whether aggregation is overlapped."""
MOST_EVIDENCE = 3.0
"""Largest logarithm of odds that a few points may shift."""
LEAST_SHARE = 1e-2
"""Smallest posterior share of a noise level that gets draws."""
HINDCAST_WIDTH = 0.1
"""A form that missed the last point by this much counts 1/e of one that met it."""
LEAST_SIZE = 0.01
"""Smallest probability of a size of hosts that is followed up."""


@dataclass(frozen=True)
class Posterior:
    """Posterior of the physical curve given the points of one series, with and without overlap."""

    series: Series
    packed: Packed
    rows: tuple[tuple[int, ...], tuple[int, ...]]
    """Places in `packed` of the curve that does not overlap, and of the one that does, at each noise."""
    shares: tuple[tuple[float, ...], tuple[float, ...]]
    """Probability of each noise."""
    prior: tuple[Floats, Floats]
    best: tuple[Floats, Floats]
    overlapped: float
    """Probability of the curve that overlaps."""
    evidence: float
    """Logarithm of how probable the points are, up to a constant of the series."""
    among: tuple[tuple[float, Posterior], ...] = ()
    """The fit for each possible size of a full host, with its probability, if none is stated; this is the likeliest."""

    @cached_property
    def draws(self) -> tuple[Floats, Floats]:
        """Draws of the parameters of both curves."""
        first, second = (
            np.concatenate(
                [
                    draw(self.packed, row, self.prior, self.best, share=share)
                    for row, share in zip(rows, shares, strict=True)
                    if share > LEAST_SHARE
                ]
            )
            for rows, shares in zip(self.rows, self.shares, strict=True)
        )
        return first, second

    @cached_property
    def _at(self) -> dict[float, list[Floats]]:
        """Cache of `log_seconds`, because advice evaluates the same counts again."""
        return {}

    @cached_property
    def forms_at(self) -> dict[tuple[float, str], tuple[Floats, float, int]]:
        """Cache of `_forms` by count and batch, because all predictions of a series use one hindcast."""
        return {}

    @cached_property
    def shares_at(self) -> dict[tuple[int, bool, bool], tuple[float, Floats]]:
        """What `_shares` answered before, by situation, by whether the last point was predicted, and by whether the
        count lies between the points."""
        return {}

    def log_seconds(self, count: float) -> list[Floats]:
        """Logarithms of seconds per sample and device at a count: draws of both curves."""
        if count not in self._at:
            self.ask([count])
        return self._at[count]

    def ask(self, counts: Sequence[float]) -> None:
        """Answer `log_seconds` at all of these counts at once."""
        new = [float(count) for count in dict.fromkeys(counts) if count not in self._at]
        if not new:
            return
        devices, hosts = np.array(new), np.array([self.series.hosts_at(count) for count in new])
        logs = [
            np.log(curve.seconds_of_draws(draws, devices, hosts, overlapped))
            for draws, overlapped in zip(self.draws, (False, True), strict=True)
        ]
        self._at.update({count: [each[place] for each in logs] for place, count in enumerate(new)})


@dataclass(frozen=True)
class Forecast:
    """The logarithm of seconds per sample and device at one count, and why it may be wrong."""

    count: float
    batch: float
    centre: float
    doubt: Doubt
    forms: Floats
    """The centre by each form alone."""
    weights: Floats


def posteriors(series: Sequence[Series], population: Population) -> list[Posterior]:
    """Fits of all series; where the size of a full host is not stated, of each that is possible."""
    cases = [one.cases for one in series]
    fits = iter(_fitted([case for some in cases for case in some], population))
    return [_likeliest([next(fits) for _ in some]) for some in cases]


def _likeliest(fits: Sequence[Posterior]) -> Posterior:
    if len(fits) == 1:
        return fits[0]
    logs = np.array([fit.evidence + np.log(HOST_SIZES[fit.series.per_host]) for fit in fits])
    likely = np.exp(logs - logs.max())
    likely = np.where(likely > LEAST_SIZE * likely.sum(), likely, 0.0)
    among = [(float(part), fit) for part, fit in zip(likely / likely.sum(), fits, strict=True) if part > 0]
    best = max(among, key=lambda one: one[0])[1]
    return replace(best, among=tuple(among) if len(among) > 1 else ())


def _fitted(series: Sequence[Series], population: Population) -> list[Posterior]:
    """Fits of all series at once, each with and without overlap, at the noise levels that its points support."""
    both, flags = [*series, *series], [0.0] * len(series) + [1.0] * len(series)
    times = len(NOISES)
    packed = pack(both * times, flags * times, [noise for noise in NOISES for _ in both])
    mean, precision = bounded(*prior_of(population, both, flags), [least_network(one) for one in both])
    prior = (np.tile(mean, (times, 1)), np.tile(precision, (times, 1, 1)))
    best = maximise(packed, *prior)
    evidence = log_evidence(packed, prior, best).reshape(times, 2, len(series)).swapaxes(0, 1)
    evidence = evidence + np.log(np.maximum(population.noise, LEAST_SHARE))[:, None]
    whole = np.logaddexp.reduce(evidence, axis=1)
    shares = np.exp(evidence - whole[:, None])
    rows = np.arange(evidence.size).reshape(times, 2, len(series)).swapaxes(0, 1)
    fits = []
    for place, one in enumerate(series):
        known = strategy_kind(one.how).overlap
        share = 0.5 if known is None else LABEL_TRUST if known else 1 - LABEL_TRUST
        shift = np.clip(whole[1, place] - whole[0, place], -MOST_EVIDENCE, MOST_EVIDENCE)
        odds = np.log(share / (1 - share)) + shift
        places, of = rows[:, :, place].tolist(), shares[:, :, place].tolist()
        overlapped = float(1 / (1 + np.exp(-odds)))
        fits.append(Posterior(one, packed, places, of, prior, best, overlapped, float(np.logaddexp(*whole[:, place]))))
    return fits


def forecast(posterior: Posterior, before: Posterior | None, count: float, batch: float) -> Forecast:
    """The prediction at a count; `before` is the fit without the last point, whose error at that point counts.

    Averaged over the possible sizes of a full host; what they disagree about is doubt under each of them.
    """
    if not posterior.among:
        return _forecast(posterior, before, count, batch)
    made = [(part, _forecast(fit, _alike(before, fit), count, batch)) for part, fit in posterior.among]
    centre = sum(part * one.centre for part, one in made)
    away = float(np.sqrt(sum(part * (one.centre - centre) ** 2 for part, one in made)))
    among = tuple((part, one.doubt.about(one.centre - centre, away)) for part, one in made)
    best = max(made, key=lambda one: one[0])[1]
    return replace(best, centre=centre, doubt=replace(best.doubt, among=among))


def centre_of(posterior: Posterior, before: Posterior | None, count: float, batch: float) -> float:
    """The same without what makes it doubtful."""
    among = posterior.among or ((1.0, posterior),)
    return sum(part * _centre_of(fit, _alike(before, fit), count, batch) for part, fit in among)


def _alike(before: Posterior | None, fit: Posterior) -> Posterior | None:
    """The fit of fewer points on full hosts of the same size."""
    fits = [] if before is None else [one for _, one in before.among] or [before]
    return next((one for one in fits if one.series.per_host == fit.series.per_host), None)


def _forecast(posterior: Posterior, before: Posterior | None, count: float, batch: float) -> Forecast:
    """The prediction under one size of a full host."""
    series = posterior.series
    forms, spread, situation = _forms(posterior, count, batch)
    hindcast, weights = _shares(posterior, before, count, situation)
    average = float(weights @ forms)
    doubt = Doubt(
        situation=situation,
        doublings=_doublings(series, count, batch, situation),
        posterior=spread,
        disagreement=float(np.sqrt(weights @ np.square(forms - average))),
        hindcast=hindcast,
        spread=float(np.interp(count, series.devices, series.spread)),
        loss=float(np.ptp(series.log_seconds)),
        stated=situation in BEYOND_A_HOST and bool(np.isfinite(least_network(series))),
    )
    between = _enclosing(series, count, situation)
    if between is not None:
        doubt = doubt.within(between[1] - between[0])
    if _first_beyond_a_part(series, situation):
        doubt = replace(doubt, inside=_forecast(posterior, before, series.per_host, batch).doubt)
    centre = _centre_of(posterior, before, count, batch)
    return Forecast(count, batch, centre, _bounded(series, count, centre, doubt, batch), forms, weights)


def _centre_of(posterior: Posterior, before: Posterior | None, count: float, batch: float) -> float:
    series = posterior.series
    forms, _, situation = _forms(posterior, count, batch)
    average = float(_shares(posterior, before, count, situation)[1] @ forms)
    centre = max(average, _least(series, count, batch, situation))
    between = _enclosing(series, count, situation)
    if between is not None:
        centre = float(np.clip(centre, *between))
    if _first_beyond_a_part(series, situation):
        centre = max(centre, _centre_of(posterior, before, series.per_host, batch))
    return centre


def _first_beyond_a_part(series: Series, situation: int) -> bool:
    """Whether the first crossing is asked of points that do not fill a host: a full one bounds it."""
    return situation == FIRST_CROSSING and bool(series.devices[-1] < series.per_host)


def _shares(posterior: Posterior, before: Posterior | None, count: float, situation: int) -> tuple[float, Floats]:
    """How far the last point was missed, and the weights of the forms."""
    series, key = posterior.series, (situation, before is None, count <= posterior.series.devices[-1])
    if key not in posterior.shares_at:
        missed, hindcast = _hindcast(series, before, situation)
        between = key[-1]
        full = 0.0 if between or situation != ONE_CROSSING else _unexplained(series)
        guessed = situation == FIRST_CROSSING and not np.isfinite(least_network(series))
        weights = UNSTATED if guessed else WEIGHTS[situation]
        posterior.shares_at[key] = (
            hindcast, _weights(weights, posterior.overlapped, situation, missed, between=between, full=full)
        )  # fmt: skip
    return posterior.shares_at[key]


def _bounded(series: Series, count: float, centre: float, doubt: Doubt, batch: float) -> Doubt:
    """The uncertainty bounded to possible times: fewer devices are no slower per device than the smallest count."""
    fewer = doubt.situation == FEWER
    fastest = -np.inf if fewer or _grows(series, batch, doubt.situation) else float(series.log_seconds.min())
    fastest = max(fastest, least_log_seconds(series, count, batch))
    slowest = float(series.log_seconds[0]) - centre if fewer else np.inf
    return replace(doubt, fastest=min(fastest - centre, 0.0), slowest=max(slowest, 0.0))


def _enclosing(series: Series, count: float, situation: int) -> tuple[float, float] | None:
    """Between two measured counts, the times per device there, smaller first; none elsewhere."""
    if count > series.devices[-1] or situation == BATCH:
        return None
    right = int(np.searchsorted(series.devices, count))
    if right == 0 and series.devices[0] != count:
        return None
    low, high = sorted(series.log_seconds[[max(right - (series.devices[right] != count), 0), right]].tolist())
    return low, high


def _unexplained(series: Series) -> float:
    """Probability, from 0 to 1, of a saturated resource other than a slow link, if labels do not state the link's cost.

    Derived from the gain of the first crossing, which a single point does not show.
    """
    if np.isfinite(least_network(series)) or len(series.devices) < 2:
        return 0.0
    lost = float(np.diff(series.log_seconds[-2:])[0] / np.diff(np.log(series.devices[-2:]))[0])
    return float(np.clip(lost, 0.0, 1.0)) ** SHARPNESS


def _grows(series: Series, batch: float, situation: int) -> bool:
    """Whether a larger batch may make each device faster."""
    return situation == BATCH and bool(series.shrink_of(batch) < 0.99 * series.shrink_of(series.batches[-1]))


def _least(series: Series, count: float, batch: float, situation: int) -> float:
    """The centre's lower bound where the points gain little or nothing from more devices."""
    if count <= series.devices[-1] or _grows(series, batch, situation):
        return -np.inf
    farther = float(np.log(count / series.devices[-1]))
    return float(series.log_seconds[-1] + least_slope(series, count, situation) * farther)


def _doublings(series: Series, count: float, batch: float, situation: int) -> float:
    """Doublings to the target from the largest count, or from the nearest measured batch if that is farther."""
    farther = float(np.log2(max(count / series.devices[-1], 1.0)))
    if situation == FEWER:
        return float(np.log2(series.devices[0] / count))
    if situation != BATCH:
        return farther
    measured = np.concatenate([series.shrink_of(one.batches) for one in (series, *series.siblings)])
    return max(farther, float(np.abs(np.log2(measured / series.shrink_of(batch))).min()))


def _forms(posterior: Posterior, count: float, batch: float) -> tuple[Floats, float, int]:
    """The centre by each form, within possible times; the spread of the posterior; the situation."""
    key = (count, repr(batch))
    if key not in posterior.forms_at:
        posterior.forms_at[key] = _computed_forms(posterior, count, batch)
    return posterior.forms_at[key]


def _limits(series: Series, count: float, batch: float, situation: int) -> tuple[float, float]:
    """Bounds of possible times beyond the points; draws of the posterior count only within them.

    On one host, fewer devices do not have a larger total throughput.
    """
    if situation == FEWER:
        first, nearer = float(series.log_seconds[0]), float(np.log(series.devices[0] / count))
        return first - nearer if series.hosts_at(count) == series.hosts[0] else -np.inf, first
    if count <= series.devices[-1]:
        return -np.inf, np.inf
    last, farther = float(series.log_seconds[-1]), float(np.log(count / series.devices[-1]))
    low = max(least_log_seconds(series, count, batch), -np.inf if _grows(series, batch, situation) else last)
    return low, np.inf if situation == FIRST_CROSSING else max(last + farther * max(slope_of(series), 1.0), low)


def _computed_forms(posterior: Posterior, count: float, batch: float) -> tuple[Floats, float, int]:
    series = posterior.series
    situation = situation_of(series, count, batch)
    low, high = _limits(series, count, batch, situation)
    physical, spread = np.full(2, series.log_seconds[-1]), 0.0
    if situation != BATCH:
        drawn = [np.clip(values, low, high) for values in posterior.log_seconds(count)]
        physical = np.array([_median(values) for values in drawn])
        variance = (1 - posterior.overlapped) * drawn[0].var() + posterior.overlapped * drawn[1].var()
        spread = float(np.sqrt(variance))
    forms = np.append(physical, closed_forms(series, count, batch, situation))
    return np.clip(forms, low, high), spread, situation


def _median(values: Floats) -> float:
    """Like numpy's, without its checks: it is asked for at every count and form."""
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    middle = np.partition(values, (half - 1, half))
    return float((middle[half - 1] + middle[half]) / 2)


def _hindcast(series: Series, before: Posterior | None, situation: int) -> tuple[Floats, float]:
    """How far each form and their average missed the last point; the forms' errors count in the same regime alone.

    They do not count either as far as the last point is faster per device than the one before it: no form gets faster,
    and the one that is least wrong about noise is not the one that holds.
    """
    none = np.zeros(WEIGHTS.shape[1])
    if before is None:
        return none, float("nan")
    count, batch, truth = float(series.devices[-1]), float(series.batches[-1]), series.log_seconds[-1]
    forms, spread, then = _forms(before, count, batch)
    error = abs(float(truth - _weights(WEIGHTS[then], before.overlapped, then, none) @ forms))
    sure = 1.0 if situation == BATCH else 1.0 - fluke_of(series)
    if then == situation or {then, situation} <= {2, 3}:
        return sure * (truth - forms), error
    return none, max(error - 2 * spread, 0.0)


def _weights(
    weights: Floats, overlapped: float, situation: int, missed: Floats, *, between: bool = False, full: float = 0.0
) -> Floats:
    """Weights of the forms, from those before any error; between measured counts, forms that fit all points share all.

    `full`: weight of the form of a saturated resource, next to the physical curve.
    """
    weights = weights.copy()
    if between and situation != FEWER:
        weights[2:5] = 0.0
    weights[:2] *= 1 - overlapped, overlapped
    if not missed.any() and situation != BATCH:
        weights[4] = full
    away = np.abs(missed)
    weights *= np.exp((away[weights > 0].min() - away) / HINDCAST_WIDTH)
    return np.asarray(weights / weights.sum())
