"""The one loop over cases: interleaved random order, repeat, stop rule, budget, resume.

A campaign is one pass through a study. Launches go in rounds: each round launches every case that is not done once, in
a new random order, so that a drifting machine hurts all alike. A case is done when its interval is narrow enough, when
it had its launches, when it failed twice, or when the budget ends. A launch that the machine could not sustain is not
one of its launches: it is repeated, played slower.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from paceline.bench.job import Launcher
from paceline.bench.launch import Ticket, launch_case
from paceline.bench.machine import probe_seconds
from paceline.measurements.run import Machine, Run, RunData
from paceline.measurements.store import Store
from paceline.measurements.summary import median_interval
from paceline.measurements.tables import launch_throughputs
from paceline.spec.protocol import Protocol
from paceline.spec.study import Case, Study

__all__ = ["Campaign", "CaseState", "Event", "Finished", "Launched", "Stopped", "run_campaign"]

MAX_FAILURES = 2
StopReason = Literal["settled", "launches", "failed", "budget"]


@dataclass(frozen=True)
class Launched:
    """A launch is about to start."""

    case: Case
    launch: int


@dataclass(frozen=True)
class Finished:
    """A launch was stored."""

    run: Run


@dataclass(frozen=True)
class Stopped:
    """A case is done, and why."""

    case: Case
    reason: StopReason
    launches: int


Event = Launched | Finished | Stopped


@dataclass(frozen=True)
class Campaign:
    """One pass through a study."""

    id: str
    study: Study
    cases: tuple[Case, ...]
    launcher: Launcher
    machine: Machine


@dataclass
class CaseState:
    """What the loop knows about one case."""

    case: Case
    launched: int = 0
    throughputs: list[float] = field(default_factory=list)
    failures: int = 0
    unsustained: int = 0
    drifted: int = 0
    stopped: StopReason | None = None

    @property
    def steady(self) -> int:
        """Launches that count: successful, and not while the machine had drifted."""
        return len(self.throughputs) - self.drifted


def run_campaign(campaign: Campaign, store: Store) -> Iterator[Event]:
    """Measure what the store does not hold yet, telling each event as it happens."""
    protocol = campaign.study.protocol
    states = _resumed(campaign, store)
    probes = [run.probe_s for run in store.read_all(campaign=campaign.id) if run.probe_s]
    generator = random.Random(f"{campaign.id}-{sum(state.launched for state in states)}")
    deadline = time.monotonic() + protocol.budget if protocol.budget else None
    while active := [state for state in states if state.stopped is None]:
        generator.shuffle(active)
        for state in active:
            if deadline is not None and time.monotonic() > deadline:
                state.stopped = "budget"
                yield Stopped(state.case, "budget", state.launched)
                continue
            yield Launched(state.case, state.launched)
            data = _launch(campaign, state, probes)
            store.write(data)
            _account(state, data.run, launch_throughputs(store, [data.run.id]))
            yield Finished(data.run)
            state.stopped = _stop_reason(state, protocol)
            if state.stopped:
                yield Stopped(state.case, state.stopped, state.launched)


def _resumed(campaign: Campaign, store: Store) -> list[CaseState]:
    """Each case with what the store already holds of this campaign."""
    states = {case.id: CaseState(case) for case in campaign.cases}
    runs = store.read_all(campaign=campaign.id)
    stored = launch_throughputs(store, [run.id for run in runs])
    for run in runs:
        state = states.get(run.case_id)
        if state is None:
            continue
        _account(state, run, stored)
    for state in states.values():
        state.stopped = _stop_reason(state, campaign.study.protocol) if state.launched else None
    return list(states.values())


def _launch(campaign: Campaign, state: CaseState, probes: list[float]) -> RunData:
    now = probe_seconds()
    probes.append(now)
    usual = float(np.median(probes))
    ticket = Ticket(
        campaign=campaign.id,
        study=campaign.study.name,
        case=state.case,
        launch=state.launched,
        probe_s=now,
        drift=now / usual - 1,
        drift_limit=campaign.study.protocol.width,
    )
    return launch_case(ticket, campaign.study.protocol, campaign.launcher, campaign.machine)


def _account(state: CaseState, run: Run, throughputs: dict[str, float]) -> None:
    state.launched = max(state.launched, run.launch + 1)
    if run.outcome == "ok":
        state.throughputs.append(throughputs[run.id])
        state.drifted += run.drifted
    else:
        state.failures += 1
        state.unsustained += run.failure is not None and run.failure.reason == "unsustained"


def _stop_reason(state: CaseState, protocol: Protocol) -> StopReason | None:
    if state.failures >= MAX_FAILURES:
        return "failed"
    if state.steady >= protocol.launches:
        interval = median_interval(state.throughputs, confidence=protocol.confidence, seed=protocol.seed)
        if interval.width <= protocol.width:
            return "settled"
    return "launches" if state.launched - state.unsustained >= protocol.max_launches else None
