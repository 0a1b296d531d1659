"""`paceline demo`: runs a study, predicts from it, checks one prediction by a run, and writes a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import api, catalog
from paceline.bench.measure import measure
from paceline.bench.sites.target import LaunchTarget
from paceline.catalog.evaluations import Evaluation
from paceline.errors import LaunchFailed
from paceline.explain.explanation import explain_campaign
from paceline.measurements.profile import Profile, write_profile
from paceline.measurements.results import CaseResult, campaign_results
from paceline.measurements.store import Store
from paceline.model.calibrate import Calibrated, calibrate_store
from paceline.model.calibration import write_calibration
from paceline.model.prediction import Curve
from paceline.model.question import question_of_run
from paceline.model.scaling import predict_curve
from paceline.report.documents import results_document
from paceline.report.exports import write_page
from paceline.report.terminal import emit, say
from paceline.report.terminal.campaign import show_results
from paceline.report.terminal.predictions import show_checked, show_curves
from paceline.report.terminal.progress import Display
from paceline.report.words import file_name
from paceline.spec.load import load_cases
from paceline.spec.study import Case, Study, expand

__all__ = ["demonstrate", "measured_campaign", "measured_evaluation"]

STUDY = Path(catalog.__file__).parent / "studies" / "demo.toml"
ELSEWHERE, COUNTS = "v100-10gbe-8x4", (4, 8, 16, 32)
"""Cluster and numbers of GPUs of the prediction that cannot be checked on this machine."""


def demonstrate(store: Path, *, as_json: bool) -> None:
    """Measure, predict, check, show."""
    stored = Store(store)
    stored.clean()
    study, cases = load_cases(STUDY, catalog.shipped_catalog())
    campaign = measured_campaign(study, cases, stored, quiet=as_json)
    calibrated = calibrate_store(stored, campaign)
    (profile,) = calibrated.profiles.values()
    files = _written(calibrated, profile, store)
    if not as_json:
        show_results(stored, campaign)
        say("", f"wrote {files[0]} and {files[1]}: the predictions below rest on them", "")
    elsewhere = api.predict(profile=profile, cluster=ELSEWHERE, devices=COUNTS).curve
    if not as_json:
        show_curves([elsewhere], [elsewhere.label], compared=False)
    checked = _checked(study, calibrated, stored, campaign, quiet=as_json)
    explanation = explain_campaign(stored, campaign)
    page = write_page(explanation, stored, None)
    if as_json:
        plain = {"campaign": campaign, "elsewhere": elsewhere.as_dict(), "check": checked.as_dict(), "page": str(page)}
        emit({**plain, "summary": list(explanation.summary)}, "demo")
        return
    say("", *explanation.summary, "")
    show_checked(checked.curve, checked.samples_per_s)
    say(f"The report: {page}")


def measured_campaign(
    study: Study,
    cases: tuple[Case, ...],
    stored: Store,
    target: LaunchTarget | None = None,
    *,
    quiet: bool,
    again: str = "paceline demo",
) -> str:
    """The campaign of a study's cases on a target, by default this machine; `again` starts a new campaign."""
    with (
        Display(quiet=quiet) as display,
        measure(study, cases, stored, target=target, installing=display.installing) as measurement,
    ):
        display.checks(measurement.checks)
        with display.interruptible(again):
            display.follow(measurement.events, study.protocol, cases)
    return measurement.campaign


def measured_evaluation(asked: Evaluation, stored: Store, name: str, *, quiet: bool) -> dict[str, Any]:
    """Results of an evaluation's studies, by kind, shown unless quiet."""
    stored.clean()
    documents = {}
    for kind, (study, on) in asked.studies.items():
        again, target = f"paceline evaluate {name}", LaunchTarget(on=on)
        campaign = measured_campaign(study, asked.cases_of(study), stored, target, quiet=quiet, again=again)
        documents[kind] = results_document(stored, campaign)
        if not quiet:
            show_results(stored, campaign)
    return documents


def _written(calibrated: Calibrated, profile: Profile, folder: Path) -> tuple[Path, Path]:
    """Files of the calibration and of the profile, for further predictions."""
    calibration, path = folder / "demo-calibration.json", folder / f"{file_name(profile.network)}.profile"
    write_calibration(calibrated.calibration, calibration)
    write_profile(profile, path)
    return calibration, path


@dataclass(frozen=True)
class _Checked:
    """A prediction and the later measurement."""

    curve: Curve
    samples_per_s: float

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        predicted = self.curve.predictions[-1]
        low, high = predicted.samples_per_s.interval_90
        return {
            "predicted": predicted.as_dict(),
            "measured_samples_per_s": self.samples_per_s,
            "error": predicted.samples_per_s.value / self.samples_per_s - 1,
            "held": low <= self.samples_per_s <= high,
        }


def _checked(study: Study, calibrated: Calibrated, stored: Store, campaign: str, *, quiet: bool) -> _Checked:
    """Twice the ranks of the study: predicted from its calibration first, then measured."""
    (profile,), ranks = calibrated.profiles.values(), 2 * max(study.devices)
    one = next(result for result in campaign_results(stored, campaign) if result.run.ranks == 1)
    question = question_of_run(one.run, profile, threads=None)
    curve = predict_curve(question, (ranks,), calibration=calibrated.calibration)
    if not quiet:
        say("", f"Predicted from that, before it is measured: {ranks} ranks on this machine")
        show_curves([curve], [curve.label], compared=False)
    protocol = study.protocol.model_copy(update={"phases": False, "launches": 2, "max_launches": 2})
    again = study.model_copy(update={"name": f"{study.name}-check", "devices": (ranks,), "protocol": protocol})
    cases = expand(again, catalog.shipped_catalog())
    return _Checked(curve, _rate(campaign_results(stored, measured_campaign(again, cases, stored, quiet=quiet))))


def _rate(results: list[CaseResult]) -> float:
    (result,) = results
    if result.throughput is None:
        raise LaunchFailed("the check could not be measured", hint="`paceline show demo-check` shows the reason")
    return result.throughput.value
