"""Predictions for an evaluation: curves, plans, gains of changes, and published figures with their predictions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import catalog
from paceline.catalog.evaluations import Direction, Evaluation, EvaluationCurve, EvaluationPlan, Headline
from paceline.errors import InputError
from paceline.model.changes import changed
from paceline.model.plan.make import Plan, make_plan
from paceline.model.prediction import Curve, Estimate, reasons
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.load import read_text
from paceline.spec.strategy import Strategy, precision_by_alias

__all__ = [
    "EmulatedCase",
    "EvaluationPrediction",
    "PredictedCurve",
    "PredictedDirection",
    "PredictedHeadline",
    "measured_text",
    "predict_evaluation",
    "read_measured",
]

MEASURED_SCHEMA = "paceline.measured/2"
MEASURED_KEYS = (
    *("network", "framework", "strategy", "cluster", "ranks", "batch", "counted", "samples_per_s", "step_s", "speedup"),
    *(
        "base_ranks",
        "shares",
        "phases_close",
        "labels",
        "paceline",
        "cpu",
        "cores",
        "threads",
        "failure",
        "drifted",
        "disturbed_by",
    ),
)
"""The fields of a measured case that a page shows."""


@dataclass(frozen=True)
class PredictedCurve:
    """A curve for each framework, and why each differs from the first."""

    asked: EvaluationCurve
    curves: dict[str, Curve]

    def why(self, framework: str) -> list[str]:
        """The differences of a framework from the first, and the terms of a step that change most."""
        return reasons(self.curves[self.asked.frameworks[0]], self.curves[framework])


@dataclass(frozen=True)
class PredictedHeadline:
    """A published figure and its prediction."""

    headline: Headline
    predicted: Estimate

    @property
    def error(self) -> float:
        """The prediction against the published figure, as a share of it."""
        return self.predicted.value / self.headline.published - 1

    @property
    def held(self) -> bool:
        """Whether the published figure is inside the 90 % interval."""
        low, high = self.predicted.interval_90
        return low <= self.headline.published <= high


@dataclass(frozen=True)
class PredictedDirection:
    """Relative gain in throughput of a change, at a number of devices."""

    direction: Direction
    devices: int
    gain: float


EmulatedCase = tuple[str, str, str, int, int]
"""Network, strategy and cluster by name, ranks, batch: what tells the cases of an emulated study apart."""


@dataclass(frozen=True)
class EvaluationPrediction:
    """All predictions for an evaluation."""

    evaluation: Evaluation
    curves: tuple[PredictedCurve, ...]
    plans: tuple[tuple[EvaluationPlan, Plan], ...]
    headlines: tuple[PredictedHeadline, ...]
    directions: tuple[PredictedDirection, ...]
    emulated: dict[EmulatedCase, float]
    """Samples/s that the model predicts for each case of the emulated study."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "name": self.evaluation.name,
            "title": self.evaluation.title,
            "curves": [
                {"name": one.asked.name, "frameworks": {name: curve.as_dict() for name, curve in one.curves.items()}}
                for one in self.curves
            ],
            "plans": [{"name": asked.name, **plan.as_dict()} for asked, plan in self.plans],
            "published": [
                {
                    **one.headline.model_dump(),
                    "predicted": one.predicted.value,
                    "interval_90": list(one.predicted.interval_90),
                    "error": one.error,
                    "held": one.held,
                }
                for one in self.headlines
            ],
            "directions": [
                {**one.direction.model_dump(), "devices": one.devices, "gain": one.gain} for one in self.directions
            ],
        }


def predict_evaluation(evaluation: Evaluation, tell: Callable[[str], None] = lambda line: None) -> EvaluationPrediction:
    """Predict every curve, plan and change of an evaluation; `tell` is called with each next item."""
    curves = []
    for number, asked in enumerate(evaluation.curve, 1):
        tell(f"curve {number} of {len(evaluation.curve)}: {asked.network} on {asked.cluster}")
        counts = tuple(asked.devices)
        found = {name: predict_curve(_question(evaluation, asked, name), counts) for name in asked.frameworks}
        curves.append(PredictedCurve(asked, found))
    plans = []
    for number, wanted in enumerate(evaluation.plan, 1):
        tell(f"plan {number} of {len(evaluation.plan)}: {wanted.network} on {wanted.cluster}")
        plans.append((wanted, _planned(evaluation, wanted)))
    if evaluation.direction:
        tell(f"{len(evaluation.direction)} changes")
    named = {one.asked.name: one for one in curves}
    return EvaluationPrediction(
        evaluation,
        tuple(curves),
        tuple(plans),
        tuple(_headline(one, named[one.curve].curves[one.framework]) for one in evaluation.published),
        tuple(_direction(evaluation, one, named[one.curve]) for one in evaluation.direction),
        _emulated(evaluation),
    )


