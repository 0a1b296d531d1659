"""One launch of one case: prepare, start, wait_for_ranks, collect. Every outcome is a run."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.bench.adapters import adapter_of
from paceline.bench.collect import Ending, RankReport, explain_failure, faithfulness_of, read_report, unfaithful
from paceline.bench.environments import environment_python, environment_variables, find_environment, home, worker_path
from paceline.bench.frameworks.datasets import write_data_set
from paceline.bench.job import Adapter, CaseLaunch, LaunchSpec
from paceline.bench.plugins import plugin_packages
from paceline.bench.sites.site import NOWHERE, Launch, Launcher, Process, Rendezvous, Site
from paceline.bench.virtual.emulation import emulation_document, least_tail
from paceline.cost.host import fair_threads
from paceline.errors import LaunchFailed, Unsupported
from paceline.files import atomic_directory
from paceline.measurements.run import DRIFT_LIMIT, Failure, Machine, Run, RunData
from paceline.spec.cluster import Device, place
from paceline.spec.network import ImageInput, Network, plain_network
from paceline.spec.study import Case, Protocol

__all__ = [
    "LaunchKey",
    "LaunchOutcome",
    "case_launch",
    "data_set",
    "launch_case",
    "launch_folder",
    "open_case_site",
    "read_reports",
    "wait_for_ranks",
]

POLL_S = 0.05
STRAGGLER_GRACE_S = 5.0
"""Grace period in seconds for the other ranks after one rank failed."""
MOST_CLASSES = 4
"""Classes of a generated data set, at most."""


@dataclass(frozen=True)
class LaunchKey:
    """Campaign, case and number of a launch, and the drift probe before it."""

    campaign: str
    study: str
    case: Case
    launch: int
    probe_s: float | None = None
    drift_limit: float = DRIFT_LIMIT
    pilot: int | None = None

    @property
    def run_id(self) -> str:
        """Unique id of the run."""
        return f"{self.campaign}-{self.case.id}-{self.launch:03d}"


@dataclass(frozen=True)
class LaunchOutcome:
    """The reports of the ranks of a launch, and why it failed, if it did."""

    reports: list[RankReport] = field(default_factory=list)
    failure: Failure | None = None
    rendezvous: Rendezvous = NOWHERE
    started_at: str = ""
    seconds: float = 0.0


def launch_case(key: LaunchKey, protocol: Protocol, launcher: Launcher, machine: Machine) -> RunData:
    """Measure one launch; every failure is part of the run, an interruption ends the processes first."""
    started_at, begin = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    threads = threads_of(key.case, machine.cores, one_machine=launcher.one_machine)
    adapter = adapter_of(key.case.framework)
    refused = adapter.refusal(key.case)
    if refused:
        outcome = LaunchOutcome(failure=Failure(phase="launch", reason="unsupported", message=refused))
    else:
        outcome = _launched(key.case, adapter, launcher, protocol, threads=threads)
    outcome = replace(outcome, started_at=started_at, seconds=time.monotonic() - begin)
    return _run_data(key, launcher, outcome, machine.model_copy(update={"threads": threads}))


@contextmanager
def launch_folder() -> Iterator[Path]:
    """A temporary folder for the files of one launch."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-launch-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def case_launch(
    case: Case, adapter: Adapter, launcher: Launcher, site: Site, folder: Path, *, threads: int
) -> CaseLaunch:
    """The context of one launch of a case at a site."""
    name = adapter.environment(case.framework.split("/")[1])
    environment = find_environment(name)
    if environment is None:
        raise LaunchFailed(
            f"the {name} environment is not installed", hint=f"paceline frameworks install {case.framework}"
        )
    return CaseLaunch(
        case=case,
        placement=place(case.cluster, case.ranks, spread=case.placement == "spread"),
        folder=folder,
        python=environment_python(environment),
        worker_path=worker_path(*plugin_packages(case.framework)),
        rendezvous=site.rendezvous,
        token=secrets.token_hex(16),
        threads=threads,
        env=environment_variables(name),
        one_machine=launcher.one_machine,
    )


def _launched(case: Case, adapter: Adapter, launcher: Launcher, protocol: Protocol, *, threads: int) -> LaunchOutcome:
    rendezvous = NOWHERE
    with launch_folder() as folder:
        try:
            with open_case_site(launcher, case) as site:
                rendezvous = site.rendezvous
                launch = case_launch(case, adapter, launcher, site, folder, threads=threads)
                launch.job_path.write_text(json.dumps(job_document(launch, protocol)), encoding="utf-8")
                processes = adapter.processes(launch)
                ending = wait_for_ranks(site.start(processes), processes, protocol.timeout)
        except LaunchFailed as error:
            return LaunchOutcome(
                failure=Failure(phase="launch", reason="crash", message=str(error)), rendezvous=rendezvous
            )
        reports = read_reports(launch)
        failure = explain_failure(processes, reports, ending) or unfaithful(reports, dilation=rendezvous.dilation)
    if failure is not None and failure.reason == "unsustained":
        launcher.slow_down(case)
    return LaunchOutcome(reports, failure, rendezvous)


