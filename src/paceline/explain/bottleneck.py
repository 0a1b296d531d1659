"""Ranked findings of a campaign: every rule on every case, what is worth a word, the largest gain first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.explain.advice.across import compare_cases
from paceline.explain.advice.finding import Finding
from paceline.explain.advice.gains import WORTH_SAYING, is_shown
from paceline.explain.advice.rules import RULES
from paceline.explain.evidence import CaseEvidence

__all__ = ["Bottlenecks", "find_bottlenecks"]


@dataclass(frozen=True)
class Bottlenecks:
    """What is advised, and what would be if the launches agreed on it; the weightiest first."""

    shown: tuple[Finding, ...]
    unsure: tuple[Finding, ...]


def find_bottlenecks(cases: Sequence[CaseEvidence]) -> Bottlenecks:
    """Findings of all cases."""
    good = [case for case in cases if case.result.step_s is not None]
    found = [finding for case in good for rule in RULES if (finding := rule(case)) is not None]
    found += compare_cases(cases)
    ranked = sorted(found, key=lambda finding: -finding.weight)
    return Bottlenecks(
        shown=tuple(item for item in ranked if is_shown(item.gain)),
        unsure=tuple(item for item in ranked if item.gain.value >= WORTH_SAYING and not is_shown(item.gain)),
    )
