"""The explanation of a campaign as data: cases, series, rankings, gaps, findings, and three sentences about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.explain.cases.breakdown import Breakdown, break_down
from paceline.explain.cases.evidence import CaseEvidence, load_evidence
from paceline.explain.cases.step import Sensitivity, WhatIf, sensitivities, what_if
from paceline.explain.cases.stragglers import Straggler, find_stragglers
from paceline.explain.findings import WORTH_SAYING, Finding, is_shown, ranked
from paceline.explain.findings.across import compare_cases
from paceline.explain.findings.rules import RULES
from paceline.explain.gap import Gap, find_gaps
from paceline.explain.predicted import ScalingSeries, predict_series, sweeps_of
from paceline.explain.watched import StepVerdict, judge_run
from paceline.measurements.ranking import Ranking, rank_launches
from paceline.measurements.store import Store
from paceline.measurements.summary import FEWEST_LAUNCHES
from paceline.units import SECONDS, format_share

__all__ = ["CaseExplanation", "Explanation", "explain_campaign"]

MOST_CLAUSES = 4
"""Largest number of clauses of a sentence; more are counted."""
MOST_EFFICIENCY = 1.5
"""Largest credible efficiency: caches of additional ranks give less than this."""


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
    judgements: tuple[StepVerdict, ...] = ()
    """Verdicts on the steps of runs that were watched or imported."""

    @cached_property
    def summary(self) -> tuple[str, ...]:
        """Three sentences, or one if nothing was measured.

        With several frameworks or strategies: which is fastest in which case, by how much, why. Otherwise: throughput,
        scaling, and the change with the largest gain.
        """
        cases = [case.evidence for case in self.cases]
        good = [case for case in cases if case.result.throughput is not None]
        if not good:
            failed = sum(case.result.num_failed for case in cases)
            return (f"None of the {len(cases)} cases has a result: all {failed} launches failed.",)
        contested = [ranking for ranking in self.rankings if len(ranking.places) > 1]
        if contested:
            return _who(contested), _how_much(contested), _why(contested, self.gaps)
        return _speed(good), _scaling(good), _advice(good, self)

    @property
    def good(self) -> tuple[CaseExplanation, ...]:
        """Cases that have a result."""
        return tuple(case for case in self.cases if case.evidence.result.throughput is not None)


def explain_campaign(store: Store, campaign: str) -> Explanation:
    """Explain a campaign."""
    document: dict[str, Any] = next(
        (item for item in store.read_campaigns() if item["campaign"] == campaign), {"study": campaign}
    )
    evidence = load_evidence(store, campaign)
    findings, unsure = _rank_findings(evidence)
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
        findings=findings,
        unsure=unsure,
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


def _rank_findings(cases: Sequence[CaseEvidence]) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Advised findings of all cases, and findings within the noise; each with the largest gain first."""
    good = [case for case in cases if case.result.step_s is not None]
    findings = [finding for case in good for rule in RULES if (finding := rule(case)) is not None]
    findings += compare_cases(cases)
    doubtful = {case.run.case_id for case in good if not case.result.closes}
    shown = [item for item in findings if item.first or (is_shown(item.gain) and item.case_id not in doubtful)]
    rest = [item for item in findings if item not in shown and item.gain.value >= WORTH_SAYING]
    return tuple(ranked(shown)), tuple(ranked(rest))


def _who(contested: Sequence[Ranking]) -> str:
    """The fastest framework or strategy of each case, and cases without a significant difference."""
    wins: dict[str, list[Ranking]] = defaultdict(list)
    for ranking in contested:
        wins[ranking.winner.name if ranking.winner else ""].append(ranking)
    open_ = wins.pop("", [])
    if len(wins) + len(open_) > MOST_CLAUSES or max(map(len, wins.values()), default=0) > MOST_CLAUSES:
        clauses = [f"{name} wins {len(won)} of {len(contested)} comparisons" for name, won in _most(wins)]
        clauses += [f"{len(open_)} are not decided"] if open_ else []
    else:
        clauses = [f"{name} wins {_listed(ranking.label for ranking in won)}" for name, won in _most(wins)]
        clauses += [f"{ranking.label} is not decided: {_undecided(ranking)}" for ranking in open_]
    return f"{'; '.join(clauses)}."


def _most(wins: dict[str, list[Ranking]]) -> list[tuple[str, list[Ranking]]]:
    return sorted(wins.items(), key=lambda item: -len(item[1]))


def _listed(words: Iterable[str]) -> str:
    *others, last = list(words)
    return f"{'; '.join(others)} and {last}" if others else last


def _undecided(ranking: Ranking) -> str:
    first, equal = ranking.places[0], ranking.equals[0]
    assert equal.behind is not None
    few = (
        f" ({min(equal.behind.launches)}, {FEWEST_LAUNCHES} are needed)"
        if equal.behind.verdict == "too few launches"
        else ""
    )
    return f"{first.name} before {equal.name}, {equal.behind.verdict}{few}"


def _how_much(contested: Sequence[Ranking]) -> str:
    won = [ranking for ranking in contested if ranking.winner]
    largest = max(won or contested, key=lambda ranking: ranking.lead.value if ranking.lead else 0.0)
    first, second, lead = largest.places[0], largest.places[1], largest.lead
    assert lead is not None
    what = "lead" if won else "difference"
    words = (
        f"{first.name} is {lead.value:.2f} times as fast as {second.name}{_span(lead.low, lead.high)}, "
        f"{first.throughput.value:,.1f} against {second.throughput.value:,.1f} samples/s"
    )
    if len(contested) == 1:
        return f"{words}{'' if won else ', which is not shown to be more than noise'}."
    shown = "" if won else ", and none is shown to be more than noise"
    return f"The largest {what} over the second is that of {largest.label}: {words}{shown}."


