"""Most probable parameters of many series at once (Levenberg-Marquardt), and draws around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from paceline.model.measured.curve import NUM_PARAMETERS, Places, bend, log_seconds_and_slope, seconds_of_draws
from paceline.model.measured.points import Series

__all__ = ["NOISE", "Packed", "draw", "log_evidence", "maximise", "pack"]

Floats = NDArray[np.float64]

NOISE = 0.012
"""Relative standard deviation of one published point about a perfect model."""
NOISES = (0.007, 0.02, 0.06)
"""Candidate noise levels of a series: a quiet machine, a usual one, single runs on shared links."""
LONGEST = 1.5
STILL = 1e-9
"""A series whose parameters move by less is found."""
NEAR = 8
"""Turns that come near the most probable parameters."""
NUM_PROPOSED = 2000
NUM_DRAWS = 500


@dataclass(frozen=True)
class Packed:
    """Series as rectangular arrays; missing points have no weight."""

    devices: Floats
    hosts: Floats
    log_seconds: Floats
    """Logarithm of the seconds one device spends on one sample."""
    weight: Floats
    """Inverse standard deviation of each point; 0 for a missing point."""
    overlap: Floats

    @cached_property
    def places(self) -> Places:
        """The counts as the curve asks for them."""
        return Places.of(self.devices, self.hosts)

    def rows(self, which: NDArray[np.bool_]) -> Packed:
        """Some series alone."""
        some = Packed(*(getattr(self, one.name)[which] for one in fields(self)))
        some.__dict__["places"] = self.places.rows(which)
        return some


def pack(series: Sequence[Series], overlap: Sequence[float], noise: Sequence[float] = ()) -> Packed:
    """Series side by side, each with the noise of its points; the usual one if none is given."""
    shape = (len(series), max(one.num_points for one in series))
    devices, hosts, logs, weight = np.ones(shape), np.ones(shape), np.zeros(shape), np.zeros(shape)
    for row, (one, away) in enumerate(zip(series, noise or [NOISE] * len(series), strict=True)):
        count = one.num_points
        devices[row, :count], hosts[row, :count] = one.devices, one.hosts
        logs[row, :count] = one.log_seconds
        weight[row, :count] = 1 / np.hypot(away, np.minimum(one.spread, 0.2))
    return Packed(devices, hosts, logs, weight, np.asarray(overlap, dtype=np.float64)[:, None])


def maximise(packed: Packed, mean: Floats, precision: Floats, *, start: Floats | None = None) -> tuple[Floats, Floats]:
    """Most probable parameters of every series and their covariance about it; each series is found by itself.

    The curve's bend counts once the first turns came near: without it, points that no curve meets are found slowly or
    not at all, and farther away it may lead to a saddle.
    """
    u = _guess(packed, mean) if start is None else start.copy()
    best, everything, rows = u.copy(), (packed, precision), np.arange(len(u))
    damping = np.full(len(u), 1e-2)
    residual, slope = _residual_and_slope(packed, u)
    loss = _loss(residual, u - mean, precision)
    for turn in range(60 if start is None else 15):
        hessian = slope.swapaxes(1, 2) @ slope + precision
        gradient = np.einsum("mni,mn->mi", slope, residual) + np.einsum("mij,mj->mi", precision, u - mean)
        damped = damping[:, None] * np.einsum("mii->mi", hessian)
        if turn >= NEAR:
            hessian += bend(u, packed.places, packed.overlap, residual * packed.weight)
        np.einsum("mii->mi", hessian)[:] += damped
        step = np.linalg.solve(hessian, -gradient[..., None])[..., 0]
        tried = u + np.clip(step, -LONGEST, LONGEST)
        new_residual, new_slope = _residual_and_slope(packed, tried)
        new_loss = _loss(new_residual, tried - mean, precision)
        better = new_loss < loss
        u, loss = np.where(better[:, None], tried, u), np.where(better, new_loss, loss)
        residual = np.where(better[:, None], new_residual, residual)
        slope = np.where(better[:, None, None], new_slope, slope)
        damping = np.clip(np.where(better, damping / 4, damping * 4), 1e-8, 1e6)
        moving = np.abs(step).max(axis=1) >= STILL
        if moving.all():
            continue
        best[rows] = u
        rows, packed, mean, precision = rows[moving], packed.rows(moving), mean[moving], precision[moving]
        u, loss, residual, slope, damping = (one[moving] for one in (u, loss, residual, slope, damping))
        if not rows.size:
            break
    best[rows] = u
    slope = _residual_and_slope(everything[0], best)[1]
    return best, np.asarray(np.linalg.inv(slope.swapaxes(1, 2) @ slope + everything[1]), dtype=np.float64)


def log_evidence(packed: Packed, prior: tuple[Floats, Floats], best: tuple[Floats, Floats]) -> Floats:
    """How probable the points of each series are under the model, up to a constant (Laplace's method)."""
    loss = _loss(_residual_and_slope(packed, best[0])[0], best[0] - prior[0], prior[1])
    scales = np.log(packed.weight, out=np.zeros_like(packed.weight), where=packed.weight > 0).sum(1)
    return np.asarray(0.5 * np.linalg.slogdet(best[1])[1] - loss + scales)


def _guess(packed: Packed, mean: Floats) -> Floats:
    u = mean.copy()
    smallest = np.argmax((packed.weight > 0) / packed.devices, axis=1)
    u[:, 0] = packed.log_seconds[np.arange(len(u)), smallest]
    return u


def _residual_and_slope(packed: Packed, u: Floats) -> tuple[Floats, Floats]:
    """Weighted residual of each point, and its derivative by each parameter."""
    fitted, slope = log_seconds_and_slope(u, packed.places, packed.overlap)
    return (fitted - packed.log_seconds) * packed.weight, slope * packed.weight[:, :, None]


def _loss(residual: Floats, away: Floats, precision: Floats) -> Floats:
    return np.asarray(0.5 * np.square(residual).sum(1) + 0.5 * np.einsum("mi,mij,mj->m", away, precision, away))


def draw(
    packed: Packed, row: int, prior: tuple[Floats, Floats], best: tuple[Floats, Floats], *, share: float = 1.0
) -> Floats:
    """Draws of the parameters of one series from its posterior; this share of the usual number.

    Proposed from the Gaussian about the most probable ones, then resampled by how probable they really are: a sum of
    positive terms is skewed, and a Gaussian alone would draw curves that miss the measured points.
    """
    (mean, precision), (u, covariance) = prior, best
    normal, far = (part[: max(1, round(share * NUM_PROPOSED))] for part in _proposals())
    drawn = u[row] + normal @ np.linalg.cholesky(covariance[row] + 1e-12 * np.eye(NUM_PARAMETERS)).T
    given = packed.weight[row] > 0
    overlapped = bool(packed.overlap[row, 0] > 0)
    fitted = np.log(seconds_of_draws(drawn, packed.devices[row, given], packed.hosts[row, given], overlapped))
    residual = (fitted - packed.log_seconds[row, given, None]) * packed.weight[row, given, None]
    away = drawn - mean[row]
    inside = np.square(residual).sum(0) + np.einsum("mi,mi->m", away @ precision[row], away)
    kept: Floats = drawn[_resampled(0.5 * (far - inside), max(1, round(share * NUM_DRAWS)))]
    return kept


@cache
def _proposals() -> tuple[Floats, Floats]:
    """Standard normal proposals, and the squared length of each."""
    normal = np.random.default_rng(0).standard_normal((NUM_PROPOSED, NUM_PARAMETERS))
    return normal, np.square(normal).sum(1)


def _resampled(log_weights: Floats, count: int) -> NDArray[np.int64]:
    """Indices drawn in proportion to their weights, evenly spaced, so that equal input gives equal output."""
    weights = np.cumsum(np.exp(log_weights - log_weights.max()))
    places = (np.arange(count) + 0.5) / count * weights[-1]
    return np.asarray(np.searchsorted(weights, places), dtype=np.int64)
