"""Run what confirms causes: each case as it was beside the same case with only the cause changed."""

from __future__ import annotations

from dataclasses import replace

from paceline.bench.adapters import adapter_of
from paceline.bench.measure import measure
from paceline.bench.sites.target import LaunchTarget
from paceline.catalog import shipped_catalog
from paceline.cli.progress import Display
from paceline.errors import UnknownName
from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.confirm import Confirmation, bar_with_measured, confirmation_of, with_measured
from paceline.explain.explanation import Explanation
from paceline.explain.findings.finding import Finding, Trial
from paceline.explain.gap import Bar, Gap
from paceline.measurements.results import load_launches
from paceline.measurements.store import Store
from paceline.spec.protocol import Protocol
from paceline.spec.study import Study

__all__ = ["confirm"]

PROTOCOL = Protocol(launches=3, max_launches=3, warmup=5, steps=30, launch_budget=5.0, phases=False)
Rates = tuple[list[float], list[float]]


def confirm(explanation: Explanation, store: Store, most: int, *, quiet: bool) -> Explanation:
    """The explanation with what was measured of its first findings and of the largest gap, where it can be tried."""
    tries = _Tries(explanation, store, quiet=quiet)
    findings = tuple(tries.finding(finding) if tries.made < most else finding for finding in explanation.findings)
    gaps = tuple(tries.gap(gap) if number == 0 else gap for number, gap in enumerate(explanation.gaps))
    return replace(explanation, findings=findings, gaps=gaps)


class _Tries:
    """Trials of one explanation; the same trial is run once."""

    def __init__(self, explanation: Explanation, store: Store, *, quiet: bool) -> None:
        self.explanation, self.store, self.quiet = explanation, store, quiet
        self.rates: dict[str, Rates] = {}

    @property
    def made(self) -> int:
        """Trials that were run."""
        return len(self.rates)

    def finding(self, finding: Finding) -> Finding:
        """The finding with its measured gain."""
        wanted = self._wanted(finding.trial, finding.case_id)
        if wanted is None or _refused(wanted):
            return finding
        return with_measured(finding, *self._measured(wanted, finding.title))

    def gap(self, gap: Gap) -> Gap:
        """The gap with what each cause really takes, where one side can be run with and without it."""
        return replace(gap, bars=tuple(self._bar(bar, gap) for bar in gap.bars))

    def _bar(self, bar: Bar, gap: Gap) -> Bar:
        """Change the slower side if its framework can; else give the cause to the faster side."""
        reasons = []
        for trial, case_id, side in ((bar.trial, gap.slow_id, "slower"), (bar.reverse, gap.fast_id, "faster")):
            wanted = self._wanted(trial, case_id)
            if wanted is None:
                continue
            reason = _refused(wanted)
            if reason is None:
                before, after = self._measured(wanted, f"{bar.cause} of {wanted.before.framework}")
                has, lacks = (before, after) if side == "slower" else (after, before)
                run = self._evidence(case_id).run
                tried = f"the {side} side, {run.framework}, with {_changes(wanted)}"
                return bar_with_measured(bar, run.batch * run.ranks, has=has, lacks=lacks, tried=tried)
            reasons.append(reason)
        return replace(bar, tried="not tried: " + "; ".join(reasons)) if reasons else bar

    def _wanted(self, trial: Trial | None, case_id: str) -> Confirmation | None:
        evidence = self._evidence(case_id)
        try:
            return confirmation_of(trial, evidence, shipped_catalog().network(evidence.run.network))
        except UnknownName:
            return None

    def _measured(self, wanted: Confirmation, title: str) -> Rates:
        key = f"{wanted.before.id} {wanted.after.id}"
        if key not in self.rates:
            self.rates[key] = _run(wanted, self.explanation, self.store, title=title, quiet=self.quiet)
        return self.rates[key]

    def _evidence(self, case_id: str) -> CaseEvidence:
        return next(case.evidence for case in self.explanation.cases if case.evidence.run.case_id == case_id)


def _refused(wanted: Confirmation) -> str | None:
    """Why the framework cannot run the changed case, if it cannot."""
    return adapter_of(wanted.after.framework).refusal(wanted.after)


def _changes(wanted: Confirmation) -> str:
    """What differs between both cases, as a study would ask for it."""
    before, after = wanted.before, wanted.after
    old, new = before.strategy.model_dump(), after.strategy.model_dump()
    changed = [f"{name} = {new[name]}" for name in new if name != "name" and new[name] != old[name]]
    changed += [
        f"{name} = {getattr(after, name)}"
        for name in ("threads", "batch", "ranks", "input")
        if getattr(after, name) != getattr(before, name)
    ]
    return ", ".join(changed)


def _run(item: Confirmation, explanation: Explanation, store: Store, *, title: str, quiet: bool) -> Rates:
    """Samples per second of both cases' launches, measured in turn, in a campaign of their own."""
    cases = (item.before, item.after)
    study = Study(
        name=f"{explanation.study}.confirm",
        title=f"Confirms: {title}",
        networks=(item.before.network.name,),
        frameworks=(item.before.framework,),
        batch=(item.before.batch,),
        protocol=PROTOCOL,
    )
    with (
        Display(quiet=quiet) as display,
        measure(
            study, cases, store, target=LaunchTarget(on=explanation.launcher), installing=display.installing
        ) as measurement,
    ):
        display.follow(measurement.events, study.protocol, cases)
    rates = {group.first.case_id: list(group.throughputs) for group in load_launches(store, measurement.campaign)}
    return rates.get(item.before.id, []), rates.get(item.after.id, [])
