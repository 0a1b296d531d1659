"""Error distribution of a prediction: heavy-tailed, with a scale that grows with distance and with earlier errors.

    scale^2 = noise^2 + spread^2 + s^2 ((distance k doublings)^2 + (posterior sd)^2 + (hindcast h)^2
              + (disagreement d)^2 + (loss l)^2 doublings)
    y       = centre + skew scale t(tail)        slower than predicted
            = centre - scale/skew t(FAST_TAIL)   faster than predicted

k = 1, or `blind` if no hindcast was possible; h the error of predicting the last point from those before it; d the
spread of the forms about their average; l the efficiency lost so far; s = 1, or `stated` beyond a host where labels
state what its link carries: the prior and its bound then rest on facts, elsewhere on the labels' words. One set of
coefficients per situation, fitted by maximum likelihood with every campaign worth the same, and drawn to PRIOR where
few campaigns speak; what the first crossing tells of `stated` is the prior of the later ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import gammaln, stdtrit

from paceline.model.measured.forms import BEYOND_A_HOST, FIRST_CROSSING, SITUATIONS

__all__ = ["COEFFICIENTS", "PRIOR", "Doubt", "fit_discrepancy", "interval", "scale_of"]

Floats = NDArray[np.float64]

COEFFICIENTS = ("distance", "noise", "blind", "posterior", "hindcast", "disagreement", "loss", "stated", "tail", "skew")
PRIOR = np.array(
    [
        [0.004, 0.007, 2.0, 0.45, 0.55, 0.6, 0.15, 1.0, 0.5, 1.0],
        [0.012, 0.007, 2.0, 0.45, 0.55, 0.6, 0.15, 1.0, 1.5, 1.0],
        [0.008, 0.006, 2.0, 0.30, 0.55, 0.6, 0.03, 1.0, 0.4, 1.0],
        [0.070, 0.007, 2.0, 0.45, 0.55, 0.6, 0.15, 1.0, 0.6, 1.0],
        [0.040, 0.010, 2.0, 0.45, 0.55, 0.6, 0.10, 1.0, 0.6, 1.0],
        [0.023, 0.009, 0.7, 0.80, 0.55, 1.1, 0.16, 1.0, 0.7, 0.8],
    ]
)
"""Prior coefficients by situation; `tail` is the degrees of freedom above 1.

Those of fewer devices were fitted once, by predicting the first points of published series from later points.
"""
WIDTH = np.array([0.7] * 8 + [0.5, 0.2])
"""Standard deviation of the logarithms about the prior."""
STRENGTH = 1.5
"""Weight of the prior, in campaigns."""
WIDEST = 50.0
"""Largest distance of a bound from the centre, in logarithms: a stated spread may be any number."""
FAST_TAIL = (3.0, 100.0, 3.0, 3.0, 3.0, 3.0)
"""Degrees of freedom on the faster side, by situation: throughput collapses more often than it surprises, and what the
first crossing costs is never less than nothing, so that its faster side has a tail as light as a normal one."""
STATED = COEFFICIENTS.index("stated")


@dataclass(frozen=True)
class Doubt:
    """Components of the uncertainty of a prediction, in logarithms."""

    situation: int
    doublings: float
    posterior: float
    disagreement: float
    hindcast: float
    """Error of predicting the last point from those before it; nan if there were too few."""
    spread: float
    loss: float
    stated: bool = False
    """The target is beyond a host, and labels state what the link of a host carries."""
    inside: Doubt | None = None
    """Uncertainty of the full host before the first crossing, a lower bound for all larger counts."""
    fastest: float = -np.inf
    """How far below the centre a time is possible: as fast per device as the best point, or as the line rate."""
    slowest: float = np.inf
    """How far above it: fewer devices than measured are no slower each than the measured ones."""
    among: tuple[tuple[float, Doubt], ...] = ()
    """The uncertainty under each size of a full host that is possible, with its probability, if none is stated."""

    def about(self, moved: float, away: float) -> Doubt:
        """The same about an average from which it is moved, and from which others are this far away."""
        return replace(
            self, disagreement=math.hypot(self.disagreement, away),
            fastest=min(self.fastest + moved, 0.0), slowest=max(self.slowest + moved, 0.0),
        )  # fmt: skip

    def within(self, gap: float) -> Doubt:
        """The same between two measured counts: the time per device lies between theirs, so does what may be wrong."""
        half = gap / 2
        known = min(self.hindcast, half) if math.isfinite(self.hindcast) else self.hindcast
        return replace(
            self, hindcast=known, posterior=min(self.posterior, half), disagreement=min(self.disagreement, half)
        )


def _table(doubts: Sequence[Doubt]) -> Floats:
    return np.array(
        [(d.doublings, d.posterior, d.disagreement, d.hindcast, d.spread, d.loss, d.stated) for d in doubts],
        dtype=np.float64,
    ).reshape(-1, 7)


def _scale(coefficients: Floats, table: Floats) -> Floats:
    doublings, posterior, disagreement, hindcast, spread, loss, stated = table.T
    distance, noise, blind, c, g, d, e, fact = coefficients[:8]
    known = np.nan_to_num(hindcast)
    factor = np.where(np.isnan(hindcast), blind, 1.0)
    model = (distance * factor * doublings) ** 2 + (c * posterior) ** 2 + (g * known) ** 2
    model += (d * disagreement) ** 2 + (e * loss) ** 2 * doublings
    return np.asarray(np.sqrt(noise**2 + spread**2 + np.where(stated > 0, fact, 1.0) ** 2 * model))


def scale_of(coefficients: Floats, doubt: Doubt) -> float:
    """Scale of the logarithm of one prediction, under the coefficients of all situations.

    What `_scale` computes for many, without arrays of one: every interval asks for it.
    """
    distance, noise, blind, c, g, d, e, fact = coefficients[doubt.situation, :8].tolist()
    known, factor = (0.0, blind) if math.isnan(doubt.hindcast) else (doubt.hindcast, 1.0)
    model = _square(distance * factor * doubt.doublings) + _square(c * doubt.posterior) + _square(g * known)
    model += _square(d * doubt.disagreement) + _square(e * doubt.loss) * doubt.doublings
    stated = _square(fact if doubt.stated else 1.0)
    return math.sqrt(_square(noise) + _square(doubt.spread) + stated * model)


def _square(value: float) -> float:
    return value * value


@cache
def _quantile(freedom: float, share: float) -> float:
    """How many scales of Student's distribution lie on each side of this share."""
    return float(stdtrit(freedom, 0.5 + share / 2))


