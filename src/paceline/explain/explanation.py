"""The explanation of a campaign as data: cases, series, rankings, gaps, findings."""

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
from paceline.explain.findings.finding import WORTH_SAYING, Finding, is_shown, ranked
from paceline.explain.findings.rules import RULES
from paceline.explain.gap import Gap, find_gaps
from paceline.explain.predicted import ScalingSeries, predict_series, sweeps_of
from paceline.explain.summary import Evidenced, summarise
from paceline.explain.watched import Judgement, judge_run
from paceline.measurements.ranking import Ranking, rank_launches
from paceline.measurements.store import Store

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
    """Findings within the noise of the launches, or of a split that does not close, without advice."""
    rankings: tuple[Ranking, ...]
    """Frameworks and strategies within each network, batch and number of ranks."""
    refuted: tuple[Finding, ...] = ()
    """Findings whose trial measured no gain."""
    left_out: tuple[str, ...] = ()
    """Damaged runs that take no part."""
    judgements: tuple[Judgement, ...] = ()
    """Verdicts on the steps of runs that were watched or imported."""

    @cached_property
    def summary(self) -> tuple[str, ...]:
        """Three sentences, see `explain.summary`."""
        evidence = tuple(case.evidence for case in self.cases)
        return summarise(Evidenced(evidence, self.rankings, self.gaps, self.findings, self.unsure, self.refuted))

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
    ranks = _rank_findings(evidence)
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
        findings=ranks.shown,
        unsure=ranks.unsure,
        rankings=rank_launches(item.launches for item in evidence),
        left_out=tuple(str(damage) for damage in store.damaged.values()),
        judgements=tuple(judge_run(store.load(run.id)) for case in evidence for run in case.launches.counted
                         if run.is_observed),
    )  # fmt: skip


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
    doubtful = {case.run.case_id for case in good if not case.result.closes}
    shown = [item for item in findings if item.first or (is_shown(item.gain) and item.case_id not in doubtful)]
    rest = [item for item in findings if item not in shown and item.gain.value >= WORTH_SAYING]
    return _Ranked(tuple(ranked(shown)), tuple(ranked(rest)))
