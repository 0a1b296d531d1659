"""Confirm causes by runs that change one setting each. `plan_trials` returns the trials as data; the caller measures
them and passes the samples per second of both cases' launches to `with_measured`. Both cases are launched in every
round and compared round by round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from paceline.catalog import shipped_catalog
from paceline.errors import InputError, UnknownName
from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.explanation import Explanation
from paceline.explain.findings import Finding, Trial, ranked
from paceline.explain.gap import Bar, Gap, difference
from paceline.measurements.results import load_launches
from paceline.measurements.store import Store
from paceline.measurements.summary import FEWEST_LAUNCHES, Interval, amount_interval, speedup_interval
from paceline.spec.network import Network
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case, Protocol, Study

__all__ = ["Confirmation", "Trials", "plan_trials", "with_measured", "with_stored"]

PROTOCOL = Protocol(launches=3, max_launches=3, warmup=5, steps=30, launch_budget=5.0, phases=False)
Refusal = Callable[[Case], str | None]
"""Why a framework cannot run a case; None if it can."""
Rates = tuple[Mapping[int, float], Mapping[int, float]]
"""Samples per second by round: of the launches of the case as it was, and of the changed one."""


@dataclass(frozen=True)
class Confirmation:
    """A case as it was, and the same case with only one cause changed."""

    before: Case
    after: Case
    title: str

    @property
    def key(self) -> str:
        """Equal for trials that run the same cases."""
        return f"{self.before.id} {self.after.id}"

    @property
    def cases(self) -> tuple[Case, Case]:
        """Both cases, which are measured in turn."""
        return self.before, self.after

    def study(self, name: str) -> Study:
        """A separate study of both cases."""
        return Study(
            name=f"{name}.confirm",
            title=f"Confirms: {self.title}",
            networks=(self.before.network.name,),
            frameworks=(self.before.framework,),
            batch=(self.before.batch,),
            protocol=PROTOCOL,
        )

    @property
    def changes(self) -> str:
        """Differences between both cases, as fields of a study."""
        old, new = self.before.strategy.model_dump(), self.after.strategy.model_dump()
        changed = {name: new[name] for name in new if name != "name" and new[name] != old[name]}
        for name in ("threads", "batch", "ranks", "input"):
            if getattr(self.after, name) != getattr(self.before, name):
                changed[name] = getattr(self.after, name)
        return ", ".join(f"{name} = {value}" for name, value in changed.items())


@dataclass(frozen=True)
class BarTrial:
    """How to confirm one bar of a gap: by a run of one side, or why no side can run it."""

    confirmation: Confirmation | None
    side: str = ""
    """`slower` or `faster`: the slower side is changed if its framework can; else the faster side gets the cause."""
    refused: str = ""


@dataclass(frozen=True)
class Trials:
    """The trials of an explanation, by the index of a finding, and of a bar of the largest gap."""

    findings: dict[int, Confirmation] = field(default_factory=dict)
    bars: dict[int, BarTrial] = field(default_factory=dict)

    @property
    def confirmations(self) -> tuple[Confirmation, ...]:
        """Every pair of cases to run, each once."""
        wanted = [*self.findings.values(), *(bar.confirmation for bar in self.bars.values() if bar.confirmation)]
        unique: dict[str, Confirmation] = {}
        for item in wanted:
            unique.setdefault(item.key, item)
        return tuple(unique.values())


def plan_trials(explanation: Explanation, most: int, refusal: Refusal) -> Trials:
    """Trials of the first findings, this many different ones at most, and of the largest gap."""
    findings: dict[int, Confirmation] = {}
    for index, finding in enumerate(explanation.findings):
        if len({item.key for item in findings.values()}) == most:
            break
        wanted = _confirmation(explanation, finding.trial, finding.case_id, finding.title)
        if wanted is not None and refusal(wanted.after) is None:
            findings[index] = wanted
    return Trials(findings, _bar_trials(explanation, explanation.gaps[0], refusal) if explanation.gaps else {})


def _bar_trials(explanation: Explanation, gap: Gap, refusal: Refusal) -> dict[int, BarTrial]:
    trials = {}
    for index, bar in enumerate(gap.bars):
        reasons = []
        for trial, case_id, side in ((bar.trial, gap.slow_id, "slower"), (bar.reverse, gap.fast_id, "faster")):
            wanted = _confirmation(explanation, trial, case_id, bar.cause)
            reason = refusal(wanted.after) if wanted else None
            if wanted and reason is None:
                titled = replace(wanted, title=f"{bar.cause} of {wanted.before.framework}")
                trials[index] = BarTrial(titled, side)
                break
            reasons += [reason] if reason else []
        else:
            if reasons:
                trials[index] = BarTrial(None, refused="; ".join(reasons))
    return trials


def _confirmation(explanation: Explanation, trial: Trial | None, case_id: str, title: str) -> Confirmation | None:
    """The trial that would confirm a cause; None if no setting can test it here."""
    evidence = next(case.evidence for case in explanation.cases if case.evidence.run.case_id == case_id)
    try:
        network = shipped_catalog().network(evidence.run.network)
    except UnknownName:
        return None
    asked: Any = evidence.run.case.get("network", {})
    if trial is None or evidence.cluster is None or asked.get("digest") != network.digest:
        return None
    before, after = _case(evidence, network, Trial()), _case(evidence, network, trial)
    return Confirmation(before, after, title) if before.id != after.id else None


def _case(evidence: CaseEvidence, network: Network, trial: Trial) -> Case:
    run = evidence.run
    assert evidence.cluster is not None
    asked = {**evidence.strategy.model_dump(), "name": "tried" if trial != Trial() else run.strategy, **trial.strategy}
    return Case(
        network=network,
        cluster=evidence.cluster,
        framework=run.framework,
        strategy=Strategy.model_validate(asked),
        ranks=trial.ranks or run.ranks,
        batch=trial.batch or run.batch,
        scaling=_literal(run.scaling, ("weak", "strong")),
        placement=_literal(run.case.get("placement", "packed"), ("packed", "spread")),
        input=_literal(trial.input or run.input, ("resident", "copied", "files")),
        threads=trial.threads or run.case.get("threads"),
    )


def _literal(value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise InputError(f"{value!r} in a stored run is none of {', '.join(allowed)}")
    return value


def with_stored(explanation: Explanation, store: Store) -> Explanation:
    """The explanation with the gains that earlier trials of this campaign measured, if there were any."""
    stored = [
        document
        for document in store.read_campaigns(f"{explanation.study}.confirm")
        if str(document["started_at"]) > explanation.started_at
    ]
    if not stored:
        return explanation
    launches = [load_launches(store, str(document["campaign"])) for document in stored]
    rates = [{item.first.case_id: item.by_round for item in campaign} for campaign in launches]
    trials = plan_trials(explanation, len(explanation.findings), lambda case: None)
    measured = {item.key: _stored_rates(item, rates) for item in trials.confirmations}
    known = {key: pair for key, pair in measured.items() if pair}
    findings = {index: item for index, item in trials.findings.items() if item.key in known}
    bars = {index: bar for index, bar in trials.bars.items() if bar.confirmation and bar.confirmation.key in known}
    return with_measured(explanation, Trials(findings, bars), known)


def _stored_rates(wanted: Confirmation, campaigns: Sequence[Mapping[str, Mapping[int, float]]]) -> Rates | None:
    """Samples per second of the launches of both cases, of the newest campaign that has both."""
    ids = [case.id for case in wanted.cases]
    both = [campaign for campaign in campaigns if all(campaign.get(name) for name in ids)]
    return (both[-1][ids[0]], both[-1][ids[1]]) if both else None


def with_measured(explanation: Explanation, trials: Trials, rates: Mapping[str, Rates]) -> Explanation:
    """The explanation with the measured gain of each finding and bar that was tried; rates by key of confirmation.

    A finding whose trial measured no gain is no longer advised.
    """
    findings = list(explanation.findings)
    for index, wanted in trials.findings.items():
        findings[index] = _tried_finding(findings[index], *rates[wanted.key])
    refuted = tuple(finding for finding in findings if finding.verdict == "refuted" and not finding.first)
    gaps = list(explanation.gaps)
    if gaps:
        bars = list(gaps[0].bars)
        for index, trial in trials.bars.items():
            bars[index] = _tried_bar(bars[index], trial, rates)
        gaps[0] = replace(gaps[0], bars=tuple(bars))
    left = tuple(ranked(finding for finding in findings if finding not in refuted))
    return replace(explanation, findings=left, gaps=tuple(gaps), refuted=refuted)


def _tried_finding(finding: Finding, before: Mapping[int, float], after: Mapping[int, float]) -> Finding:
    if not before or not after:
        return finding
    ratio = speedup_interval(list(before.values()), list(after.values()), rounds=(list(before), list(after)))
    return replace(finding, measured_gain=Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low))


def _tried_bar(bar: Bar, trial: BarTrial, rates: Mapping[str, Rates]) -> Bar:
    """The bar with the seconds that its cause takes of a step, as measured."""
    wanted = trial.confirmation
    if wanted is None:
        return replace(bar, tried=f"not tried: {trial.refused}")
    tried = f"the {trial.side} side, {wanted.before.framework}, with {wanted.changes}"
    before, after = rates[wanted.key]
    if not before or not after:
        return replace(bar, tried=f"{tried}: the trial failed")
    samples = wanted.before.batch * wanted.before.ranks
    steps = [{place: samples / rate for place, rate in launches.items()} for launches in (before, after)]
    having, lacking = steps if trial.side == "slower" else reversed(steps)
    return replace(bar, measured_s=_apart(having, lacking), tried=tried)


def _apart(having: Mapping[int, float], lacking: Mapping[int, float]) -> Interval:
    """Seconds by which one side is slower: from the differences of common rounds, or of all launches if few rounds are
    common."""
    common = [having[place] - lacking[place] for place in having if place in lacking]
    if len(common) >= FEWEST_LAUNCHES:
        return amount_interval(common)
    ours, theirs = list(having.values()), list(lacking.values())
    return difference(ours, theirs, median(ours) - median(theirs))