def _question(
    evaluation: Evaluation, asked: EvaluationCurve, framework: str, changes: Mapping[str, str] | None = None
) -> Question:
    given = {} if asked.precision is None else {"precision": precision_by_alias(asked.precision)}
    question = Question(
        cluster=evaluation.cluster_called(asked.cluster),
        framework=catalog.framework(framework),
        batch=asked.batch,
        network=catalog.network(asked.network),
        profile=None,
        strategy=Strategy().model_copy(update=given),
        input=asked.input,
    )
    return changed(question, dict(changes or {}))


def _planned(evaluation: Evaluation, asked: EvaluationPlan) -> Plan:
    cluster = evaluation.cluster_called(asked.cluster)
    question = Question(
        cluster=cluster,
        framework=catalog.framework("paceline"),
        batch=max(1, asked.global_batch // cluster.num_devices),
        network=catalog.network(asked.network),
        profile=None,
        strategy=Strategy(),
    )
    return make_plan(question, global_batch=asked.global_batch)


def _headline(headline: Headline, curve: Curve) -> PredictedHeadline:
    point = next(one for one in curve.predictions if one.devices == headline.devices)
    predicted = point.samples_per_s if headline.quantity == "samples/s" else point.speed_up
    assert predicted is not None
    return PredictedHeadline(headline, predicted)


def _direction(evaluation: Evaluation, direction: Direction, answered: PredictedCurve) -> PredictedDirection:
    before = answered.curves[direction.framework].predictions[-1]
    question = _question(evaluation, answered.asked, direction.framework, direction.changes)
    (after,) = predict_curve(question, (before.devices,)).predictions
    gain = after.samples_per_s.value / before.samples_per_s.value - 1
    return PredictedDirection(direction, before.devices, gain)


def _emulated(evaluation: Evaluation) -> dict[EmulatedCase, float]:
    predicted = {}
    for case in evaluation.cases_of(evaluation.emulated) if evaluation.emulated else ():
        question = Question(case.cluster, case.framework, case.batch, network=case.network, strategy=case.strategy)
        (point,) = predict_curve(question, (case.ranks,)).predictions
        key = (case.network.name, case.strategy.name, case.cluster.name, case.ranks, case.batch)
        predicted[key] = point.samples_per_s.value
    return predicted


def measured_text(name: str, measured: Mapping[str, Any]) -> str:
    """The content of the file with the measurements of an evaluation, by kind of study; logs are left out."""
    kept = {
        kind: {"campaign": one["campaign"], "cases": [_without_log(case) for case in one["cases"]]}
        for kind, one in measured.items()
    }
    return json.dumps({"schema": MEASURED_SCHEMA, "name": name, "measured": kept}, indent=1, allow_nan=False) + "\n"


def _without_log(case: Mapping[str, Any]) -> dict[str, Any]:
    failure = case["failure"] and {key: value for key, value in case["failure"].items() if key != "log_tail"}
    return {**case, "failure": failure}


def read_measured(path: Path, name: str) -> dict[str, Any]:
    """Measurements of an earlier run of an evaluation, by kind of study, from its file."""
    hint = f"delete it, and `paceline evaluate {name} --measured {path}` writes it anew"
    try:
        kept: dict[str, Any] = json.loads(read_text(path))
        studies = list(kept["measured"].values())
        good = kept["schema"] == MEASURED_SCHEMA and all(isinstance(one["campaign"], str) for one in studies)
        cases = [case for one in studies for case in one["cases"]]
        missing = [key for case in cases for key in MEASURED_KEYS if key not in case]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: got no measurements of an evaluation", hint=hint) from error
    if missing or not (good and cases):
        raise InputError(f"{path}: got a case without {missing[0]!r}" if missing else f"{path}: got no case", hint=hint)
    if kept.get("name") != name:
        raise InputError(f"{path}: got measurements of {kept.get('name')!r}, expected those of {name!r}", hint=hint)
    measured: dict[str, Any] = kept["measured"]
    return measured
