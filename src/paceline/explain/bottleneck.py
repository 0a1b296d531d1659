"""Ranked findings of a campaign: every rule on every case, what is worth a word, the largest gain first."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.advice.across import compare_cases
from paceline.explain.advice.finding import Finding
from paceline.explain.advice.rules import RULES
from paceline.explain.evidence import CaseEvidence

__all__ = ["WORTH_SAYING", "find_bottlenecks"]

WORTH_SAYING = 0.05
"""Share of the time per sample below which a gain is not worth a finding."""


def find_bottlenecks(cases: Sequence[CaseEvidence], *, least: float = WORTH_SAYING) -> tuple[Finding, ...]:
    """Findings of all cases, the weightiest first."""
    good = [case for case in cases if case.result.step_s is not None]
    found = [finding for case in good for rule in RULES if (finding := rule(case)) is not None]
    found += compare_cases(cases)
    worth = [finding for finding in found if finding.gain.value >= least]
    return tuple(sorted(worth, key=lambda finding: -finding.weight))
