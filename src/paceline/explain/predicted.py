"""Comparison with the model: the curve predicted from the profile of one device, and the residual of each term.

The profile comes from the case with the fewest ranks of a series; the model predicts the others from it. The curve is
calibrated with all cases of the campaign on several ranks; each residual with all but its own case, so that it is a
prediction, or with the catalog if there is no other case. If the measured step is outside the predicted interval, the
terms show which part of the model is unreliable.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from types import MappingProxyType

from pydantic import ValidationError

from paceline.errors import PacelineError
from paceline.explain.cases.evidence import CaseEvidence
from paceline.measurements.profile import Profile
from paceline.measurements.run import Span
from paceline.measurements.store import Store
from paceline.model.calibrate import fit_distributed, label_of, swept_calibration
from paceline.model.calibration import CATALOG_ONLY, Calibration
from paceline.model.prediction import Curve, Prediction
from paceline.model.profiles import Row, profile_from
from paceline.model.question import question_of_run
from paceline.model.scaling import predict_curve

__all__ = ["Residual", "ScalingSeries", "TermResidual", "predict_series", "sweeps_of"]

JITTER = 0.01
"""Default relative spread of a step within a launch."""
REACH = 4
"""A curve is predicted up to this multiple of the largest measured number of ranks."""
PHASE_TERMS = {
    "io": ("io",),
    "h2d": ("h2d",),
    "forward": ("forward",),
    "backward": ("backward", "slowdown"),
    "aggregate": ("aggregate", "fixed", "waiting"),
    "update": ("update",),
}
"""The terms of the model by measured phase."""
Sweeps = Mapping[str, Calibration]
NO_SWEEPS: Sweeps = MappingProxyType({})
MOST_HELD_OUT = 24
"""Largest group in which each case is predicted by a fit to the others; larger groups use the catalog."""
MOST_FITTED = 48
"""Largest number of cases that a calibration is fitted to."""


@dataclass(frozen=True)
class TermResidual:
    """Measured and predicted seconds of one phase."""

    phase: str
    measured_s: float
    predicted_s: float

    @property
    def residual_s(self) -> float:
        """Measured minus predicted."""
        return self.measured_s - self.predicted_s


@dataclass(frozen=True)
class Residual:
    """Measured and predicted step of one case."""

    case: str
    ranks: int
    measured_step_s: float
    predicted_step_s: float
    predicted_interval: tuple[float, float]
    """Interval of 90 %."""
    terms: tuple[TermResidual, ...]
    basis: str
    """Data of the calibration, without this case."""

    @property
    def inside(self) -> bool:
        """Whether the measured step is in the predicted interval."""
        low, high = self.predicted_interval
        return low <= self.measured_step_s <= high


@dataclass(frozen=True)
class ScalingSeries:
    """Cases that differ in the number of ranks only, with the curve that the model predicts for them."""

    label: str
    cases: tuple[CaseEvidence, ...]
    curve: Curve | None
    """None without data for a prediction."""
    why_not: str
    """Why there is no curve."""
    residuals: tuple[Residual, ...]
    basis: str
    """Data of the calibration."""


def predict_series(cases: Sequence[CaseEvidence], sweeps: Sweeps = NO_SWEEPS) -> tuple[ScalingSeries, ...]:
    """All series of a campaign, each predicted from its smallest case, calibrated with the campaign if possible.

    `sweeps` has the fits of stored collective sweeps by cluster.
    """
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        groups[*case.run.series, case.run.launcher].append(case)  # calibrations are of one launcher, too
    series = [sorted(group, key=lambda case: case.run.ranks) for group in groups.values()]
    calibrations = _own_calibrations([(group, _profile(group)) for group in series], sweeps)
    return tuple(_series(group, calibrations) for group in series)


def _series(cases: list[CaseEvidence], calibrations: _Calibrations) -> ScalingSeries:
    label = cases[0].run.series_label
    profile = _profile(cases)
    if isinstance(profile, str):
        return ScalingSeries(label, tuple(cases), None, profile, (), "")
    own = calibrations.everything(cases[0])
    try:
        curve = _curve(cases, profile, own, reach=REACH)
        residuals = _residuals(cases, profile, calibrations, known={own: curve})
    except (PacelineError, ValidationError) as error:
        return ScalingSeries(label, tuple(cases), None, _reason(error), (), "")
    return ScalingSeries(label, tuple(cases), curve, "", residuals, own.source)


def _reason(error: PacelineError | ValidationError) -> str:
    return error.message if isinstance(error, PacelineError) else str(error.errors()[0]["msg"])


def _profile(cases: list[CaseEvidence]) -> Profile | str:
    """The profile of the one-rank case of a series, or the reason why there is none."""
    smallest = cases[0]
    if smallest.run.ranks != 1 or smallest.cluster is None or smallest.run.scaling == "strong":
        return "a curve needs a case with one rank, and weak scaling"
    if not smallest.result.closes:
        return f"the phases of {smallest.label} do not close within 5 % of its step"
    try:
        return profile_from(smallest.launches, _rows(smallest), jitter=JITTER)
    except (PacelineError, ValidationError) as error:
        return _reason(error)


def _curve(cases: list[CaseEvidence], profile: Profile, calibration: Calibration, *, reach: int) -> Curve:
    smallest = cases[0]
    assert smallest.cluster is not None
    question = question_of_run(smallest.run, profile, threads=smallest.run.case.get("threads"))
    measured = {case.run.ranks for case in cases}
    far = min(smallest.cluster.num_devices, reach * max(measured))
    more = {2**power for power in range(10) if 2**power <= far} if reach > 1 else set()
    return predict_curve(question, tuple(sorted(measured | more)), calibration=calibration)


def _rows(evidence: CaseEvidence) -> list[Row]:
    """Phase, name, median seconds, median start and bytes of all spans of rank 0."""
    by_name: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in evidence.spans:
        if span.rank == 0 and span.phase in ("forward", "backward"):
            by_name[span.phase, span.name].append(span)
    return [
        (phase, name, median(s.seconds for s in spans), median(s.start_s for s in spans), spans[0].size_bytes)
        for (phase, name), spans in by_name.items()
    ]


def _residuals(
    cases: list[CaseEvidence], profile: Profile, calibrations: _Calibrations, *, known: dict[Calibration, Curve]
) -> tuple[Residual, ...]:
    """The residual of each case, predicted without the case itself; `known` curves are reused."""
    residuals = []
    for case in cases:
        if not case.result.phases:
            continue
        calibration = calibrations.without(case)
        if calibration not in known:
            known[calibration] = _curve(cases, profile, calibration, reach=1)
        predictions = known[calibration].predictions
        predicted = next(item for item in predictions if item.devices == case.run.ranks)
        residuals.append(_residual(case, predicted, calibration.source))
    return tuple(residuals)


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


@dataclass(frozen=True)
class _Group:
    """Cases of one cluster and framework on several ranks, with their profiles."""

    many: tuple[CaseEvidence, ...]
    profiles: dict[str, Profile]
    swept: Calibration

    def fitted(self, cases: Sequence[CaseEvidence], words: str) -> Calibration:
        """The calibration with these cases; the catalog without cases."""
        if not cases:
            return self.swept
        collectives = len(self.swept.collectives)
        swept = f", {collectives} swept collectives" if collectives else ""
        start = replace(self.swept, source=f"{words}{swept}")
        return fit_distributed(start, [case.launches for case in cases], self.profiles).calibration


@dataclass(frozen=True)
class _Calibrations:
    """Calibrations of the series of a campaign."""

    groups: dict[tuple[object, ...], _Group]
    whole: dict[tuple[object, ...], Calibration] = field(default_factory=dict)

    def everything(self, case: CaseEvidence) -> Calibration:
        """Calibration with all cases of its group on several ranks."""
        key = _key(case)
        if key not in self.whole:
            every = self.groups[key].many
            many = every[:: max(1, -(-len(every) // MOST_FITTED))]
            some = f"{len(many)} of " if len(many) < len(every) else ""
            words = "this study's own case" if len(every) == 1 else f"{some}this study's own {len(every)} cases"
            self.whole[key] = self.groups[key].fitted(many, f"{words} on several ranks")
        return self.whole[key]

    def without(self, case: CaseEvidence) -> Calibration:
        """Calibration without the case itself."""
        group = self.groups[_key(case)]
        if case not in group.many:
            return self.everything(case)
        others = [item for item in group.many if item is not case] if len(group.many) <= MOST_HELD_OUT else []
        words = "the other case" if len(others) == 1 else f"the other {len(others)} cases"
        return group.fitted(others, f"{words} of this study on several ranks")


def _own_calibrations(series: Sequence[tuple[Sequence[CaseEvidence], Profile | str]], sweeps: Sweeps) -> _Calibrations:
    """The calibration data of each series of a campaign."""
    many: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    profiles: dict[tuple[object, ...], dict[str, Profile]] = defaultdict(dict)
    for cases, profile in series:
        key = _key(cases[0])
        if isinstance(profile, Profile):
            profiles[key][label_of(cases[0].launches)] = profile
            many[key] += [case for case in cases if case.run.ranks > 1 and case.launches.steps]
    known = {key: sweeps.get(str(key[0]), CATALOG_ONLY) for key in profiles}
    return _Calibrations({key: _Group(tuple(many[key]), profiles[key], known[key]) for key in profiles})


def _key(case: CaseEvidence) -> tuple[object, ...]:
    run = case.run
    return (run.cluster, run.framework, run.input, run.launcher)


def sweeps_of(store: Store, cases: Sequence[CaseEvidence]) -> Sweeps:
    """Calibrations from the stored collective sweeps, by cluster of these cases."""
    if not store.read_campaigns("collectives"):
        return NO_SWEEPS
    calibrations = {name: swept_calibration(store, name) for name in {case.run.cluster for case in cases}}
    return {name: swept for name, swept in calibrations.items() if swept.collectives}
