"""One launch of one case: prepare, start, watch, collect. Whatever happens, a run comes out."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from paceline.bench.adapters import adapter_of
from paceline.bench.collect import Ending, RankReport, explain_failure, faithfulness_of, read_report, unfaithful
from paceline.bench.environments import environment_python, environment_variables, find_environment, worker_path
from paceline.bench.job import Adapter, Launch, Launcher, MeetingPoint, Order, Process, job_document, threads_of
from paceline.errors import LaunchFailed
from paceline.measurements.run import DRIFT_LIMIT, Failure, Machine, Run, RunData
from paceline.spec.protocol import Protocol
from paceline.spec.study import Case

__all__ = ["Ticket", "launch_case", "launch_folder", "order_for", "watch"]

POLL_S = 0.05
STRAGGLER_GRACE_S = 5.0
"""After one rank failed, the others may end by themselves for so long."""


@dataclass(frozen=True)
class Ticket:
    """Which launch of which case of which campaign this is."""

    campaign: str
    study: str
    case: Case
    launch: int
    probe_s: float | None = None
    drift: float | None = None
    drift_limit: float = DRIFT_LIMIT

    @property
    def run_id(self) -> str:
        """Unique: a launch is stored once."""
        return f"{self.campaign}-{self.case.id}-{self.launch:03d}"


@dataclass(frozen=True)
class _Outcome:
    reports: list[RankReport]
    failure: Failure | None
    seconds: float
    started_at: str
    place: MeetingPoint


def launch_case(ticket: Ticket, protocol: Protocol, launcher: Launcher, machine: Machine) -> RunData:
    """Measure one launch; every way it can fail is a stored failure, an interruption ends the processes first."""
    case = ticket.case
    threads = threads_of(case, machine.cores, one_machine=launcher.one_machine)
    started_at, begin = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    adapter = adapter_of(case.framework)
    place = MeetingPoint("", ())
    refused = adapter.refusal(case)
    if refused:
        reports: list[RankReport] = []
        failure: Failure | None = Failure(phase="launch", reason="unsupported", message=refused)
    else:
        with launch_folder() as folder:
            try:
                order = order_for(case, adapter, launcher, folder, threads=threads)
            except LaunchFailed as error:
                reports, failure = [], Failure(phase="launch", reason="crash", message=str(error))
            else:
                reports, failure = _carry_out(order, adapter, launcher, protocol)
                place = order.meet
    outcome = _Outcome(reports, failure, time.monotonic() - begin, started_at, place)
    return _run_data(ticket, launcher, outcome, machine.model_copy(update={"threads": threads}))


@contextmanager
def launch_folder() -> Iterator[Path]:
    """A folder for the files of one launch, gone after it."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-launch-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def order_for(case: Case, adapter: Adapter, launcher: Launcher, folder: Path, *, threads: int) -> Order:
    """What one launch of a case needs to know."""
    name = adapter.environment(case.framework.split("/")[1])
    environment = find_environment(name)
    if environment is None:
        raise LaunchFailed(f"the {name} environment is not there", hint="prepare() makes it")
    return Order(
        case=case,
        folder=folder,
        python=environment_python(environment),
        worker_path=worker_path(),
        meet=launcher.meeting_point(case),
        token=secrets.token_hex(16),
        threads=threads,
        env=environment_variables(name),
        one_machine=launcher.one_machine,
    )


def _carry_out(
    order: Order, adapter: Adapter, launcher: Launcher, protocol: Protocol
) -> tuple[list[RankReport], Failure | None]:
    document = job_document(order, protocol)
    order.job_path.write_text(json.dumps(document), encoding="utf-8")
    processes = adapter.processes(order)
    try:
        launch = launcher.start(processes)
    except LaunchFailed as error:
        return [], Failure(phase="launch", reason="crash", message=str(error))
    try:
        ending = watch(launch, processes, protocol.timeout)
    finally:
        launch.stop()
    dilation = order.meet.dilation
    reports = [read_report(order.events_path(rank), rank, dilation=dilation) for rank in range(order.case.ranks)]
    failure = explain_failure(processes, reports, ending) or unfaithful(reports, dilation=dilation)
    if failure is not None and failure.reason == "unsustained":
        launcher.slow_down(order.case)
    return reports, failure


def watch(launch: Launch, processes: list[Process], timeout: float) -> Ending:
    """Wait until all ranks ended, one failed and the others had their grace, or time is up."""
    ranks = {process.name for process in processes if process.rank is not None}
    kills_before = _oom_kills()
    deadline = time.monotonic() + timeout
    first_failed: tuple[str, ...] = ()
    while True:
        codes = launch.poll()
        if not first_failed and any(codes.values()):
            first_failed = tuple(name for name, code in codes.items() if code)
            deadline = min(deadline, time.monotonic() + STRAGGLER_GRACE_S)
        ended = all(codes[name] is not None for name in ranks)
        late = time.monotonic() > deadline
        if ended or late:
            timed_out = late and not first_failed
            return Ending(codes, first_failed, timed_out=timed_out, oom_killed=_oom_kills() > kills_before)
        time.sleep(POLL_S)


def _oom_kills() -> int:
    """How often the kernel has killed a process for want of memory."""
    with open("/proc/vmstat", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)


def _run_data(ticket: Ticket, launcher: Launcher, outcome: _Outcome, machine: Machine) -> RunData:
    case, reports = ticket.case, outcome.reports
    first = reports[0] if reports else RankReport(0)
    faithfulness = faithfulness_of(reports, dilation=outcome.place.dilation)
    emulation = {"emulation_error": faithfulness.error, "emulation": str(faithfulness)} if faithfulness else {}
    run = Run(
        id=ticket.run_id,
        campaign=ticket.campaign,
        study=ticket.study,
        case_id=case.id,
        case=case.canonical,
        network=case.network.name,
        framework=case.framework,
        strategy=case.strategy.name,
        cluster=case.cluster.name,
        launcher=launcher.name,
        ranks=case.ranks,
        batch=case.batch,
        scaling=case.scaling,
        input=case.input,
        launch=ticket.launch,
        started_at=outcome.started_at,
        seconds=outcome.seconds,
        outcome="failed" if outcome.failure else "ok",
        failure=outcome.failure,
        machine=machine.model_copy(update={"versions": first.versions}),
        warmup=first.warmup,
        timers=first.timers,
        probe_s=ticket.probe_s,
        drift=ticket.drift,
        drift_limit=ticket.drift_limit,
        dilation=outcome.place.dilation,
        labels=first.labels,
        facts={**first.facts, **outcome.place.facts, **emulation, "pid": os.getpid()},
    )
    steps = tuple(step for report in reports for step in report.steps)
    spans = tuple(span for report in reports for span in report.spans)
    return RunData(run, steps, spans)
