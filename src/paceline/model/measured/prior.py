"""A Gaussian prior over the parameters of the curve, learnt from published campaigns.

    u = features @ weights + offset of (link, kind of strategy) + noise,   noise ~ N(0, covariance)

Learnt by expectation-maximisation: fit every series under the prior, then the prior to the fits. Features come from
facts and names only: parameters of the network, stated rate of the link, kind of strategy, speed of one device (only if
the network is named), and whether all devices of a host are linked to each other.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from scipy.special import log_ndtr

from paceline.model.measured.curve import NUM_PARAMETERS, PARAMETERS
from paceline.model.measured.discrepancy import COEFFICIENTS, PRIOR
from paceline.model.measured.fit import NOISES, log_evidence, maximise, pack
from paceline.model.measured.forms import SITUATIONS
from paceline.model.measured.line_rate import is_text, rate_of, step_of
from paceline.model.measured.names import every_pair_linked, link_kind, normal, parameters_of, strategy_kind
from paceline.model.measured.points import Series

__all__ = ["NUM_FEATURES", "Population", "adapted", "bounded", "group_of", "learn", "overlap_of", "prior_of",
           "shipped_population", "write_population"]  # fmt: skip

Floats = NDArray[np.float64]

NUM_FEATURES = 7
FREE = 9.0
"""Prior variance of the compute parameter, which the points of each series determine."""
OFFSETS = (1, 2, 4, 5, 7)
"""Parameters that a link shifts as a whole."""
SHRINK = 3.0
"""Series that a link's own offset must be worth before it counts half."""
PRIOR_SERIES = 10.0
"""Series that the starting covariance is worth."""
RIDGE = np.array([0.5, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0])
ROUNDS = 8
NOISE_ROUNDS = 50
FILE = Path(__file__).parent / "population.toml"
MOST_SPEED = 5.0
"""Upper bound of the logarithm of a device's speed; published series reach 4.7."""


LEAST_VARIANCE = 1e-3
"""Share of its variance that a prior keeps, however far above it the bound lies."""


def _start() -> tuple[Floats, Floats]:
    weights = np.zeros((NUM_PARAMETERS, NUM_FEATURES))
    weights[:, 0] = [0.0, -4.5, -3.5, 0.0, -2.0, 0.15, -5.5, -4.5]
    weights[1, 2], weights[2, 2], weights[4, 2], weights[7, 2] = 0.3, 0.8, 0.8, 0.5
    return weights, np.diag([FREE, 1.0, 1.2, 0.3, 1.2, 0.15, 0.5, 1.0])


@dataclass(frozen=True)
class Population:
    """The prior: weights of features, covariance of what they leave, offsets of links with the series behind them."""

    weights: Floats = field(default_factory=lambda: _start()[0])
    covariance: Floats = field(default_factory=lambda: _start()[1])
    offsets: dict[str, Floats] = field(default_factory=dict)
    counts: dict[str, Floats] = field(default_factory=dict)
    """How many series, weighted by what they tell, stand behind each offset."""
    discrepancy: Floats = field(default_factory=lambda: PRIOR.copy())
    """Coefficients of the scale of errors, one row per situation."""
    supported: Floats = field(default_factory=lambda: np.full(len(PRIOR), 4.0))
    """Doublings beyond the largest measured count up to which intervals held on campaigns that were left out."""
    noise: Floats = field(default_factory=lambda: np.full(len(NOISES), 1 / len(NOISES)))
    """Share of series whose points have each of NOISES."""


def overlap_of(series: Series) -> float:
    """1 if the strategy is known to overlap."""
    return 1.0 if strategy_kind(series.how).overlap else 0.0


def group_of(series: Series, overlap: float) -> str:
    """Series that share a link and a kind of strategy share an offset."""
    kind = strategy_kind(series.how)
    return f"{normal(series.link)}|{'servers' if kind.servers else 'ranks'}|{overlap:.0f}"


