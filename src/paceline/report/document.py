"""An explanation as plain data for machines: what the page shows and more, with no infinity in it."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from paceline.explain.explanation import CaseExplanation, Explanation
from paceline.explain.predicted import ScalingSeries

__all__ = ["explanation_document"]


def explanation_document(explanation: Explanation) -> dict[str, Any]:
    """Summary, findings, gaps, curves and every case."""
    document: dict[str, Any] = {
        "campaign": explanation.campaign,
        "study": explanation.study,
        "summary": list(explanation.summary),
        "findings": [asdict(finding) for finding in explanation.findings],
        "unsure": [asdict(finding) for finding in explanation.unsure],
        "gaps": [{**asdict(gap), "seconds": gap.seconds} for gap in explanation.gaps],
        "cases": [_case(case) for case in explanation.cases],
        "series": [_series(item) for item in explanation.series],
    }
    plain: dict[str, Any] = _plain(document)
    return plain


def _case(case: CaseExplanation) -> dict[str, Any]:
    run = case.evidence.run
    return {
        "case_id": run.case_id,
        "label": case.evidence.label,
        "ranks": run.ranks,
        "breakdown": asdict(case.breakdown) if case.breakdown else None,
        "stragglers": [asdict(item) for item in case.stragglers],
        "what_ifs": [asdict(item) for item in case.what_ifs],
        "sensitivities": [asdict(item) for item in case.sensitivities],
    }


def _series(item: ScalingSeries) -> dict[str, Any]:
    return {
        "label": item.label,
        "curve": item.curve.as_dict() if item.curve else None,
        "why_not": item.why_not,
        "basis": item.basis,
        "residuals": [asdict(residual) for residual in item.residuals],
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
