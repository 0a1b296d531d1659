"""Measured against predicted: the curve that one device's profile predicts, and the residual of each term.

The profile comes from the case with the fewest ranks of a series; the model predicts the others from it. Where the
measured step lies outside the predicted interval, the terms say which part of the model not to trust.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import ValidationError

from paceline.errors import PacelineError
from paceline.explain.evidence import CaseEvidence, series_label
from paceline.measurements.run import Span
from paceline.model.prediction import Curve, Prediction
from paceline.model.profiles import Row, profile_from
from paceline.model.question import Question
from paceline.model.scaling import predict_curve

__all__ = ["Residual", "Series", "TermResidual", "predict_series"]

JITTER = 0.01
"""Spread of a step within a launch, as a share of it, where the prediction needs one."""
REACH = 4
"""A curve is predicted up to this many times the largest number of ranks that was measured."""
PHASE_TERMS = {
    "io": ("io",),
    "h2d": ("h2d",),
    "forward": ("forward",),
    "backward": ("backward", "slowdown"),
    "aggregate": ("aggregate", "fixed", "waiting"),
    "update": ("update",),
}
"""Which terms of the model a measured phase holds."""


@dataclass(frozen=True)
class TermResidual:
    """One phase: what was measured and what the model's terms say."""

    phase: str
    measured_s: float
    predicted_s: float

    @property
    def residual_s(self) -> float:
        """Measured minus predicted."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True)
class Residual:
    """One case against its prediction."""

    case: str
    ranks: int
    measured_step_s: float
    predicted_step_s: float
    predicted_interval: tuple[float, float]
    """90 %."""
    terms: tuple[TermResidual, ...]

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the predicted interval."""
        low, high = self.predicted_interval
        return low <= self.measured_step_s <= high


@dataclass(frozen=True)
class Series:
    """Cases that differ in the number of ranks only, with the curve that the model predicts for them."""

    label: str
    cases: tuple[CaseEvidence, ...]
    curve: Curve | None
    """None where the model has nothing to predict from."""
    why_not: str
    """Why there is no curve, if there is none."""
    residuals: tuple[Residual, ...]


def predict_series(cases: Sequence[CaseEvidence]) -> tuple[Series, ...]:
    """Every series of a campaign, predicted from its own smallest case."""
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        run = case.run
        size = run.batch * run.ranks if run.scaling == "strong" else run.batch
        groups[run.network, run.cluster, run.framework, run.strategy, run.input, run.scaling, size].append(case)
    return tuple(_series(sorted(group, key=lambda case: case.run.ranks)) for group in groups.values())


def _series(cases: list[CaseEvidence]) -> Series:
    label = series_label(cases[0].run)
    try:
        curve = _curve(cases)
    except (PacelineError, ValidationError) as error:
        why = error.message if isinstance(error, PacelineError) else str(error.errors()[0]["msg"])
        return Series(label, tuple(cases), None, why, ())
    if curve is None:
        return Series(label, tuple(cases), None, "a curve needs a case with one rank, and weak scaling", ())
    known = {prediction.devices: prediction for prediction in curve.predictions}
    residuals = [_residual(case, known[case.run.ranks]) for case in cases if case.result.phases]
    return Series(label, tuple(cases), curve, "", tuple(residuals))


def _curve(cases: list[CaseEvidence]) -> Curve | None:
    smallest = cases[0]
    if smallest.run.ranks != 1 or smallest.cluster is None or smallest.run.scaling == "strong":
        return None
    profile = profile_from(smallest.launches, _rows(smallest), jitter=JITTER)
    question = Question(
        cluster=smallest.cluster,
        framework=smallest.run.framework,
        batch=smallest.run.batch,
        profile=profile,
        strategy=smallest.strategy,
        input=smallest.run.input,
    )
    measured = {case.run.ranks for case in cases}
    far = min(smallest.cluster.num_devices, REACH * max(measured))
    more = {2**power for power in range(10) if 2**power <= far}
    return predict_curve(question, tuple(sorted(measured | more)))


def _rows(evidence: CaseEvidence) -> list[Row]:
    """Phase, name, median seconds and start, and bytes of everything that rank 0 traced."""
    found: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in evidence.spans:
        if span.rank == 0 and span.phase in ("forward", "backward"):
            found[span.phase, span.name].append(span)
    return [
        (phase, name, median(s.seconds for s in spans), median(s.start_s for s in spans), spans[0].size_bytes)
        for (phase, name), spans in found.items()
    ]


def _residual(case: CaseEvidence, prediction: Prediction) -> Residual:
    assert case.result.step_s is not None
    terms = [
        TermResidual(phase, case.result.phases[phase], sum(prediction.terms.get(name, 0.0) for name in names))
        for phase, names in PHASE_TERMS.items()
    ]
    return Residual(
        case=case.label,
        ranks=case.run.ranks,
        measured_step_s=case.result.step_s.value,
        predicted_step_s=prediction.step_s.value,
        predicted_interval=prediction.step_s.interval_90,
        terms=tuple(terms),
    )