def _span(low: float, high: float) -> str:
    return f" (95 %: {low:.2f} to {high:.2f})" if low > 0 and high < float("inf") else ""


def _why(contested: Sequence[Ranking], gaps: Sequence[Gap]) -> str:
    """The largest cause of the largest lead."""
    won = [ranking for ranking in contested if ranking.winner] or list(contested)
    largest = max(won, key=lambda ranking: ranking.lead.value if ranking.lead else 0.0)
    pair = (largest.places[1].case_id, largest.places[0].case_id)
    gap = next((gap for gap in gaps if (gap.slow_id, gap.fast_id) == pair), None)
    if gap is None:
        return "Why is not known: the steps of both were not split into phases."
    if gap.untrusted:
        return f"Why is not known: {gap.untrusted}."
    bar = max(gap.bars, key=lambda bar: bar.seconds)
    if bar.cause == "unexplained":
        return f"No phase explains the {SECONDS.format(gap.seconds)} between their steps."
    part = f"{1e3 * bar.seconds:.3g} of the {1e3 * gap.seconds:.3g} ms between their steps"
    return f"Why: {bar.cause}, {part} ({bar.evidence})."


def _speed(good: Sequence[CaseEvidence]) -> str:
    """The fastest case of each network: networks are not compared with each other."""
    best = [max(cases, key=_rate) for cases in _by_network(good)]
    clauses = [f"{case.run.network} under {case.run.contender} reaches {_rate_words(case)}" for case in best]
    more = len(clauses) - MOST_CLAUSES
    return f"{'; '.join(clauses[:MOST_CLAUSES])}{f'; and {more} more networks' if more > 0 else ''}."


def _by_network(cases: Iterable[CaseEvidence]) -> list[list[CaseEvidence]]:
    groups: dict[str, list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        groups[case.run.network].append(case)
    return list(groups.values())


def _rate_words(case: CaseEvidence) -> str:
    rate = case.result.throughput
    assert rate is not None
    width = f" (± {100 * rate.half:.1f} %)" if rate.half < 10 else ""
    ranks = "1 rank" if case.run.ranks == 1 else f"{case.run.ranks} ranks"
    return f"{rate.value:,.1f} samples/s{width} at batch {case.run.batch} on {ranks}"


def _rate(case: CaseEvidence) -> float:
    return case.result.throughput.value if case.result.throughput else 0.0


def _scaling(good: Sequence[CaseEvidence]) -> str:
    scaled = [c for c in good if c.result.speedup is not None and c.run.ranks != c.result.base_ranks]
    if not scaled:
        return _phase(max(good, key=_rate))
    clauses = [_scaled(max(cases, key=lambda case: (case.run.ranks, _rate(case)))) for cases in _by_network(scaled)]
    more = len(clauses) - MOST_CLAUSES
    return f"{'; '.join(clauses[:MOST_CLAUSES])}{f'; and {more} more networks' if more > 0 else ''}."


def _scaled(case: CaseEvidence) -> str:
    speedup, efficiency = case.result.speedup, case.result.efficiency
    assert speedup is not None
    assert efficiency is not None
    return (
        f"From {case.result.base_ranks} to {case.run.ranks} ranks {case.run.network} becomes {speedup.value:.2f} times "
        f"as fast, an efficiency of {format_share(efficiency)}{_too_fast(case, efficiency)}"
    )


def _too_fast(case: CaseEvidence, efficiency: float) -> str:
    """A warning about a speed-up that additional ranks and caches cannot explain."""
    if efficiency <= MOST_EFFICIENCY:
        return ""
    base = "1 rank" if case.result.base_ranks == 1 else f"{case.result.base_ranks} ranks"
    return f", more than ranks can add: something slowed the launches on {base}, measure again"


def _phase(case: CaseEvidence) -> str:
    shares = {name: share for name, share in case.result.shares.items() if name != "other"}
    if not shares or case.result.step_s is None:
        what = "What was imported does not split the step" if case.run.is_observed else "The step was not split"
        return f"{what} into phases."
    if not case.result.closes:
        return "The step's phases do not close within 5 %: what takes the largest part is not known."
    largest = max(shares, key=lambda name: shares[name])
    step = SECONDS.format(case.result.step_s.value)
    return f"Of its {step} step, {largest} takes the largest part, {format_share(shares[largest])}."


def _advice(good: Sequence[CaseEvidence], about: Explanation) -> str:
    if about.findings:
        return _first(about.findings[0])
    if about.refuted:
        one = about.refuted[0]
        assert one.measured_gain is not None
        return (
            f"Tried and refuted: {one.change.what} for {one.case}, predicted to save {format_share(one.gain.value)} "
            f"of the time per sample, saves {format_share(one.measured_gain.value)}; nothing else is shown to help."
        )
    if max(len(case.launches.steps) for case in good) < 2:
        if all(case.run.is_observed for case in good):
            return "One run is judged by its steps; `paceline compare` tests whether another differs."
        return "One launch of a case shows nothing that would help: measure at least two, so that the noise is known."
    within = f"; {len(about.unsure)} that might are within the noise of these launches" if about.unsure else ""
    return f"No single change is shown to save 5 % or more of the time per sample{within}."


def _first(finding: Finding) -> str:
    if finding.first:
        return f"{finding.title} in {finding.case}: {finding.evidence[0]}."
    if finding.measured_gain is None:
        gain = f"predicted to save {format_share(finding.gain.value)}"
    else:
        gain = f"measured to save {format_share(finding.measured_gain.value)} ({finding.verdict})"
    return f"What would help most: {finding.change.what} for {finding.case}, {gain} of the time per sample."
