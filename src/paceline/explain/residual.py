"""Measured against predicted: the curve that one device's profile predicts, and the residual of each term.

The profile comes from the case with the fewest ranks of a series; the model predicts the others from it. The curve is
calibrated with all cases of the campaign on several ranks; each residual with all but its own case, so that it stays a
prediction, and with the catalog where there is no other. Where the measured step lies outside the predicted interval,
the terms say which part of the model not to trust.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pydantic import ValidationError

from paceline.errors import PacelineError
from paceline.explain.calibrated import NO_SWEEPS, Owned, Sweeps, own_calibrations
from paceline.explain.evidence import CaseEvidence
from paceline.measurements.profile import Profile
from paceline.measurements.run import Span
from paceline.model.calibration import Calibration
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
    basis: str
    """What the prediction was calibrated with; never this case itself."""

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
    basis: str
    """What the curve was calibrated with."""


def predict_series(cases: Sequence[CaseEvidence], sweeps: Sweeps = NO_SWEEPS) -> tuple[Series, ...]:
    """Every series of a campaign, predicted from its own smallest case, with the campaign's own calibration if it can.

    `sweeps` holds the fits of stored collective sweeps by cluster.
    """
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        groups[case.run.series].append(case)
    series = [sorted(group, key=lambda case: case.run.ranks) for group in groups.values()]
    owned = own_calibrations([(group, _profile(group)) for group in series], sweeps)
    return tuple(_series(group, owned) for group in series)


def _series(cases: list[CaseEvidence], owned: Owned) -> Series:
    label = cases[0].run.series_label
    profile = _profile(cases)
    if isinstance(profile, str):
        return Series(label, tuple(cases), None, profile, (), "")
    own = owned.everything(cases[0])
    try:
        curve = _curve(cases, profile, own, reach=REACH)
        residuals = _residuals(cases, profile, owned, known={own: curve})
    except (PacelineError, ValidationError) as error:
        return Series(label, tuple(cases), None, _reason(error), (), "")
    return Series(label, tuple(cases), curve, "", residuals, own.source)


def _reason(error: PacelineError | ValidationError) -> str:
    return error.message if isinstance(error, PacelineError) else str(error.errors()[0]["msg"])


def _profile(cases: list[CaseEvidence]) -> Profile | str:
    """The profile of the series' one-rank case, or why there is none."""
    smallest = cases[0]
    if smallest.run.ranks != 1 or smallest.cluster is None or smallest.run.scaling == "strong":
        return "a curve needs a case with one rank, and weak scaling"
    try:
        return profile_from(smallest.launches, _rows(smallest), jitter=JITTER)
    except (PacelineError, ValidationError) as error:
        return _reason(error)


def _curve(cases: list[CaseEvidence], profile: Profile, calibration: Calibration, *, reach: int) -> Curve:
    smallest = cases[0]
    assert smallest.cluster is not None
    question = Question(
        cluster=smallest.cluster,
        framework=smallest.run.framework,
        batch=smallest.run.batch,
        profile=profile,
        strategy=smallest.strategy,
        input=smallest.run.input,
    )
    measured = {case.run.ranks for case in cases}
    far = min(smallest.cluster.num_devices, reach * max(measured))
    more = {2**power for power in range(10) if 2**power <= far} if reach > 1 else set()
    return predict_curve(question, tuple(sorted(measured | more)), calibration=calibration)


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


def _residuals(
    cases: list[CaseEvidence], profile: Profile, owned: Owned, *, known: dict[Calibration, Curve]
) -> tuple[Residual, ...]:
    """Each case beside what is predicted of it without having seen it; `known` curves are not drawn again."""
    found = []
    for case in cases:
        if not case.result.phases:
            continue
        calibration = owned.without(case)
        if calibration not in known:
            known[calibration] = _curve(cases, profile, calibration, reach=1)
        predictions = known[calibration].predictions
        predicted = next(item for item in predictions if item.devices == case.run.ranks)
        found.append(_residual(case, predicted, calibration.source))
    return tuple(found)


def _residual(case: CaseEvidence, prediction: Prediction, basis: str) -> Residual:
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
        basis=basis,
    )
