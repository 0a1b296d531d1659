"""Run what confirms findings: each case as it was beside the same case with only the cause changed."""

from __future__ import annotations

import contextlib

from paceline.bench.campaign import Campaign, run_campaign
from paceline.bench.doctor import diagnose
from paceline.bench.launchers.table import Wish, make_launcher
from paceline.bench.machine import describe_machine
from paceline.bench.opening import open_campaign
from paceline.catalog import known
from paceline.cli.progress import Display
from paceline.cli.run import prepare_all
from paceline.errors import UnknownName
from paceline.explain.advice.confirm import Confirmation, confirmation_of, with_measured
from paceline.explain.advice.finding import Finding
from paceline.explain.explanation import Explanation
from paceline.measurements.results import load_launches
from paceline.measurements.store import Store
from paceline.spec.protocol import Protocol
from paceline.spec.study import Study

__all__ = ["confirm_findings"]

PROTOCOL = Protocol(launches=3, max_launches=3, warmup=5, steps=30, launch_budget=5.0, phases=False)


def confirm_findings(explanation: Explanation, store: Store, most: int, *, quiet: bool) -> tuple[Finding, ...]:
    """All findings, the first of those that can be tried here with the gain that was measured."""
    wanted = [found for finding in explanation.findings if (found := _find(finding, explanation)) is not None]
    tried = {id(item.finding): _try(item, explanation, store, quiet=quiet) for item in wanted[:most]}
    return tuple(tried.get(id(finding), finding) for finding in explanation.findings)


def _find(finding: Finding, explanation: Explanation) -> Confirmation | None:
    evidence = next(case.evidence for case in explanation.cases if case.evidence.run.case_id == finding.case_id)
    try:
        network = known().network(evidence.run.network)
    except UnknownName:
        return None
    return confirmation_of(finding, evidence, network)


def _try(item: Confirmation, explanation: Explanation, store: Store, *, quiet: bool) -> Finding:
    """Measure both cases in turn, in a campaign of their own."""
    cases = (item.before, item.after)
    study = Study(
        name=f"{explanation.study}.confirm",
        title=f"Confirms: {item.finding.title}",
        networks=(item.before.network.name,),
        frameworks=(item.before.framework,),
        batch=(item.before.batch,),
        protocol=PROTOCOL,
    )
    checks = diagnose(store.root, ranks=item.before.ranks, threads=item.after.threads)
    with (
        contextlib.closing(make_launcher(Wish(on=explanation.launcher))) as launcher,
        Display(quiet=quiet) as display,
        open_campaign(study, cases, store, resume=False, launcher=launcher.name) as name,
    ):
        prepare_all(cases, display)
        campaign = Campaign(name, study, cases, launcher, describe_machine(checks))
        display.follow(run_campaign(campaign, store), study.protocol, cases)
    rates = {group.first.case_id: list(group.throughputs) for group in load_launches(store, name)}
    return with_measured(item.finding, rates.get(item.before.id, []), rates.get(item.after.id, []))
