"""Most probable parameters of many series at once (Levenberg-Marquardt), and draws around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.model.measured.curve import NUM_PARAMETERS, seconds
from paceline.model.measured.points import Series

__all__ = ["NOISE", "Packed", "draw", "log_evidence", "maximise", "pack"]

Floats = NDArray[np.float64]

NOISE = 0.012
"""Relative standard deviation of one published point about a perfect model."""
STEP = 1e-5
LONGEST = 1.5
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
    """One over the standard deviation of each point; 0 where there is none."""
    overlap: Floats


def pack(series: Sequence[Series], overlap: Sequence[float]) -> Packed:
    """Series side by side."""
    shape = (len(series), max(one.num_points for one in series))
    devices, hosts, logs, weight = np.ones(shape), np.ones(shape), np.zeros(shape), np.zeros(shape)
    for row, one in enumerate(series):
        count = one.num_points
        devices[row, :count], hosts[row, :count] = one.devices, one.hosts
        logs[row, :count] = one.log_seconds
        weight[row, :count] = 1 / np.hypot(NOISE, np.minimum(one.spread, 0.2))
    return Packed(devices, hosts, logs, weight, np.asarray(overlap, dtype=np.float64)[:, None])


def maximise(packed: Packed, mean: Floats, precision: Floats, *, start: Floats | None = None) -> tuple[Floats, Floats]:
    """Most probable parameters of every series and their covariance about it."""
    u = _guess(packed, mean) if start is None else start.copy()
    damping = np.full(len(u), 1e-2)
    residual, loss = _loss(packed, u, mean, precision)
    eye = np.eye(NUM_PARAMETERS)
    hessian = np.broadcast_to(eye, (len(u), NUM_PARAMETERS, NUM_PARAMETERS))
    for _ in range(60 if start is None else 15):
        slope = _slope(packed, u)
        hessian = np.einsum("mni,mnj->mij", slope, slope) + precision
        gradient = np.einsum("mni,mn->mi", slope, residual) + np.einsum("mij,mj->mi", precision, u - mean)
        damped = hessian + damping[:, None, None] * np.einsum("mii->mi", hessian)[:, :, None] * eye
        step = np.linalg.solve(damped, -gradient[..., None])[..., 0]
        tried = u + np.clip(step, -LONGEST, LONGEST)
        new_residual, new_loss = _loss(packed, tried, mean, precision)
        better = new_loss < loss
        u = np.where(better[:, None], tried, u)
        residual, loss = np.where(better[:, None], new_residual, residual), np.where(better, new_loss, loss)
        damping = np.clip(np.where(better, damping * 0.4, damping * 4), 1e-8, 1e6)
        if float(np.max(np.abs(step) * better[:, None])) < 1e-6 and better.any():
            break
    return u, np.asarray(np.linalg.inv(hessian), dtype=np.float64)


def log_evidence(packed: Packed, prior: tuple[Floats, Floats], best: tuple[Floats, Floats]) -> Floats:
    """How probable the points of each series are under the model, up to a constant (Laplace's method)."""
    loss = _loss(packed, best[0], *prior)[1]
    return np.asarray(0.5 * np.linalg.slogdet(best[1])[1] - loss)


def _guess(packed: Packed, mean: Floats) -> Floats:
    u = mean.copy()
    smallest = np.argmax((packed.weight > 0) / packed.devices, axis=1)
    u[:, 0] = packed.log_seconds[np.arange(len(u)), smallest]
    return u


def _loss(packed: Packed, u: Floats, mean: Floats, precision: Floats) -> tuple[Floats, Floats]:
    fitted = np.log(seconds(u, packed.devices, packed.hosts, packed.overlap))
    residual = (fitted - packed.log_seconds) * packed.weight
    away = u - mean
    return residual, 0.5 * np.square(residual).sum(1) + 0.5 * np.einsum("mi,mij,mj->m", away, precision, away)


def _slope(packed: Packed, u: Floats) -> Floats:
    """Derivative of each weighted residual by each parameter."""
    base = np.log(seconds(u, packed.devices, packed.hosts, packed.overlap))
    eye = STEP * np.eye(NUM_PARAMETERS)
    columns = [
        (np.log(seconds(u + eye[k], packed.devices, packed.hosts, packed.overlap)) - base) / STEP
        for k in range(NUM_PARAMETERS)
    ]
    return np.stack(columns, axis=-1) * packed.weight[:, :, None]


def draw(packed: Packed, row: int, prior: tuple[Floats, Floats], best: tuple[Floats, Floats], *, seed: int) -> Floats:
    """Draws of the parameters of one series from its posterior.

    Proposed from the Gaussian about the most probable ones, then resampled by how probable they really are: a sum of
    positive terms is skewed, and a Gaussian alone would draw curves that miss the measured points.
    """
    (mean, precision), (u, covariance) = prior, best
    root = np.linalg.cholesky(covariance[row] + 1e-12 * np.eye(NUM_PARAMETERS))
    normal = np.random.default_rng(seed).standard_normal((NUM_PROPOSED, NUM_PARAMETERS))
    drawn = u[row] + normal @ root.T
    fitted = np.log(seconds(drawn, packed.devices[row], packed.hosts[row], packed.overlap[row]))
    residual = (fitted - packed.log_seconds[row]) * packed.weight[row]
    away = drawn - mean[row]
    inside = np.square(residual).sum(1) + np.einsum("mi,ij,mj->m", away, precision[row], away)
    kept: Floats = drawn[_resampled(0.5 * (np.square(normal).sum(1) - inside))]
    return kept


def _resampled(log_weights: Floats) -> NDArray[np.int64]:
    """Indices drawn in proportion to their weights, evenly spaced, so that equal input gives equal output."""
    weights = np.cumsum(np.exp(log_weights - log_weights.max()))
    places = (np.arange(NUM_DRAWS) + 0.5) / NUM_DRAWS * weights[-1]
    return np.asarray(np.searchsorted(weights, places), dtype=np.int64)
