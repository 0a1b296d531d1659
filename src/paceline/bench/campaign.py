"""The campaign loop: interleaved launches in random order, stopping rule, budget, resume.

A campaign is one pass through a study; one process at a time works on it. Launches go in rounds: each round launches
every case that is not done once, in a new random order, so that drift of the machine affects all cases equally. A case
is done when its interval is narrow enough, when it had its launches, when it failed twice, or when the budget ends. A
launch that the machine could not sustain does not count: it is repeated with more dilation. A launch before which the
machine's own speed was unusual does not count either, here and in every result (`run.counted`). A case whose phases do
not close is measured again; if they still do not, its results are marked.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from paceline.bench.launch import LaunchKey, launch_case
from paceline.bench.machine import probe_seconds
from paceline.bench.sites.site import Launcher
from paceline.errors import InputError, StoreError
from paceline.measurements.results import median_phases
from paceline.measurements.run import Machine, Run, RunData, counted, with_drift
from paceline.measurements.store import Store
from paceline.measurements.summary import median_interval, split_closes
from paceline.measurements.tables import PassTime, pass_times
from paceline.spec.load import dump
from paceline.spec.study import Case, Protocol, Study

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
    try:
        store.locks.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # nothing here is waited for
        number = os.open(store.locks / f"{campaign}.lock", flags, 0o666)
    except OSError as error:
        hint = "make the store writable, or choose another --store"
        raise StoreError(f"cannot lock {campaign} in {store.locks}: {error.strerror or error}", hint=hint) from error
    with open(number, "rb", buffering=0) as handle:
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
    runs: list[Run] = field(default_factory=list)
    failures: int = 0
    numbered: int = 0
    """Number after those of all stored launches, damaged ones too, so that no launch takes their place."""
    again: int = 0
    """Launches that were added because the phases did not close."""
    stopped: StopReason | None = None

    @property
    def launched(self) -> int:
        """Number of the next launch."""
        return max(self.numbered, *(run.launch + 1 for run in self.runs), 0)

    @property
    def unsustained(self) -> int:
        """Number of launches that the machine could not sustain."""
        return sum(run.failure is not None and run.failure.reason == "unsustained" for run in self.runs)


def run_campaign(campaign: Campaign, store: Store) -> Iterator[CampaignEvent]:
    """Measure the cases that are not complete in the store; yield events."""
    protocol = campaign.study.protocol
    progress = _Progress(campaign, store)
    states = progress.states
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
            data = _launch(campaign, state)
            store.write(data)
            progress.add(data.run)
            yield LaunchFinished(data.run)
            if state.stopped:
                yield CaseStopped(state.case, state.stopped, state.launched)


class _Progress:
    """The runs of a campaign so far, by case."""

    def __init__(self, campaign: Campaign, store: Store) -> None:
        self._protocol = campaign.study.protocol
        self._store = store
        self._by_case = {case.id: CaseState(case) for case in campaign.cases}
        self._runs: list[Run] = []
        stored = [run for run in store.read_all(campaign=campaign.id) if run.case_id in self._by_case]
        self._times = _times_by_run(store, [run.id for run in stored])
        for run in stored:
            self.add(run)
        for name in store.names(campaign=campaign.id):
            case_id, _, number = name.removeprefix(f"{campaign.id}-").rpartition("-")
            if case_id in self._by_case and number.isdecimal():
                state = self._by_case[case_id]
                state.numbered = max(state.numbered, int(number) + 1)

    @property
    def states(self) -> list[CaseState]:
        """The state of each case."""
        return list(self._by_case.values())

    def add(self, run: Run) -> None:
        """Take in a launch; its probe moves the usual speed, and so may change which launches of all cases count."""
        if run.id not in self._times:
            self._times |= _times_by_run(self._store, [run.id])
        self._runs = with_drift([*self._runs, run])
        for state in self.states:
            state.runs = [one for one in self._runs if one.case_id == state.case.id]
            state.failures = sum(not self._timed(one) for one in state.runs)
        state = self._by_case[run.case_id]
        state.stopped = self._next_stop(state)

    def _timed(self, run: Run) -> bool:
        return run.outcome == "ok" and "clean" in self._times[run.id]

    def _next_stop(self, state: CaseState) -> StopReason | None:
        """Why a case stops now; a case whose phases do not close gets further launches first."""
        times = [self._times[run.id] for run in counted(state.runs) if self._timed(run)]
        reason = _stop_reason(state, [passes["clean"].samples_per_s for passes in times], self._protocol)
        if reason not in ("settled", "launches") or state.again == MAX_AGAIN:
            return reason
        split = [{name: item.median_s for name, item in passes.items()} for passes in times if len(passes) > 1]
        if split_closes(median_phases(split)):
            return reason
        state.again += 1
        return None


def _times_by_run(store: Store, runs: list[str]) -> dict[str, dict[str, PassTime]]:
    """The passes of each run by name."""
    times: dict[str, dict[str, PassTime]] = {run: {} for run in runs}
    for item in pass_times(store, runs):
        times[item.run][item.pass_name] = item
    return times


def _launch(campaign: Campaign, state: CaseState) -> RunData:
    protocol = campaign.study.protocol
    key = LaunchKey(
        campaign=campaign.id,
        study=campaign.study.name,
        case=state.case,
        launch=state.launched,
        probe_s=probe_seconds(),
        drift_limit=protocol.width,
        pilot=protocol.launches if protocol.max_launches > protocol.launches else None,
    )
    return launch_case(key, protocol, campaign.launcher, campaign.machine)


def _stop_reason(state: CaseState, sample: Sequence[float], protocol: Protocol) -> StopReason | None:
    """`sample` holds the throughputs of the launches that count, in order."""
    if state.failures >= MAX_FAILURES:
        return "failed"
    if len(sample) >= protocol.launches:
        interval = median_interval(sample, confidence=protocol.confidence, pilot=protocol.launches)
        if interval.width <= protocol.width:
            return "settled"
    return "launches" if state.launched - state.unsustained >= protocol.max_launches else None
