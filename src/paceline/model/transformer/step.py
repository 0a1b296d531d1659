"""Seconds of one iteration of a parallel transformer, vectorised over cases.

    block  = ((work + tensor collectives)^q + launch^q)^(1/q)        kernels hide their launch, or wait for it
    stage  = layers/p block + head/p + hand-over
    step   = (m + (p-1)/v) stage + data-parallel exchange + update + fixed

m micro-batches, p stages of 1F1B, v chunks (Narayanan et al., Megatron-LM, 2021). work = flop and bytes at fitted
rates, so that every rate is a parameter with a physical meaning and a prior. The rates of a machine are fitted to
measured iterations, with their uncertainty; few points are enough, because each rate has a prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.errors import Unsupported
from paceline.model.prediction import Estimate
from paceline.model.transformer.shape import Parallel, TransformerShape

__all__ = [
    "BETWEEN",
    "PRIOR",
    "RATES",
    "SPREAD",
    "Rates",
    "features",
    "fit_everywhere",
    "fit_rates",
    "iteration_seconds",
    "predict_iteration",
    "refit_beyond",
]

Floats = NDArray[np.float64]

RATES = {
    "flop": 6.7e-3,
    "bytes_whole": 1e-3,
    "bytes_split": 1e-3,
    "bytes_scores": 1e-3,
    "launch": 2e-3,
    "tensor_launch": 3e-4,
    "tensor_growth": 1.0,
    "tensor_latency": 1.5e-5,
    "tensor_byte": 1e-2,
    "head": 6.7e-3,
    "hand_byte": 1e-2,
    "hand_latency": 1e-4,
    "data_byte": 1e-2,
    "update": 2e-3,
    "fixed": 2e-3,
    "sharpness": 3.0,
}
"""Every rate and where its prior is centred: seconds per Tflop, per GB, per billion parameters, or seconds."""
BETWEEN = {"efficiency": 1.1, "between_byte": 4e-2, "tensor_between_byte": 5e-3}
"""Further rates beyond one host: factor on work, seconds per GB of one port, and of all ports of a host together."""
PRIOR = np.log(np.array([*RATES.values(), *BETWEEN.values()]))
SPREAD = np.array([1.0] * len(RATES) + [0.15, 0.5, 0.5])
"""Standard deviations of the logarithms."""


def features(shapes: Sequence[TransformerShape], parallels: Sequence[Parallel]) -> dict[str, Floats]:
    """Counts of everything that takes time, one entry per case."""
    rows = [_row(shape, parallel) for shape, parallel in zip(shapes, parallels, strict=True)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _row(shape: TransformerShape, parallel: Parallel) -> dict[str, float]:
    tokens = parallel.micro_batch * shape.sequence
    hidden, tensor = float(shape.hidden), parallel.tensor
    again = 4 / 3 if parallel.recompute == "full" else 1.0
    scores = 4 / 3 if parallel.recompute != "none" else 1.0
    calls = 6 if parallel.recompute == "full" else 4
    held = shape.layers * 12 * hidden**2 / tensor / parallel.pipeline + shape.vocabulary * hidden / tensor
    volume = 1.5 if parallel.zero_stage == 3 else 1.0
    return {
        "tensor": float(tensor),
        "pipeline": float(parallel.pipeline),
        "micro": float(parallel.num_micro),
        "chunks": float(parallel.interleave),
        "blocks": shape.layers / parallel.pipeline,
        "again": again,
        "flop": tokens * hidden * (again * 72 * hidden + scores * 12 * shape.sequence) / tensor / 1e12,
        "whole": again * 40 * tokens * hidden / 1e9,
        "split": again * 40 * tokens * hidden / tensor / 1e9,
        "scores": scores * 12 * parallel.micro_batch * shape.heads * shape.sequence**2 / tensor / 1e9,
        "tensor_bytes": calls * 2 * tokens * hidden * 2 * (tensor - 1) / tensor / 1e9,
        "tensor_calls": float(calls * (tensor > 1)),
        "head": 6 * tokens * hidden * shape.vocabulary / tensor / 1e12,
        "hand": 2 * tokens * hidden / 1e9,
        "parameters": held / 1e9,
        "data_bytes": volume * held * 2 * 2 * (parallel.data - 1) / parallel.data / 1e9,
        "beyond": float(parallel.devices > parallel.per_host),
        "tensor_beyond": float(tensor > parallel.per_host),
        "per_host": float(parallel.per_host),
    }


def iteration_seconds(log_rates: Floats, case: dict[str, Floats]) -> Floats:
    """Seconds of one iteration of each case under one set of rates (logarithms, in the order of RATES, BETWEEN)."""
    rate = dict(zip((*RATES, *BETWEEN), np.exp(log_rates), strict=True))
    beyond = case["beyond"] > 0
    efficiency = np.where(beyond, rate["efficiency"], 1.0)
    local = np.minimum(case["tensor"], case["per_host"]) - 1
    work = efficiency * (
        rate["flop"] * case["flop"]
        + rate["bytes_whole"] * case["whole"]
        + rate["bytes_split"] * case["split"]
        + rate["bytes_scores"] * case["scores"]
    )
    across = case["tensor_beyond"] * rate["tensor_between_byte"]
    tensor = case["tensor_calls"] * rate["tensor_latency"] * local + case["tensor_bytes"] * (
        rate["tensor_byte"] + across
    )
    launch = case["again"] * rate["launch"] + rate["tensor_launch"] * local ** rate["tensor_growth"]
    power = np.clip(rate["sharpness"], 1.0, 20.0)
    block = ((work + tensor) ** power + launch**power) ** (1 / power)
    hand_byte = np.where(beyond, 2 * rate["between_byte"], rate["hand_byte"])
    hand = (case["pipeline"] > 1) * (hand_byte * case["hand"] * case["chunks"] + rate["hand_latency"])
    stage = case["blocks"] * block + efficiency * rate["head"] * case["head"] / case["pipeline"] + hand
    exchange = np.where(beyond, rate["between_byte"], rate["data_byte"]) * case["data_bytes"]
    filling = (case["pipeline"] - 1) / case["chunks"]
    total = (case["micro"] + filling) * stage + exchange + rate["update"] * case["parameters"] + rate["fixed"]
    return np.asarray(total)


NOISE = 0.03
"""Relative error the model itself is expected to make on a point."""
BEYOND_NOISE = 0.07
"""The noise beyond one host, where placement and other traffic add to it."""
STEP = 1e-4
"""Change of the logarithm of a rate that tells how much an iteration depends on it."""
QUARTILES = (0.6744898, 1.6448536)
"""Standard deviations on either side of 50 and 90 % of a normal distribution."""


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


def fit_everywhere(case: dict[str, Floats], seconds: Floats) -> Rates:
    """All rates at once, of iterations of which some are beyond one host."""
    return _solve(case, seconds, mean=PRIOR, free=np.arange(len(PRIOR)), noise=BEYOND_NOISE)


def refit_beyond(rates: Rates, case: dict[str, Floats], seconds: Floats) -> Rates:
    """Rates fitted beyond one host: only rates between hosts change."""
    free = np.arange(len(RATES), len(PRIOR))
    return _solve(case, seconds, mean=rates.log_rates, free=free, noise=BEYOND_NOISE)


def _solve(case: dict[str, Floats], seconds: Floats, *, mean: Floats, free: NDArray[np.int64], noise: float) -> Rates:
    from scipy.optimize import least_squares  # imported here: the verbs that list evaluations start faster

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


def predict_iteration(rates: Rates, case: dict[str, Floats]) -> list[Estimate]:
    """Seconds of each case with intervals from the rates' covariance and their residual.

    The logarithm of the seconds is taken as linear in those of the rates: where few points leave rates open, draws of
    them would not keep the sums that the points do tell.
    """
    middle = np.log(iteration_seconds(rates.log_rates, case))
    moved = rates.log_rates + STEP * np.eye(len(rates.log_rates))
    slope = np.stack([np.log(iteration_seconds(one, case)) - middle for one in moved], axis=1) / STEP
    away = np.sqrt(np.einsum("ni,ij,nj->n", slope, rates.covariance, slope) + rates.residual**2)
    return [
        Estimate(float(np.exp(log)), *((float(np.exp(log - z * sd)), float(np.exp(log + z * sd))) for z in QUARTILES))
        for log, sd in zip(middle, away, strict=True)
    ]
