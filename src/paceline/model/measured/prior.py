"""What series have in common: a Gaussian prior over the curve's parameters, learnt from published campaigns.

    u = features @ weights + offset of (link, kind of strategy) + noise,   noise ~ N(0, covariance)

Learnt by expectation-maximisation: fit every series under the prior, then the prior to the fits. Features are facts
and names alone: parameters of the network, stated rate of the link, kind of strategy, speed of one device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.model.measured.curve import NUM_PARAMETERS
from paceline.model.measured.fit import Packed, maximise, pack
from paceline.model.measured.names import link_kind, normal, parameters_of, strategy_kind
from paceline.model.measured.points import Series

__all__ = ["NUM_FEATURES", "Population", "adapted", "group_of", "learn", "overlap_of", "prior_of"]

Floats = NDArray[np.float64]

NUM_FEATURES = 7
FREE = 9.0
"""Prior variance of the compute parameter, which every series measures by itself."""
OFFSETS = (1, 2, 4, 5, 7)
"""Parameters that a link shifts as a whole."""
SHRINK = 3.0
"""Series that a link's own offset must be worth before it counts half."""
PRIOR_SERIES = 10.0
"""Series that the starting covariance is worth."""
RIDGE = np.array([0.5, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0])
ROUNDS = 8
TEXT = ("bert", "gpt", "transformer", "lstm", "gnmt")


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
    scale_50: float = 1.0
    scale_90: float = 1.0
    """Factors on the half-width of intervals, so that they hold what they promise on held-out series."""


def overlap_of(series: Series) -> float:
    """1 if the strategy is known to overlap."""
    return 1.0 if strategy_kind(series.how).overlap else 0.0


def group_of(series: Series) -> str:
    """Series that share a link and a kind of strategy share an offset."""
    kind = strategy_kind(series.how)
    return f"{normal(series.link)}|{'servers' if kind.servers else 'ranks'}|{overlap_of(series):.0f}"


def _features(series: Series) -> Floats:
    kind, link = strategy_kind(series.how), link_kind(series.link)
    servers, overlap, kernel = float(kind.servers), overlap_of(series), float(link.through_kernel)
    parameters = parameters_of(series.network)
    rate = float(series.samples_per_s[0] / series.devices[0])
    inside = between = speed = 0.0
    if parameters and series.batch:
        compute = series.batch / rate
        inside = math.log(parameters * 4 / 10e9 / compute) + 3.5
        between = math.log(2 * parameters * 4 / (link.bandwidth or 3e9) / compute) + 2.0
    short = -math.log(series.batch / rate / 0.3) if parameters and series.batch else 0.0
    if not any(word in normal(series.network) for word in TEXT):
        speed = math.log(rate / 300.0)
    both = servers * kernel
    plain = [1.0, 0, 0, 0, 0, 0, 0]
    return np.array(
        [
            plain,
            [1.0, overlap, inside, 0, 0, 0, 0],
            [1.0, overlap, inside, servers, 0, 0, 0],
            plain,
            [1.0, overlap, between, servers, kernel, both, speed],
            [1.0, overlap, 0, servers, kernel, both, 0],
            plain,
            [1.0, overlap, short, servers, kernel, 0, speed],
        ]
    )


def prior_of(population: Population, series: Sequence[Series]) -> tuple[Floats, Floats]:
    """Mean and precision of the parameters of each series before its points are seen."""
    none = np.zeros(NUM_PARAMETERS)
    mean = np.stack(
        [
            np.einsum("dq,dq->d", _features(one), population.weights) + population.offsets.get(group_of(one), none)
            for one in series
        ]
    )
    precision = np.broadcast_to(
        np.linalg.inv(population.covariance), (len(series), *population.covariance.shape)
    ).copy()
    precision[:, 0, :] = precision[:, :, 0] = 0.0
    precision[:, 0, 0] = 1e-4
    return mean, precision


def learn(series: Sequence[Series]) -> Population:
    """The prior that fits these series best."""
    population = Population()
    packed = pack(series, [overlap_of(one) for one in series])
    features = np.stack([_features(one) for one in series])
    start = None
    for _ in range(ROUNDS):
        mean, precision = prior_of(population, series)
        start, spread = maximise(packed, mean, precision, start=start)
        population = _improved(population, series, (features, start, spread))
    return population


def _improved(population: Population, series: Sequence[Series], fitted: tuple[Floats, Floats, Floats]) -> Population:
    features, found, spread = fitted
    told = np.clip(1 - np.einsum("mdd->md", spread) / np.diag(population.covariance), 0.0, 1.0)
    names = sorted({group_of(one) for one in series})
    index = np.array([names.index(group_of(one)) for one in series])
    old = np.stack([population.offsets.get(name, np.zeros(NUM_PARAMETERS)) for name in names])
    begin = _start()[0]
    weights, offsets = population.weights.copy(), np.zeros_like(old)
    counts = np.zeros_like(old)
    for k in range(1, NUM_PARAMETERS):
        weights[k] = _ridge(features[:, k], found[:, k] - old[index, k], told[:, k], begin[k])
        if k in OFFSETS:
            rest = found[:, k] - features[:, k] @ weights[k]
            counts[:, k] = np.bincount(index, told[:, k], len(names))
            offsets[:, k] = np.bincount(index, told[:, k] * rest, len(names)) / (counts[:, k] + SHRINK)
    rest = found - np.einsum("mdq,dq->md", features, weights) - offsets[index]
    covariance = np.einsum("mi,mj->ij", rest, rest) + spread.sum(0) + PRIOR_SERIES * _start()[1]
    covariance /= len(series) + PRIOR_SERIES
    covariance[0, :] = covariance[:, 0] = 0.0
    covariance[0, 0] = FREE
    return Population(
        weights, covariance, dict(zip(names, offsets, strict=True)), dict(zip(names, counts, strict=True))
    )


def _ridge(features: Floats, wanted: Floats, told: Floats, toward: Floats) -> Floats:
    matrix = np.einsum("m,mi,mj->ij", told, features, features) + np.diag(RIDGE)
    solution: Floats = np.linalg.solve(matrix, np.einsum("m,mi,m->i", told, features, wanted) + RIDGE * toward)
    return solution


def adapted(population: Population, series: Sequence[Series], packed: Packed) -> Population:
    """The population after a file's own series spoke: links it names get offsets of their own."""
    features = np.stack([_features(one) for one in series])
    start = None
    base_offsets, base_counts = population.offsets, population.counts
    for _ in range(3):
        mean, precision = prior_of(population, series)
        start, spread = maximise(packed, mean, precision, start=start)
        told = np.clip(1 - np.einsum("mdd->md", spread) / np.diag(population.covariance), 0.0, 1.0)
        rest = start - np.einsum("mdq,dq->md", features, population.weights)
        offsets = {**base_offsets}
        for name in {group_of(one) for one in series}:
            mine = [position for position, one in enumerate(series) if group_of(one) == name]
            before = base_counts.get(name, np.zeros(NUM_PARAMETERS))
            held = base_offsets.get(name, np.zeros(NUM_PARAMETERS)) * (before + SHRINK)
            mask = np.isin(np.arange(NUM_PARAMETERS), OFFSETS)
            total = held + (told[mine] * rest[mine]).sum(0)
            offsets[name] = np.where(mask, total / (before + SHRINK + told[mine].sum(0)), 0.0)
        population = Population(
            population.weights, population.covariance, offsets, base_counts, population.scale_50, population.scale_90
        )
    return population
