"""Measurement of cases, for all callers: launcher, campaign, checks of the machine, environments, launches.

    with measure(study, cases, store) as measurement:
        for event in measurement.events:
            ...

Every launch leaves a run in the store as soon as it ends; an interruption keeps all stored runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

from paceline.bench.adapters import adapter_of
from paceline.bench.campaign import Campaign, CampaignEvent, open_campaign, run_campaign
from paceline.bench.environments import find_environment, prepare
from paceline.bench.machine import describe_machine, diagnose
from paceline.bench.recipes import Progress
from paceline.bench.sites.site import Launcher
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.measurements.run import Check
from paceline.measurements.store import Store
from paceline.spec.cluster import place
from paceline.spec.study import Case, Study

__all__ = ["Duration", "Measurement", "estimate_duration", "measure", "prepare_environments"]

START_S = 20.0
"""Assumed seconds to start the processes of a launch, import the framework and warm up, where nothing is stored."""
Installing = Callable[[str], AbstractContextManager[Progress]]
"""Progress display of an installation: a context that receives pip's output line by line."""


@dataclass(frozen=True)
class Measurement:
    """An open campaign: the checks of the machine, and an iterator that runs the launches."""

    campaign: str
    checks: tuple[Check, ...]
    events: Iterator[CampaignEvent]


@dataclass(frozen=True)
class Duration:
    """Estimated duration of a study, with the minimum and the maximum number of launches, and the basis of the
    estimate."""

    least_s: float
    most_s: float
    launches: tuple[int, int]
    basis: str


def estimate_duration(study: Study, cases: tuple[Case, ...], store: Store) -> Duration:
    """Seconds of a launch as stored for the case, else for its framework, else from the protocol's limits."""
    protocol = study.protocol
    known: dict[str, list[float]] = {}
    for run in store.read_all():
        if run.outcome == "ok":
            known.setdefault(run.case_id, []).append(run.seconds)
            known.setdefault(run.framework, []).append(run.seconds)
    assumed = START_S + protocol.launch_budget
    seconds = sum(median(known.get(case.id) or known.get(case.framework) or [assumed]) for case in cases)
    stored = sum(case.id in known or case.framework in known for case in cases)
    basis = f"stored launches for {stored} of {len(cases)} cases"
    if stored < len(cases):
        basis += f", {assumed:.0f} s assumed for a launch of the others"
    least, most = seconds * protocol.launches, seconds * protocol.max_launches
    if protocol.budget:
        least, most = min(least, protocol.budget), min(most, protocol.budget)
    return Duration(least, most, (len(cases) * protocol.launches, len(cases) * protocol.max_launches), basis)


@contextlib.contextmanager
def _silent(name: str) -> Iterator[Progress]:
    yield lambda line: None


@contextlib.contextmanager
def measure(
    study: Study,
    cases: tuple[Case, ...],
    store: Store,
    *,
    target: LaunchTarget | None = None,
    resume: bool = False,
    installing: Installing = _silent,
) -> Iterator[Measurement]:
    """Open a campaign on a target, by default this machine; the block releases all resources at its end."""
    with (
        make_launcher(target or LaunchTarget()) as launcher,
        open_campaign(study, cases, store, resume=resume, launcher=launcher.name) as name,
    ):
        ranks = max(_ranks_here(case, launcher) for case in cases)
        threads = max(case.threads or 0 for case in cases) or None
        checks = diagnose(store.root, ranks=ranks, threads=threads)
        campaign = Campaign(name, study, cases, launcher, describe_machine(checks))
        yield Measurement(name, checks, _events(campaign, store, installing))


def _events(campaign: Campaign, store: Store, installing: Installing) -> Iterator[CampaignEvent]:
    prepare_environments(campaign.cases, installing)
    yield from run_campaign(campaign, store)


def prepare_environments(cases: tuple[Case, ...], installing: Installing = _silent) -> None:
    """Create the missing environments of these cases."""
    names = {adapter_of(case.framework).environment(case.framework.split("/")[1]) for case in cases}
    for name in sorted(names):
        if find_environment(name) is None:
            with installing(name) as progress:
                prepare(name, progress)


def _ranks_here(case: Case, launcher: Launcher) -> int:
    """Largest number of ranks with real compute on this machine."""
    placed = place(case.cluster, case.ranks, spread=case.placement == "spread")
    computing = sum(item.device.emulation is None for item in placed)
    return max(1, computing) if launcher.one_machine else 1