def interval(coefficients: Floats, doubt: Doubt, share: float) -> tuple[float, float]:
    """How far below and above the centre the logarithm of the time lies in this share of cases."""
    if doubt.among:
        each = [(part, interval(coefficients, one, share)) for part, one in doubt.among]
        return sum(part * low for part, (low, _) in each), sum(part * high for part, (_, high) in each)
    noise, *_, tail, skew = coefficients[doubt.situation, 1:].tolist()
    scale = scale_of(coefficients, doubt)
    fast, slow = (_quantile(free, share) for free in (FAST_TAIL[doubt.situation], 1 + tail))
    least = float(np.hypot(noise, doubt.spread))
    fastest, slowest = doubt.fastest - least / skew * fast, doubt.slowest + least * skew * slow
    below, above = scale / skew * fast, scale * skew * slow
    nearer = (0.0, 0.0) if doubt.inside is None else interval(coefficients, doubt.inside, share)
    return max(min(-min(below, WIDEST), nearer[0]), fastest), min(max(min(above, WIDEST), nearer[1]), slowest)


def fit_discrepancy(doubts: Sequence[Doubt], errors: Sequence[float], campaigns: Sequence[str]) -> Floats:
    """Coefficients of every situation from errors (truth over centre, logarithms) of predictions that were judged."""
    fitted = PRIOR.copy()
    situations = np.array([doubt.situation for doubt in doubts])
    table, away, names = _table(doubts), np.asarray(errors), np.array(campaigns)
    for situation in range(len(SITUATIONS)):
        mine = situations == situation
        if situation in BEYOND_A_HOST:
            fitted[situation, STATED] = fitted[FIRST_CROSSING, STATED]
        if mine.any():
            known = table[mine], away[mine], names[mine]
            fitted[situation] = _fit_one(fitted[situation], FAST_TAIL[situation], *known)
    return fitted


def _fit_one(prior: Floats, fast: float, table: Floats, errors: Floats, campaigns: NDArray[np.str_]) -> Floats:
    _, index, count = np.unique(campaigns, return_inverse=True, return_counts=True)
    weight = 1 / count[index]
    begin = np.log(prior)

    def loss(logs: Floats) -> float:
        likelihood = float(weight @ _log_density(np.exp(logs), fast, table, errors))
        return STRENGTH * 0.5 * float(np.square((logs - begin) / WIDTH).sum()) - likelihood

    return np.asarray(np.exp(minimize(loss, begin, method="L-BFGS-B").x))


def _log_density(coefficients: Floats, fast: float, table: Floats, errors: Floats) -> Floats:
    tail, skew = coefficients[8:]
    slow = errors > 0
    scale = _scale(coefficients, table) * np.where(slow, skew, 1 / skew)
    freedom = np.where(slow, 1 + tail, fast)
    constant = gammaln((freedom + 1) / 2) - gammaln(freedom / 2) - 0.5 * np.log(freedom * np.pi) - np.log(scale)
    return np.asarray(constant - (freedom + 1) / 2 * np.log1p(np.square(errors / scale) / freedom))
