"""Sweeps of collectives over sizes and ranks, stored as runs; sizes are the whole buffer of one rank."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline.bench.collect import RankReport, explain_failure
from paceline.bench.environments import RECIPES, environment_python, prepare, worker_path
from paceline.bench.job import LaunchSpec, rank_processes
from paceline.bench.launch import LaunchOutcome, launch_folder, read_reports, wait_for_ranks
from paceline.bench.sites.site import Launcher
from paceline.cost.collective import bus_factor
from paceline.errors import InputError, LaunchFailed, UnknownName
from paceline.measurements.run import Failure, Machine, Run, RunData, Span
from paceline.spec.cluster import Cluster, place

__all__ = ["COLLECTIVES", "PAIR", "CollectiveTime", "Sweep", "collective_times", "run_sweep"]

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "point_to_point")
PAIR = "pair "
"""How names of spans between two ranks begin; both numbers follow."""

WORKERS = {
    "gloo": "paceline.bench.frameworks.pytorch.worker_collectives",
    "nccl": "paceline.bench.frameworks.pytorch.worker_collectives",
    "mpi": "paceline.bench.frameworks.worker_collectives_mpi",
}
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Sweep:
    """The parameters of a sweep."""

    cluster: Cluster
    ranks: int
    sizes: tuple[int, ...]
    """Bytes of one rank's buffer."""
    collectives: tuple[str, ...] = COLLECTIVES
    transport: str = "gloo"
    seconds_per_size: float = 0.8
    pairs: tuple[tuple[tuple[int, int], ...], ...] = ()
    """Rounds of pairs of ranks that send each other the largest buffer; other probes are then left out."""

    @property
    def plain(self) -> dict[str, Any]:
        """The sweep as canonical JSON data."""
        data = {"sizes": list(self.sizes), "collectives": list(self.collectives), "transport": self.transport}
        data |= {"pairs": self.pairs} if self.pairs else {}
        return {**data, "ranks": self.ranks, "cluster": self.cluster.model_dump(mode="json")}

    @property
    def id(self) -> str:
        """Hash of the canonical form."""
        return hashlib.sha256(json.dumps(self.plain, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CollectiveTime:
    """One collective at one size: the median over repetitions, each as long as its slowest rank."""

    collective: str
    ranks: int
    size_bytes: int
    seconds: float
    bus_bandwidth: float
    """Bytes per second."""


def run_sweep(sweep: Sweep, launcher: Launcher, machine: Machine) -> RunData:
    """Measure one launch of a sweep; a failure is stored as a run."""
    _check(sweep, launcher)
    prepare("pytorch")
    started_at, begin = datetime.now(UTC).isoformat(timespec="milliseconds"), time.monotonic()
    with launch_folder() as folder:
        outcome = _carry_out(sweep, launcher, folder)
    spans = tuple(span for report in outcome.reports for span in report.spans)
    times = collective_times(spans, sweep.ranks)
    facts = {**outcome.rendezvous.facts, "collectives": [vars(item) for item in times]}
    run = _run(sweep, launcher, machine, facts, outcome.reports)
    failure, dilation = outcome.failure, outcome.rendezvous.dilation
    ending = {"outcome": "failed" if failure else "ok", "failure": failure, "dilation": dilation}
    clock = {"started_at": started_at, "seconds": time.monotonic() - begin, "launch": 0}
    return RunData(Run.model_validate({**run, **ending, **clock}), spans=spans)


def _check(sweep: Sweep, launcher: Launcher) -> None:
    if sweep.transport == "mpi" and launcher.name != "mpi":
        raise InputError("MPI's ranks must be started by mpirun", hint="--on mpi --transport mpi")
    for name in sweep.collectives:
        if name not in COLLECTIVES:
            raise UnknownName("collective", name, COLLECTIVES)
    if sweep.transport not in WORKERS:
        raise UnknownName("transport", sweep.transport, WORKERS)
    if sweep.transport == "nccl" and any(d.kind == "cpu" for host in sweep.cluster.hosts for d in host.devices):
        raise InputError(
            f"NCCL moves data between GPUs, and {sweep.cluster.name!r} has processors for devices",
            hint="--transport gloo, or --cluster with GPUs",
        )
    if sweep.ranks < 2:
        raise InputError("a collective needs at least two ranks", hint="--ranks 2")
    if sweep.ranks > sweep.cluster.num_devices:
        raise InputError(f"{sweep.ranks} ranks on {sweep.cluster.num_devices} devices of {sweep.cluster.name!r}")


def _carry_out(sweep: Sweep, launcher: Launcher, folder: Path) -> LaunchOutcome:
    try:
        with launcher.open(sweep.cluster, sweep.ranks) as site:
            spec = LaunchSpec(
                placement=place(sweep.cluster, sweep.ranks),
                folder=folder,
                python=environment_python(prepare("pytorch")),
                worker_path=worker_path(),
                rendezvous=site.rendezvous,
                token=secrets.token_hex(16),
                threads=1,
                env={**RECIPES["pytorch"].env, "OMP_WAIT_POLICY": "passive"},  # as ranks with too few cores wait
                one_machine=launcher.one_machine,
            )
            processes = rank_processes(spec, WORKERS[sweep.transport])
            spec.job_path.write_text(json.dumps(_job(sweep, launcher)), encoding="utf-8")
            ending = wait_for_ranks(site.start(processes), processes, TIMEOUT_S)
    except LaunchFailed as error:
        return LaunchOutcome(failure=Failure(phase="launch", reason="crash", message=str(error)))
    reports = read_reports(spec)
    return LaunchOutcome(reports, explain_failure(processes, reports, ending), spec.rendezvous)


def _job(sweep: Sweep, launcher: Launcher) -> dict[str, Any]:
    # Ranks with real compute have no real-time priority either, and wait to be scheduled.
    devices = [device for host in sweep.cluster.hosts for device in host.devices]
    computes = all(device.kind == "cpu" and device.emulation is None for device in devices)
    real_time = launcher.name == "virtual" and not computes
    extra = {"seconds_per_size": sweep.seconds_per_size, "timeout": TIMEOUT_S, "real_time": real_time}
    extra["computes"] = computes and not sweep.pairs
    return {**sweep.plain, **extra}


def _run(
    sweep: Sweep, launcher: Launcher, machine: Machine, facts: dict[str, Any], reports: Sequence[RankReport]
) -> dict[str, Any]:
    campaign = f"collectives-{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
    first = reports[0] if reports else RankReport(0)
    return {
        "id": f"{campaign}-{sweep.id}-000",
        "campaign": campaign,
        "study": "collectives",
        "case_id": sweep.id,
        "case": sweep.plain,
        "network": "none",
        "framework": f"collectives/{sweep.transport}",
        "strategy": "default",
        "cluster": sweep.cluster.name,
        "launcher": launcher.name,
        "ranks": sweep.ranks,
        "batch": 1,
        "scaling": "weak",
        "input": "resident",
        "machine": machine.model_copy(update={"versions": first.versions}),
        "facts": {**first.facts, **facts, "pid": os.getpid()},
    }


def collective_times(spans: Sequence[Span], ranks: int) -> tuple[CollectiveTime, ...]:
    """Medians by collective and size."""
    slowest: dict[tuple[str, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for span in (span for span in spans if span.name in COLLECTIVES):
        steps = slowest[span.name, span.size_bytes or 0]
        steps[span.step] = max(steps[span.step], span.seconds)
    times = []
    for (name, size), steps in slowest.items():
        seconds = statistics.median(steps.values())
        times.append(CollectiveTime(name, ranks, size, seconds, size / seconds * bus_factor(name, ranks)))
    return tuple(times)