def _features(series: Series, overlap: float) -> Floats:
    kind, link = strategy_kind(series.how), link_kind(series.link)
    servers, kernel = float(kind.servers), float(link.through_kernel)
    parameters = parameters_of(series.network)
    rate = rate_of(series, parameters or 0.0)
    inside = between = speed = short = 0.0
    compute = step_of(series, parameters) if parameters else None
    if parameters and compute:
        inside = math.log(parameters * 4 / 10e9 / compute) + 3.5
        between = math.log(2 * parameters * 4 / (link.bandwidth or 3e9) / compute) + 2.0
        short = -math.log(compute / 0.3)
    if rate and series.network and not is_text(series.network):
        speed = min(math.log(rate / 300.0), MOST_SPEED)
    both = servers * kernel
    plain = [1.0, 0, 0, 0, 0, 0, 0]
    return np.array(
        [
            plain,
            [1.0, overlap, inside, 0, 0, 0, 0],
            [1.0, overlap, inside, servers, 0, 0, 0],
            [1.0, 0, 0, 0, every_pair_linked(series.device, series.link), 0, 0],
            [1.0, overlap, between, servers, kernel, both, speed],
            [1.0, overlap, 0, servers, kernel, both, 0],
            plain,
            [1.0, overlap, short, servers, kernel, 0, speed],
        ]
    )


def prior_of(population: Population, series: Sequence[Series], overlap: Sequence[float]) -> tuple[Floats, Floats]:
    """Mean and precision of the parameters of each series before its points are seen."""
    none = np.zeros(NUM_PARAMETERS)
    mean = np.stack(
        [
            np.einsum("dq,dq->d", _features(one, flag), population.weights)
            + population.offsets.get(group_of(one, flag), none)
            for one, flag in zip(series, overlap, strict=True)
        ]
    )
    precision = np.broadcast_to(
        np.linalg.inv(population.covariance), (len(series), *population.covariance.shape)
    ).copy()
    precision[:, 0, :] = precision[:, :, 0] = 0.0
    precision[:, 0, 0] = 1e-4
    return mean, precision


BETWEEN_HOSTS = PARAMETERS.index("network")


def bounded(mean: Floats, precision: Floats, least: Sequence[float]) -> tuple[Floats, Floats]:
    """The prior truncated to network costs of at least `least`: mean and variance of the truncated normal."""
    mean, precision = mean.copy(), precision.copy()
    for row in np.flatnonzero(np.isfinite(least)).tolist():
        covariance = np.linalg.inv(precision[row])
        deviation = float(np.sqrt(covariance[BETWEEN_HOSTS, BETWEEN_HOSTS]))
        cut = (least[row] - mean[row, BETWEEN_HOSTS]) / deviation
        hazard = float(np.exp(-0.5 * cut**2 - log_ndtr(-cut)) / np.sqrt(2 * np.pi))
        variance = max(1 + cut * hazard - hazard**2, LEAST_VARIANCE)
        mean[row] += covariance[:, BETWEEN_HOSTS] / deviation * hazard
        precision[row, BETWEEN_HOSTS, BETWEEN_HOSTS] += (1 / variance - 1) / deviation**2
    return mean, precision


def learn(series: Sequence[Series]) -> Population:
    """The prior that fits these series best."""
    population = Population()
    overlap = [overlap_of(one) for one in series]
    packed = pack(series, overlap)
    features = np.stack([_features(one, flag) for one, flag in zip(series, overlap, strict=True)])
    start = None
    for _ in range(ROUNDS):
        mean, precision = prior_of(population, series, overlap)
        start, spread = maximise(packed, mean, precision, start=start)
        population = _improved(population, series, (features, start, spread))
    return replace(population, noise=_noise_shares(population, series))


def _noise_shares(population: Population, series: Sequence[Series]) -> Floats:
    """How many of the series have each noise, by the evidence of their points (expectation-maximisation)."""
    times = len(NOISES)
    overlap = [overlap_of(one) for one in series] * times
    packed = pack([*series] * times, overlap, [noise for noise in NOISES for _ in series])
    prior = prior_of(population, [*series] * times, overlap)
    evidence = log_evidence(packed, prior, maximise(packed, *prior)).reshape(times, len(series))
    likely = np.exp(evidence - evidence.max(axis=0))
    shares = population.noise
    for _ in range(NOISE_ROUNDS):
        held = shares[:, None] * likely
        shares = (held / held.sum(axis=0)).mean(axis=1)
    return shares


