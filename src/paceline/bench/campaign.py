"""The campaign loop: interleaved launches in random order, stopping rule, budget, resume.

A campaign is one pass through a study; one process at a time works on it. Launches go in rounds: each round launches
every case that is not done once, in a new random order, so that drift of the machine affects all cases equally. A case
is done when its interval is narrow enough, when it had its launches, when it failed twice, or when the budget ends. A
launch that the machine could not sustain does not count: it is repeated with more dilation. A case whose phases do not
close is measured again; if they still do not, its results are marked.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import random
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from paceline.bench.launch import LaunchKey, launch_case
from paceline.bench.machine import probe_seconds
from paceline.bench.sites.site import Launcher
from paceline.errors import InputError
from paceline.measurements.results import median_phases
from paceline.measurements.run import Machine, Run, RunData
from paceline.measurements.store import Store
from paceline.measurements.summary import median_interval, split_closes
from paceline.measurements.tables import PassTime, pass_times
from paceline.spec.load import dump
from paceline.spec.protocol import Protocol
from paceline.spec.study import Case, Study

__all__ = [
    "Campaign",
    "CampaignEvent",
    "CaseState",
    "CaseStopped",
    "LaunchFinished",
    "LaunchStarted",
    "open_campaign",
    "run_campaign",
]

MAX_FAILURES = 2
MAX_AGAIN = 2
"""Further launches of a case whose phases do not close."""
StopReason = Literal["settled", "launches", "failed", "budget"]


@dataclass(frozen=True)
class LaunchStarted:
    """A launch is about to start."""

    case: Case
    launch: int


@dataclass(frozen=True)
class LaunchFinished:
    """A launch was stored."""

    run: Run


@dataclass(frozen=True)
class CaseStopped:
    """A case is done, and why."""

    case: Case
    reason: StopReason
    launches: int


CampaignEvent = LaunchStarted | LaunchFinished | CaseStopped


@dataclass(frozen=True)
class Campaign:
    """One pass through a study."""

    id: str
    study: Study
    cases: tuple[Case, ...]
    launcher: Launcher
    machine: Machine


@contextlib.contextmanager
def open_campaign(study: Study, cases: tuple[Case, ...], store: Store, *, resume: bool, launcher: str) -> Iterator[str]:
    """The id of a new campaign, or of the newest equal one to resume; locked until the block ends."""
    digest = _digest(study, cases)
    stored = store.read_campaigns(study.name)
    same = [item for item in stored if item["digest"] == digest and item.get("launcher", launcher) == launcher]
    if resume and same:
        campaign = str(same[-1]["campaign"])
    else:
        now = datetime.now(UTC)
        campaign = f"{study.name}-{now:%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
        document = {
            "campaign": campaign,
            "study": study.name,
            "title": study.title,
            "digest": digest,
            "started_at": now.isoformat(timespec="milliseconds"),
            "launcher": launcher,
            "text": dump(study),
            "cases": [case.id for case in cases],
        }
        store.write_campaign(campaign, document)
    with _held(store, campaign):
        yield campaign


def _digest(study: Study, cases: tuple[Case, ...]) -> str:
    protocol = study.protocol.model_dump(mode="json", exclude={"budget"})
    text = json.dumps([sorted(case.id for case in cases), protocol], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextlib.contextmanager
def _held(store: Store, campaign: str) -> Iterator[None]:
    folder = store.root / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{campaign}.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            hint = "wait for it, or leave out --resume to begin a new campaign"
            raise InputError(f"campaign {campaign} is being run by another process", hint=hint) from None
        yield


@dataclass
class CaseState:
    """The state of one case in the loop."""

    case: Case
    launched: int = 0
    throughputs: list[float] = field(default_factory=list)
    failures: int = 0
    unsustained: int = 0
    drifted: int = 0
    passes: list[dict[str, float]] = field(default_factory=list)
    """Median seconds by pass of each successful launch with instrumented passes."""
    again: int = 0
    """Launches that were added because the phases did not close."""
    stopped: StopReason | None = None

    @property
    def steady(self) -> int:
        """Number of launches that count: successful and not drifted."""
        return len(self.throughputs) - self.drifted


def run_campaign(campaign: Campaign, store: Store) -> Iterator[CampaignEvent]:
    """Measure the cases that are not complete in the store; yield events."""
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
                yield CaseStopped(state.case, "budget", state.launched)
                continue
            yield LaunchStarted(state.case, state.launched)
            data = _launch(campaign, state, probes)
            store.write(data)
            _account(state, data.run, _times_by_run(store, [data.run.id]))
            yield LaunchFinished(data.run)
            state.stopped = _next_stop(state, protocol)
            if state.stopped:
                yield CaseStopped(state.case, state.stopped, state.launched)


def _resumed(campaign: Campaign, store: Store) -> list[CaseState]:
    """The state of each case from the stored runs of this campaign."""
    states = {case.id: CaseState(case) for case in campaign.cases}
    runs = store.read_all(campaign=campaign.id)
    stored = _times_by_run(store, [run.id for run in runs])
    for run in runs:
        state = states.get(run.case_id)
        if state is None:
            continue
        _account(state, run, stored)
        state.stopped = _next_stop(state, campaign.study.protocol)
    for name in store.names(campaign=campaign.id):  # a damaged run keeps its number, so that no launch takes it
        case_id, _, number = name.removeprefix(f"{campaign.id}-").rpartition("-")
        if case_id in states and number.isdigit():
            states[case_id].launched = max(states[case_id].launched, int(number) + 1)
    return list(states.values())


def _times_by_run(store: Store, runs: list[str]) -> dict[str, dict[str, PassTime]]:
    """The passes of each run by name."""
    times: dict[str, dict[str, PassTime]] = {run: {} for run in runs}
    for item in pass_times(store, runs):
        times[item.run][item.pass_name] = item
    return times


def _launch(campaign: Campaign, state: CaseState, probes: list[float]) -> RunData:
    now = probe_seconds()
    probes.append(now)
    usual = float(np.median(probes))
    key = LaunchKey(
        campaign=campaign.id,
        study=campaign.study.name,
        case=state.case,
        launch=state.launched,
        probe_s=now,
        drift=now / usual - 1,
        drift_limit=campaign.study.protocol.width,
    )
    return launch_case(key, campaign.study.protocol, campaign.launcher, campaign.machine)


def _account(state: CaseState, run: Run, times: dict[str, dict[str, PassTime]]) -> None:
    state.launched = max(state.launched, run.launch + 1)
    if run.outcome == "ok" and "clean" in times[run.id]:
        passes = times[run.id]
        state.throughputs.append(passes["clean"].samples_per_s)
        state.passes += [{name: item.median_s for name, item in passes.items()}] if len(passes) > 1 else []
        state.drifted += run.drifted
    else:
        state.failures += 1
        state.unsustained += run.failure is not None and run.failure.reason == "unsustained"


def _next_stop(state: CaseState, protocol: Protocol) -> StopReason | None:
    """Why a case stops now; a case whose phases do not close gets further launches first."""
    reason = _stop_reason(state, protocol)
    if reason not in ("settled", "launches") or state.again == MAX_AGAIN:
        return reason
    if split_closes(median_phases(state.passes)):
        return reason
    state.again += 1
    return None


def _stop_reason(state: CaseState, protocol: Protocol) -> StopReason | None:
    if state.failures >= MAX_FAILURES:
        return "failed"
    if state.steady >= protocol.launches:
        interval = median_interval(state.throughputs, confidence=protocol.confidence, seed=protocol.seed)
        if interval.width <= protocol.width:
            return "settled"
    return "launches" if state.launched - state.unsustained >= protocol.max_launches else None
