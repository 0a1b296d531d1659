"""The explanation of a campaign as data, with a summary of three sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.explain.cases.breakdown import Breakdown, break_down
from paceline.explain.cases.evidence import CaseEvidence, load_evidence
from paceline.explain.cases.step import Sensitivity, WhatIf, sensitivities, what_if
from paceline.explain.cases.stragglers import Straggler, find_stragglers
from paceline.explain.findings.across import compare_cases
from paceline.explain.findings.finding import WORTH_SAYING, Finding, is_shown
from paceline.explain.findings.rules import RULES
from paceline.explain.gap import Gap, find_gaps
from paceline.explain.predicted import ScalingSeries, predict_series, sweeps_of
from paceline.measurements.store import Store
from paceline.units import SECONDS, format_share

__all__ = ["CaseExplanation", "Explanation", "explain_campaign"]


@dataclass(frozen=True)
class CaseExplanation:
    """The evidence and analysis of one case."""

    evidence: CaseEvidence
    breakdown: Breakdown | None
    stragglers: tuple[Straggler, ...]

    @cached_property
    def what_ifs(self) -> tuple[WhatIf, ...]:
        """The changes that the model can predict, computed on first use."""
        return what_if(self.evidence)

    @cached_property
    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """The sensitivity of the step to each quantity, computed on first use."""
        return sensitivities(self.evidence)


@dataclass(frozen=True)
class Explanation:
    """The explanation of a campaign."""

    campaign: str
    study: str
    title: str
    started_at: str
    launcher: str
    text: str
    """Text of the study file."""
    cases: tuple[CaseExplanation, ...]
    series: tuple[ScalingSeries, ...]
    gaps: tuple[Gap, ...]
    findings: tuple[Finding, ...]
    unsure: tuple[Finding, ...]
    """Findings within the noise of the launches, without advice."""
    summary: tuple[str, ...]
    """Three sentences: speed, scaling, advice."""
    left_out: tuple[str, ...] = ()
    """Damaged runs that take no part."""

    @property
    def good(self) -> tuple[CaseExplanation, ...]:
        """Cases that have a result."""
        return tuple(case for case in self.cases if case.evidence.result.throughput is not None)


@dataclass(frozen=True)
class _Ranked:
    """Advised findings, and findings within the noise, largest gain first."""

    shown: tuple[Finding, ...]
    unsure: tuple[Finding, ...]


def explain_campaign(store: Store, campaign: str) -> Explanation:
    """Explain a campaign."""
    document: dict[str, Any] = next(
        (item for item in store.read_campaigns() if item["campaign"] == campaign), {"study": campaign}
    )
    evidence = load_evidence(store, campaign)
    ranked = _rank_findings(evidence)
    return Explanation(
        campaign=campaign,
        study=str(document["study"]),
        title=str(document.get("title", "")),
        started_at=str(document.get("started_at", "")),
        launcher=str(document.get("launcher", "")),
        text=str(document.get("text", "")),
        cases=tuple(_case(item) for item in evidence),
        series=predict_series(evidence, sweeps_of(store, evidence)),
        gaps=find_gaps(evidence),
        findings=ranked.shown,
        unsure=ranked.unsure,
        summary=_summarise(evidence, ranked),
        left_out=tuple(str(damage) for damage in store.damaged.values()),
    )


def _case(evidence: CaseEvidence) -> CaseExplanation:
    return CaseExplanation(
        evidence=evidence,
        breakdown=break_down(evidence),
        stragglers=find_stragglers(evidence),
    )


def _rank_findings(cases: Sequence[CaseEvidence]) -> _Ranked:
    """Findings of all cases."""
    good = [case for case in cases if case.result.step_s is not None]
    findings = [finding for case in good for rule in RULES if (finding := rule(case)) is not None]
    findings += compare_cases(cases)
    ranked = sorted(findings, key=lambda finding: -finding.weight)
    return _Ranked(
        shown=tuple(item for item in ranked if is_shown(item.gain)),
        unsure=tuple(item for item in ranked if item.gain.value >= WORTH_SAYING and not is_shown(item.gain)),
    )


def _summarise(cases: tuple[CaseEvidence, ...], ranked: _Ranked) -> tuple[str, ...]:
    """One sentence each for speed, scaling and advice."""
    good = [case for case in cases if case.result.throughput is not None]
    if not good:
        failed = sum(case.result.num_failed for case in cases)
        return (f"None of the {len(cases)} cases has a result: all {failed} launches failed.",)
    return (_speed_sentence(good), _scaling_sentence(good), _advice_sentence(good, ranked))


def _speed_sentence(good: list[CaseEvidence]) -> str:
    best = max(good, key=_rate)
    sure = best.result.throughput
    assert sure is not None
    width = f" (± {100 * sure.half:.1f} %)" if sure.half < 10 else ""
    return f"The fastest of {len(good)} cases is {best.label}: {sure.value:,.1f} samples/s{width}."


def _rate(case: CaseEvidence) -> float:
    return case.result.throughput.value if case.result.throughput else 0.0


def _scaling_sentence(good: list[CaseEvidence]) -> str:
    scaled = [c for c in good if c.result.efficiency is not None and c.run.ranks != c.result.base_ranks]
    if not scaled:
        return _phase_sentence(max(good, key=_rate))
    best = max(scaled, key=_rate)
    speedup, base = best.result.speedup, best.result.base_ranks
    assert speedup is not None
    assert best.result.efficiency is not None
    return (
        f"From {base} to {best.run.ranks} ranks {best.run.network} under {best.run.framework} becomes "
        f"{speedup.value:.2f} times as fast, an efficiency of {format_share(best.result.efficiency)}."
    )


def _phase_sentence(case: CaseEvidence) -> str:
    shares = {name: share for name, share in case.result.shares.items() if name != "other"}
    if not shares or case.result.step_s is None:
        return "The step was not split into phases."
    largest = max(shares, key=lambda name: shares[name])
    step = SECONDS.format(case.result.step_s.value)
    return f"Of its {step} step, {largest} takes the largest part, {format_share(shares[largest])}."


def _advice_sentence(good: list[CaseEvidence], ranked: _Ranked) -> str:
    if ranked.shown:
        first = ranked.shown[0]
        return (
            f"What would help most: {first.change.what} for {first.case}, predicted to save "
            f"{format_share(first.gain.value)} of the time per sample."
        )
    if max(len(case.launches.steps) for case in good) < 2:
        return "One launch of a case shows nothing that would help: measure at least two, so that noise can be told."
    within = f"; {len(ranked.unsure)} that might are within the noise of these launches" if ranked.unsure else ""
    return f"No single change is shown to save 5 % or more of the time per sample{within}."
