"""Rates of a machine from measured iterations, with their uncertainty; few points are enough, for each has a prior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from paceline.errors import Unsupported
from paceline.model.prediction import Estimate, estimate
from paceline.model.transformer.step import PRIOR, RATES, SPREAD, iteration_seconds

__all__ = ["Rates", "fit_rates", "predict_iteration", "refit_beyond"]

Floats = NDArray[np.float64]

NOISE = 0.03
"""Relative error the model itself is expected to make on a point."""
BEYOND_NOISE = 0.07
"""The same beyond one host, where placement and other traffic add to it."""
NUM_DRAWS = 300


@dataclass(frozen=True)
class Rates:
    """Logarithms of the rates, their covariance, and the residual they leave."""

    log_rates: Floats
    covariance: Floats
    residual: float
    num_points: int


def fit_rates(case: dict[str, Floats], seconds: Floats) -> Rates:
    """The rates of one host."""
    if len(seconds) < 3:
        raise Unsupported(f"{len(seconds)} measured iterations cannot fit a transformer", hint="measure at least 3")
    return _solve(case, seconds, mean=PRIOR, free=np.arange(len(RATES)), noise=NOISE)


def refit_beyond(rates: Rates, case: dict[str, Floats], seconds: Floats) -> Rates:
    """The same machine beyond one host: only what hosts add is fitted, everything else stays."""
    free = np.arange(len(RATES), len(PRIOR))
    return _solve(case, seconds, mean=rates.log_rates, free=free, noise=BEYOND_NOISE)


def _solve(case: dict[str, Floats], seconds: Floats, *, mean: Floats, free: NDArray[np.int64], noise: float) -> Rates:
    wanted = np.log(seconds)

    def full(some: Floats) -> Floats:
        x = mean.copy()
        x[free] = some
        return x

    def residuals(some: Floats) -> Floats:
        fitted = np.log(iteration_seconds(full(some), case))
        return np.concatenate([(fitted - wanted) / noise, (some - PRIOR[free]) / SPREAD[free]])

    solution = least_squares(residuals, mean[free])
    covariance = np.zeros((len(mean), len(mean)))
    covariance[np.ix_(free, free)] = np.linalg.inv(solution.jac.T @ solution.jac)
    error = np.log(iteration_seconds(full(solution.x), case)) - wanted
    degrees = max(1, len(seconds) - len(free))
    spread = float(np.sqrt(np.sum(np.square(error)) / degrees))
    return Rates(full(solution.x), covariance, max(spread, noise), len(seconds))


def predict_iteration(rates: Rates, case: dict[str, Floats], *, seed: int = 0) -> list[Estimate]:
    """Seconds of each case with intervals from the rates' covariance and their residual."""
    rng = np.random.default_rng(seed)
    draws = rng.multivariate_normal(rates.log_rates, rates.covariance, size=NUM_DRAWS, method="eigh")
    seconds = np.stack([iteration_seconds(draw, case) for draw in draws])
    seconds *= np.exp(rates.residual * rng.standard_normal(seconds.shape))
    middle = iteration_seconds(rates.log_rates, case)
    return [estimate(float(value), seconds[:, index]) for index, value in enumerate(middle)]
