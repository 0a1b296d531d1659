"""Measured against predicted: the curve that one device's profile predicts, and the residual of each term.

The profile comes from the case with the fewest ranks of a series; the model predicts the others from it. The curve is
calibrated with all cases of the campaign on several ranks; each residual with all but its own case, so that it stays a
prediction, and with the catalog where there is no other. Where the measured step lies outside the predicted interval,
the terms say which part of the model not to trust.
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
from paceline.model.question import Question
from paceline.model.scaling import predict_curve

__all__ = ["Residual", "ScalingSeries", "TermResidual", "predict_series", "sweeps_of"]

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
Sweeps = Mapping[str, Calibration]
NO_SWEEPS: Sweeps = MappingProxyType({})
MOST_HELD_OUT = 24
"""Cases of a group up to which each is predicted by a fit to the others; with more, the catalog says as much."""
MOST_FITTED = 48
"""Cases that a calibration is fitted to, evenly taken from more."""


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
class ScalingSeries:
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


def predict_series(cases: Sequence[CaseEvidence], sweeps: Sweeps = NO_SWEEPS) -> tuple[ScalingSeries, ...]:
    """Every series of a campaign, predicted from its own smallest case, with the campaign's own calibration if it can.

    `sweeps` holds the fits of stored collective sweeps by cluster.
    """
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        groups[case.run.series].append(case)
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
    cases: list[CaseEvidence], profile: Profile, calibrations: _Calibrations, *, known: dict[Calibration, Curve]
) -> tuple[Residual, ...]:
    """Each case beside what is predicted of it without having seen it; `known` curves are not drawn again."""
    found = []
    for case in cases:
        if not case.result.phases:
            continue
        calibration = calibrations.without(case)
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


@dataclass(frozen=True)
class _Group:
    """Cases of one cluster and framework on several ranks, and the profiles that they start from."""

    many: tuple[CaseEvidence, ...]
    profiles: dict[str, Profile]
    swept: Calibration

    def fitted(self, cases: Sequence[CaseEvidence], words: str) -> Calibration:
        """Calibrated with these cases; the catalog where there is none."""
        if not cases:
            return self.swept
        collectives = len(self.swept.collectives)
        swept = f", {collectives} swept collectives" if collectives else ""
        start = replace(self.swept, source=f"{words}{swept}")
        return fit_distributed(start, [case.launches for case in cases], self.profiles).calibration


@dataclass(frozen=True)
class _Calibrations:
    """Calibrations by what they may know."""

    groups: dict[tuple[object, ...], _Group]
    whole: dict[tuple[object, ...], Calibration] = field(default_factory=dict)

    def everything(self, case: CaseEvidence) -> Calibration:
        """With every case of its group on several ranks."""
        key = _key(case)
        if key not in self.whole:
            every = self.groups[key].many
            many = every[:: max(1, -(-len(every) // MOST_FITTED))]
            some = f"{len(many)} of " if len(many) < len(every) else ""
            words = "this study's own case" if len(every) == 1 else f"{some}this study's own {len(every)} cases"
            self.whole[key] = self.groups[key].fitted(many, f"{words} on several ranks")
        return self.whole[key]

    def without(self, case: CaseEvidence) -> Calibration:
        """Without the case itself."""
        group = self.groups[_key(case)]
        if case not in group.many:
            return self.everything(case)
        others = [item for item in group.many if item is not case] if len(group.many) <= MOST_HELD_OUT else []
        words = "the other case" if len(others) == 1 else f"the other {len(others)} cases"
        return group.fitted(others, f"{words} of this study on several ranks")


def _own_calibrations(series: Sequence[tuple[Sequence[CaseEvidence], Profile | str]], sweeps: Sweeps) -> _Calibrations:
    """What each series of a campaign, with its profile, can be calibrated with."""
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
    """What the collective sweeps that the store holds tell of the clusters of these cases."""
    if not store.read_campaigns("collectives"):
        return NO_SWEEPS
    found = {name: swept_calibration(store, name) for name in {case.run.cluster for case in cases}}
    return {name: swept for name, swept in found.items() if swept.collectives}