def _improved(population: Population, series: Sequence[Series], fitted: tuple[Floats, Floats, Floats]) -> Population:
    features, best, spread = fitted
    learnt = np.clip(1 - np.einsum("mdd->md", spread) / np.diag(population.covariance), 0.0, 1.0)
    groups = [group_of(one, overlap_of(one)) for one in series]
    names = sorted(set(groups))
    index = np.array([names.index(group) for group in groups])
    old = np.stack([population.offsets.get(name, np.zeros(NUM_PARAMETERS)) for name in names])
    begin = _start()[0]
    weights, offsets = population.weights.copy(), np.zeros_like(old)
    counts = np.zeros_like(old)
    for k in range(1, NUM_PARAMETERS):
        weights[k] = _ridge(features[:, k], best[:, k] - old[index, k], learnt[:, k], begin[k])
        if k in OFFSETS:
            rest = best[:, k] - features[:, k] @ weights[k]
            counts[:, k] = np.bincount(index, learnt[:, k], len(names))
            offsets[:, k] = np.bincount(index, learnt[:, k] * rest, len(names)) / (counts[:, k] + SHRINK)
    rest = best - np.einsum("mdq,dq->md", features, weights) - offsets[index]
    covariance = np.einsum("mi,mj->ij", rest, rest) + spread.sum(0) + PRIOR_SERIES * _start()[1]
    covariance /= len(series) + PRIOR_SERIES
    covariance[0, :] = covariance[:, 0] = 0.0
    covariance[0, 0] = FREE
    return Population(
        weights, covariance, dict(zip(names, offsets, strict=True)), dict(zip(names, counts, strict=True))
    )


def _ridge(features: Floats, wanted: Floats, learnt: Floats, toward: Floats) -> Floats:
    matrix = np.einsum("m,mi,mj->ij", learnt, features, features) + np.diag(RIDGE)
    solution: Floats = np.linalg.solve(matrix, np.einsum("m,mi,m->i", learnt, features, wanted) + RIDGE * toward)
    return solution


def adapted(population: Population, series: Sequence[Series]) -> Population:
    """The population updated by the series of a file: links that it names get offsets of their own."""
    overlap = [overlap_of(one) for one in series]
    packed = pack(series, overlap)
    features = np.stack([_features(one, flag) for one, flag in zip(series, overlap, strict=True)])
    groups = np.array([group_of(one, flag) for one, flag in zip(series, overlap, strict=True)])
    start = None
    base_offsets, base_counts = population.offsets, population.counts
    for _ in range(3):
        mean, precision = prior_of(population, series, overlap)
        start, spread = maximise(packed, mean, precision, start=start)
        learnt = np.clip(1 - np.einsum("mdd->md", spread) / np.diag(population.covariance), 0.0, 1.0)
        rest = start - np.einsum("mdq,dq->md", features, population.weights)
        offsets = {**base_offsets}
        for name in set(groups.tolist()):
            mine = groups == name
            before = base_counts.get(name, np.zeros(NUM_PARAMETERS))
            held = base_offsets.get(name, np.zeros(NUM_PARAMETERS)) * (before + SHRINK)
            mask = np.isin(np.arange(NUM_PARAMETERS), OFFSETS)
            total = held + (learnt[mine] * rest[mine]).sum(0)
            offsets[name] = np.where(mask, total / (before + SHRINK + learnt[mine].sum(0)), 0.0)
        population = replace(population, offsets=offsets)
    return population


@cache
def shipped_population() -> Population:
    """The population of all published series, as shipped."""
    with FILE.open("rb") as file:
        data = tomllib.load(file)
    return Population(
        weights=np.array(data["weights"]),
        covariance=np.array(data["covariance"]),
        offsets={name: np.array(entry["offset"]) for name, entry in data["link"].items()},
        counts={name: np.array(entry["count"]) for name, entry in data["link"].items()},
        discrepancy=np.array([data["discrepancy"][name] for name in SITUATIONS]),
        supported=np.array([float(data["supported_doublings"][name]) for name in SITUATIONS]),
        noise=np.array(data["noise"]),
    )


def write_population(population: Population, path: Path = FILE) -> None:
    """Write a learnt prior; `paceline calibrate --population` does."""
    data: dict[str, Any] = {
        "source": "paceline calibrate --population, from catalog/published/throughput-*.toml",
        "supported_doublings": dict(zip(SITUATIONS, population.supported.astype(int).tolist(), strict=True)),
        "coefficients": list(COEFFICIENTS),
        "discrepancy": dict(zip(SITUATIONS, np.round(population.discrepancy, 5).tolist(), strict=True)),
        "noise": np.round(population.noise, 4).tolist(),
        "weights": np.round(population.weights, 5).tolist(),
        "covariance": np.round(population.covariance, 6).tolist(),
        "link": {
            name: {
                "offset": np.round(population.offsets[name], 5).tolist(),
                "count": np.round(population.counts[name], 3).tolist(),
            }
            for name in sorted(population.offsets)
        },
    }
    path.write_text(tomli_w.dumps(data), encoding="utf-8")