def open_case_site(launcher: Launcher, case: Case) -> Site:
    """A site for the ranks of a case."""
    return launcher.open(case.cluster, case.ranks, spread=case.placement == "spread", workload=case)


def read_reports(spec: LaunchSpec) -> list[RankReport]:
    """The reports of all ranks, in undilated time."""
    dilation = spec.rendezvous.dilation
    return [read_report(spec.events_path(rank), rank, dilation=dilation) for rank in range(len(spec.placement))]


def threads_of(case: Case, cores: int, *, one_machine: bool = True) -> int:
    """Compute threads of each rank: as requested, else an even share of the cores of its host."""
    if case.threads is not None:
        return case.threads
    placed = place(case.cluster, case.ranks, spread=case.placement == "spread")
    busiest = (
        len(placed) if one_machine else max(sum(1 for other in placed if other.host == item.host) for item in placed)
    )
    return fair_threads(cores, busiest)


def passes_of(case: Case) -> list[str]:
    """The partial steps of a case, each with one more part than the previous one."""
    exchange = ["exchange"] if case.ranks > 1 else []
    more = {"resident": [], "copied": ["copied"], "files": ["copied", "full"]}[case.input]
    return ["forward", "compute", *exchange, "resident", *more]


def data_set(network: Network) -> dict[str, str]:
    """Kind and path of the generated data set for a network; it is written once and kept for later runs."""
    given = network.input
    if not isinstance(given, ImageInput):
        raise Unsupported(f"{network.name} reads tokens: only images are read from files", hint='use input = "copied"')
    kind = "cifar" if given.shape == (3, 32, 32) else "folder"
    folder = home() / "data" / f"{kind}-{given.channels}x{given.height}x{given.width}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(folder, durable=False) as building:
            write_data_set(str(building), kind, given.shape, min(MOST_CLASSES, network.classes))
    return {"kind": kind, "path": str(folder)}


def job_document(launch: CaseLaunch, protocol: Protocol) -> dict[str, Any]:
    """The parameters of a worker, as JSON data."""
    case = launch.case
    framework, mode = case.framework.split("/")
    devices = [item.device for item in launch.placement]
    return {
        "framework": framework,
        "mode": mode,
        "network": plain_network(case.network),
        "strategy": case.strategy.model_dump(mode="json"),
        "ranks": case.ranks,
        "batch": case.batch,
        "input": case.input,
        "threads": launch.threads,
        "accelerator": "cuda" if all(device.kind == "gpu" and not device.emulation for device in devices) else "none",
        "devices": [device.model_dump(mode="json") for device in devices],
        "emulation": _emulation(devices, case) if any(device.emulation for device in devices) else None,
        "dilation": launch.rendezvous.dilation,
        "data": data_set(case.network) if case.input == "files" else None,
        "script": case.script.model_dump(mode="json") if case.script else None,
        "passes": passes_of(case),
        "phases": protocol.phases,
        "warmup": protocol.warmup,
        "tolerance": protocol.width / 2,
        "steps": protocol.steps,
        "launch_budget": protocol.launch_budget,
        "phase_steps": protocol.phase_steps,
        "timeout": protocol.timeout,
        "seed": protocol.seed,
    }


def _emulation(devices: list[Device], case: Case) -> list[dict[str, Any]]:
    documents = zip(emulation_document(devices, case), devices, strict=True)
    return [{**document, "least_tail": least_tail(case, device)} for document, device in documents]


def wait_for_ranks(launch: Launch, processes: list[Process], timeout: float) -> Ending:
    """Wait until all ranks have ended, until the grace period after a failure, or until the timeout."""
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
    """Number of processes that the kernel has killed for lack of memory."""
    with open("/proc/vmstat", encoding="ascii") as file:
        return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), 0)


def _run_data(key: LaunchKey, launcher: Launcher, outcome: LaunchOutcome, machine: Machine) -> RunData:
    case, reports = key.case, outcome.reports
    first = reports[0] if reports else RankReport(0)
    faithfulness = faithfulness_of(reports, dilation=outcome.rendezvous.dilation)
    emulation = {"emulation_error": faithfulness.error, "emulation": str(faithfulness)} if faithfulness else {}
    run = Run(
        id=key.run_id,
        campaign=key.campaign,
        study=key.study,
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
        launch=key.launch,
        started_at=outcome.started_at,
        seconds=outcome.seconds,
        outcome="failed" if outcome.failure else "ok",
        failure=outcome.failure,
        machine=machine.model_copy(update={"versions": first.versions}),
        warmup=first.warmup,
        timers=first.timers,
        probe_s=key.probe_s,
        drift_limit=key.drift_limit,
        pilot=key.pilot,
        dilation=outcome.rendezvous.dilation,
        labels=first.labels,
        facts={**first.facts, **outcome.rendezvous.facts, **emulation, "pid": os.getpid()},
    )
    steps = tuple(step for report in reports for step in report.steps)
    spans = tuple(span for report in reports for span in report.spans)
    return RunData(run, steps, spans)
