"""The table of planted causes: what `explain` names first, what it predicts, what removing the cause gained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lib.planted_cases import Planted
from paceline.errors import UnknownName
from paceline.explain.explanation import Explanation, explain_campaign
from paceline.explain.findings import Finding
from paceline.measurements.results import find_campaign
from paceline.measurements.store import Store

__all__ = ["NEEDED", "POINTS", "judged"]

POINTS = 0.10
"""How far a predicted gain may be from the measured one."""
NEEDED = 9


def judged(cases: Sequence[Planted], store: Store, name_of: Callable[[Planted, str], str]) -> list[dict[str, Any]]:
    """Print and return a row per case that was measured."""
    print(f"{'planted':26} {'named first':24} {'predicted':>10} {'measured':>10} {'off by':>8}  verdict")
    rows = []
    for case in cases:
        try:
            first, gain = _look(case, store, name_of)
        except UnknownName:
            print(f"{case.name:26} not measured")
            continue
        cause, predicted = (first.cause, first.gain.value) if first else (None, 0.0)
        off = predicted - gain
        named, close = cause == case.cause, abs(off) <= POINTS
        verdict = "right" if named and close else "right cause" if named else "wrong cause"
        print(f"{case.name:26} {cause or 'none':24} {predicted:10.1%} {gain:10.1%} {off:+8.1%}  {verdict}")
        row = {"case": case.name, "cause": cause, "predicted": predicted, "measured": gain}
        rows.append({**row, "off": off, "named": named, "close": close})
    return rows


def _look(case: Planted, store: Store, name_of: Callable[[Planted, str], str]) -> tuple[Finding | None, float]:
    """The first finding about the planted case, and the share of the time per sample that removing the cause saved."""
    planted = explain_campaign(store, find_campaign(store, name_of(case, "planted")))
    removed = explain_campaign(store, find_campaign(store, name_of(case, "removed")))
    before, target = _rate(planted, case.ranks, case.batch)
    after, _ = _rate(removed, case.ranks, case.removed_batch or case.batch)
    findings = [finding for finding in planted.findings if finding.case_id == target]
    return (findings[0] if findings else None), 1 - before / after


def _rate(explanation: Explanation, ranks: int, batch: int) -> tuple[float, str]:
    found = [c for c in explanation.good if c.evidence.run.ranks == ranks and c.evidence.run.batch == batch]
    if not found or found[0].evidence.result.throughput is None:
        raise SystemExit(f"{explanation.study}: no result with {ranks} ranks and batch {batch}; run it again")
    return found[0].evidence.result.throughput.value, found[0].evidence.run.case_id
