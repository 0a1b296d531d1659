"""JSON documents of the verbs, without infinities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.measurements.ranking import Ranking
from paceline.measurements.results import CaseResult, Usage, campaign_results
from paceline.measurements.run import Check, Machine, RunData
from paceline.measurements.store import Store
from paceline.measurements.summary import Comparison, Interval
from paceline.report.terminal.watched import verdict_document
from paceline.spec.study import Case

if TYPE_CHECKING:  # Importing the model would make every verb slow to start.
    from paceline.bench.environments import CacheFolder
    from paceline.explain.explanation import CaseExplanation, Explanation
    from paceline.explain.findings import Finding
    from paceline.explain.predicted import ScalingSeries
    from paceline.model.calibrate import Calibrated
    from paceline.model.prediction import Curve

__all__ = [
    "calibrated_document",
    "campaigns_document",
    "cases_document",
    "checks_document",
    "comparison_document",
    "explanation_document",
    "plain_data",
    "predictions_document",
    "results_document",
    "sweep_document",
]

ASKED = ("case_id", "network", "framework", "strategy", "cluster", "launcher", "ranks", "batch", "scaling", "input")
Document = dict[str, Any]


def campaigns_document(store: Store) -> list[Document]:
    """Every campaign of a store with the number of its runs."""
    names = ("campaign", "study", "title", "started_at", "launcher")
    return [
        {**{name: campaign[name] for name in names}, "runs": len(store.read_all(campaign=str(campaign["campaign"])))}
        for campaign in store.read_campaigns()
    ]


def checks_document(machine: Machine, checks: Sequence[Check], folders: Sequence[CacheFolder]) -> Document:
    """The machine, what would disturb a measurement on it, and the caches."""
    return {
        "machine": machine.model_dump(mode="json", exclude={"checks"}),
        "ok": all(check.status != "bad" for check in checks),
        "checks": [check.model_dump(mode="json") for check in checks],
        "caches": [{**vars(folder), "path": str(folder.path)} for folder in folders],
    }


def cases_document(study: str, cases: Sequence[Case]) -> Document:
    """The cases of a study, which were not run."""
    return {"study": study, "cases": [{"id": case.id, "label": case.label, **case.canonical} for case in cases]}


def results_document(store: Store, campaign: str) -> Document:
    """Every figure of the campaign."""
    results = campaign_results(store, campaign)
    return {"campaign": campaign, "store": str(store.root), "cases": [_result(result) for result in results]}


def _result(result: CaseResult) -> Document:
    run = result.run
    return {
        **{name: getattr(run, name) for name in ASKED},
        "launches": result.num_launches,
        "failed": result.num_failed,
        "drifted": result.num_drifted,
        "counted": result.num_counted,
        "timed_steps": result.num_steps,
        "samples_per_s": _interval(result.throughput),
        **_usage(result.usage),
        "step_s": _interval(result.step_s),
        "speedup": _interval(result.speedup),
        "base_ranks": result.base_ranks,
        "efficiency": result.efficiency,
        "phases_s": result.phases,
        "phases_close": result.closes,
        "shares": result.shares,
        "instrument_overhead": result.instrument_overhead,
        "native_timers_s": result.native,
        "labels": list(run.labels),
        "versions": run.machine.versions,
        "paceline": run.machine.paceline,
        "cpu": run.machine.cpu,
        "cores": run.machine.cores,
        "threads": run.machine.threads,
        "disturbed_by": [f"{check.name}: {check.saw}" for check in run.machine.checks if check.status == "bad"],
        "failure": run.failure.model_dump(mode="json") if run.failure else None,
    }


def _usage(usage: Usage | None) -> Document:
    """Tokens or images per second, and the share of the peak."""
    if usage is None:
        return {"mfu": None}
    return {**({} if usage.unit == "samples" else {f"{usage.unit}_per_s": usage.per_s}), "mfu": usage.mfu}


def _interval(interval: Interval | None) -> Document | None:
    """An interval as JSON data; an infinite bound is null."""
    plain: Document | None = plain_data(asdict(interval)) if interval else None
    return plain


def comparison_document(
    result: Comparison, sample: str, base: str, usages: Sequence[Usage | None] = (None, None)
) -> Document:
    """Two groups of launches compared; `usages` are their throughputs as people count them."""
    return {
        "sample": sample,
        "base": base,
        "ratio": _interval(result.ratio),
        "p_value": result.p_value,
        "launches": list(result.launches),
        "steps": list(result.steps) if result.steps else None,
        "pairs": result.num_pairs,
        "verdict": result.verdict,
        "usage": [_usage(usage) for usage in usages],
    }


def sweep_document(data: RunData) -> Document:
    """One sweep of collectives, or why it failed."""
    run = data.run
    failure = run.failure.model_dump(mode="json") if run.failure else None
    return {"run": run.id, "ranks": run.ranks, "collectives": run.facts["collectives"], "failure": failure}


def calibrated_document(calibrated: Calibrated, output: Path) -> Document:
    """A calibration and the runs that it was fitted to."""
    calibration = calibrated.calibration
    return {
        "output": str(output),
        "source": calibration.source,
        "collectives": [vars(fit) for fit in calibration.collectives],
        "fixed_per_gradient_s": calibration.fixed_per_gradient.value,
        "slowdown": calibration.slowdown.value,
        "crowding": calibration.crowding,
        "overlap_rate": calibration.overlap_rate,
        "copy_per_byte": calibration.copy_per_byte,
        "profiles": sorted(calibrated.profiles),
        "fitted": [vars(one) for one in calibrated.fitted],
    }


def predictions_document(curves: Sequence[Curve], *, compared: bool) -> Document:
    """All predictions in one list, each with its series, and what each curve shows."""
    from paceline.model.prediction import reasons

    plain = [curve.as_dict() for curve in curves]
    predictions = [{"series": curve["label"], **one} for curve in plain for one in curve.pop("predictions")]
    if compared:
        for entry, curve in zip(plain[1:], curves[1:], strict=True):
            entry["reasons"] = reasons(curves[0], curve)
    return {"predictions": predictions, "curves": plain}


def explanation_document(explanation: Explanation) -> Document:
    """Summary, findings, gaps, curves and every case."""
    document: Document = {
        "campaign": explanation.campaign,
        "study": explanation.study,
        "summary": list(explanation.summary),
        "rankings": [_ranking(ranking) for ranking in explanation.rankings],
        "findings": [_finding(finding) for finding in explanation.findings],
        "refuted": [_finding(finding) for finding in explanation.refuted],
        "unsure": [_finding(finding) for finding in explanation.unsure],
        "gaps": [{**asdict(gap), "seconds": gap.seconds} for gap in explanation.gaps],
        "cases": [_case(case) for case in explanation.cases],
        "series": [_series(item) for item in explanation.series],
        "observed": [verdict_document(item, explanation.campaign, "") for item in explanation.judgements],
    }
    plain: Document = plain_data(document)
    return plain


def _finding(finding: Finding) -> Document:
    return {**asdict(finding), "verdict": finding.verdict}


def _ranking(ranking: Ranking) -> Document:
    winner = ranking.winner.name if ranking.winner else None
    said = {"label": ranking.label, "winner": winner, "verdict": ranking.verdict, "lead": _interval(ranking.lead)}
    return {**asdict(ranking), **said}


def _case(case: CaseExplanation) -> Document:
    run = case.evidence.run
    return {
        "case_id": run.case_id,
        "label": case.evidence.label,
        "ranks": run.ranks,
        "breakdown": asdict(case.breakdown) if case.breakdown else None,
        "phases_close": case.evidence.result.closes,
        "stragglers": [asdict(item) for item in case.stragglers],
        "what_ifs": [asdict(item) for item in case.what_ifs],
        "sensitivities": [asdict(item) for item in case.sensitivities],
    }


def _series(item: ScalingSeries) -> Document:
    return {
        "label": item.label,
        "curve": item.curve.as_dict() if item.curve else None,
        "why_not": item.why_not,
        "basis": item.basis,
        "residuals": [asdict(residual) for residual in item.residuals],
    }


def plain_data(value: Any, *, digits: int | None = None) -> Any:
    """Data for JSON: without infinities, and with floats rounded to `digits` significant digits, if given."""
    if isinstance(value, dict):
        return {str(key): plain_data(item, digits=digits) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, digits=digits) for item in value]
    if isinstance(value, float):
        rounded = value if digits is None else float(f"{value:.{digits}g}")
        return rounded if math.isfinite(value) else None
    return value
