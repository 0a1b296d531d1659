"""GPT iterations: cross-validation over model shapes on one host, then prediction of many hosts from few multi-host
points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from paceline.catalog.published import published
from paceline.model.prediction import Estimate
from paceline.model.transformer.iterations import Iteration, predict_from
from paceline.model.transformer.shape import Parallel, TransformerShape, check_memory
from paceline.model.transformer.step import Rates, features, fit_rates, predict_iteration, refit_beyond

__all__ = [
    "GptPoints",
    "Judged",
    "gpt_points",
    "judge_command",
    "judge_many_hosts",
    "judge_one_host",
    "judge_own_machine",
    "predict_published",
]

Floats = NDArray[np.float64]

CALIBRATION_SHARE = 0.1
FEW = 5
DEVICE_BYTES = 80e9
"""Memory of one device, as the command assumes."""
REPEATS = 20
"""Random selections of the few points; each is evaluated on all other points."""


@dataclass(frozen=True)
class GptPoints:
    """Measured iterations."""

    shapes: tuple[TransformerShape, ...]
    parallels: tuple[Parallel, ...]
    seconds: Floats

    def take(self, index: NDArray[np.int64]) -> tuple[dict[str, Floats], Floats]:
        """Features and seconds of some of the points."""
        chosen = [int(k) for k in index]
        case = features([self.shapes[k] for k in chosen], [self.parallels[k] for k in chosen])
        return case, self.seconds[index]


@dataclass(frozen=True)
class Judged:
    """Predicted over measured, and whether the intervals held, one entry per judged point."""

    ratio: Floats
    in_50: NDArray[np.bool_]
    in_90: NDArray[np.bool_]


def gpt_points(name: str) -> GptPoints:
    """The shipped points of one file."""
    table = published(name)
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    sizes = [name for name in ("hidden", "heads", "layers", "sequence", "vocabulary") if name in table["columns"]]
    shapes = tuple(TransformerShape(*(row[name] for name in sizes)) for row in rows)
    again = table["recompute"]
    parallels = tuple(
        Parallel(r["tensor"], r["pipeline"], r["data"], r["micro_batch"], r["global_batch"], recompute=again)
        for r in rows
    )
    return GptPoints(shapes, parallels, np.array([r["milliseconds"] / 1e3 for r in rows]))


def judge_one_host(points: GptPoints, *, seed: int = 0) -> Judged:
    """Each model shape is held out once; a tenth of all points, drawn from the other shapes, calibrates the model."""
    rng = np.random.default_rng(seed)
    names = [(shape.hidden, shape.layers) for shape in points.shapes]
    budget = int(CALIBRATION_SHARE * len(names))
    parts = []
    for name in sorted(set(names)):
        held = np.array([k for k, other in enumerate(names) if other == name])
        others = np.setdiff1d(np.arange(len(names)), held)
        rates = fit_rates(*points.take(rng.choice(others, budget, replace=False)))
        parts.append(_judge(rates, points, held))
    return _joined(parts)


def judge_many_hosts(one_host: GptPoints, many: GptPoints, *, seed: int = 0) -> Judged:
    """Predict points of many hosts from one host's calibration and five of the points, for repeated choices of five."""
    rng = np.random.default_rng(seed)
    rates = fit_rates(*one_host.take(np.arange(len(one_host.seconds))))
    parts = []
    for _ in range(REPEATS):
        order = rng.permutation(len(many.seconds))
        beyond = refit_beyond(rates, *many.take(order[:FEW]))
        parts.append(_judge(beyond, many, order[FEW:]))
    return _joined(parts)


def predict_published(
    shape: TransformerShape, parallel: Parallel, *, without: TransformerShape | None = None
) -> Estimate:
    """An iteration on A100 hosts, from all published points of one host and, for many, those beyond it.

    `without` leaves the points of one shape beyond one host out, to judge the prediction of them.
    """
    parallel.check(shape)
    rates = _one_host_rates()
    if parallel.devices > parallel.per_host:
        many = gpt_points("gpt-a100-many-hosts")
        known = np.array([place for place, other in enumerate(many.shapes) if other != without])
        rates = refit_beyond(rates, *many.take(known))
    return predict_iteration(rates, features([shape], [parallel]))[0]


@cache
def _one_host_rates() -> Rates:
    one_host = gpt_points("gpt-a100-one-host")
    return fit_rates(*one_host.take(np.arange(len(one_host.seconds))))


def judge_command() -> Judged:
    """Judge `paceline transformer` on every point beyond one host, with all points of the same shape left out.

    A point that does not fit into memory is refused, as the command refuses it.
    """
    many = gpt_points("gpt-a100-many-hosts")
    made = []
    for shape, parallel in zip(many.shapes, many.parallels, strict=True):
        check_memory(shape, parallel, device_bytes=DEVICE_BYTES)
        made.append(predict_published(shape, parallel, without=shape))
    return _judged(made, many.seconds)


def judge_own_machine() -> Judged:
    """Judge `paceline transformer --measured`: of two models on another machine, each from the other's iterations."""
    points = gpt_points("llama-b200-one-host")
    rows = zip(points.shapes, points.parallels, points.seconds.tolist(), strict=True)
    measured = [Iteration(*row) for row in rows]
    made = [predict_from([m for m in measured if m.shape != one.shape], one.shape, one.parallel) for one in measured]
    return _judged(made, points.seconds)


def _judge(rates: Rates, points: GptPoints, index: NDArray[np.int64]) -> Judged:
    case, seconds = points.take(index)
    return _judged(predict_iteration(rates, case), seconds)


def _judged(predicted: Sequence[Estimate], seconds: Floats) -> Judged:
    held = [
        [low <= truth <= high for (low, high), truth in zip(intervals, seconds, strict=True)]
        for intervals in ([e.interval_50 for e in predicted], [e.interval_90 for e in predicted])
    ]
    return Judged(np.array([e.value for e in predicted]) / seconds, np.array(held[0]), np.array(held[1]))


def _joined(parts: list[Judged]) -> Judged:
    return Judged(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("ratio", "in_50", "in_90")))
