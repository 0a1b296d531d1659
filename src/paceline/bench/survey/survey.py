"""A survey of hosts through any launcher, and the cluster file that it finds."""

from __future__ import annotations

import json
import secrets
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench.collect import tail
from paceline.bench.environments import worker_path
from paceline.bench.job import Launcher, MeetingPoint, Process
from paceline.bench.launch import launch_folder, watch
from paceline.errors import LaunchFailed, Unsupported
from paceline.spec.cluster import Cluster, Device, Host, Link
from paceline.spec.layers import Flatten
from paceline.spec.network import ImageInput, Network
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case

__all__ = ["LinkFound", "Survey", "case_of", "named_hosts", "slurm_nodes", "survey_hosts"]

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class LinkFound:
    """The way from one host to another, as measured."""

    source: str
    target: str
    bandwidth: float
    """Bytes per second of one stream: the best of its samples, because disturbances only take away."""
    bandwidth_spread: tuple[float, float]
    """Least and most of the samples."""
    latency: float
    """Half of the median round trip."""
    latency_spread: tuple[float, float]
    """Half of the 10th and the 90th percentile."""


@dataclass(frozen=True)
class Survey:
    """What was found."""

    hosts: tuple[dict[str, Any], ...]
    links: tuple[LinkFound, ...]
    clock_offsets_s: tuple[tuple[float, float], ...]
    """What to add to each host's clock to get the first one's, and how uncertain that is."""


def named_hosts(names: Sequence[str]) -> Cluster:
    """A cluster of which nothing is known but where its hosts are."""
    link = Link(name="unknown", bandwidth=1e14)
    devices = (Device(name="unknown", kind="other"),)
    hosts = tuple(Host(name=name, devices=devices, inside=link, link=link) for name in names)
    return Cluster(name="surveyed", hosts=hosts)


def survey_hosts(launcher: Launcher, cluster: Cluster) -> Survey:
    """Start one surveyor on each host and read what they found."""
    names = [host.name for host in cluster.hosts]
    case = case_of(cluster.model_copy(update={"hosts": tuple(_alone(host) for host in cluster.hosts)}), len(names))
    with launch_folder() as folder:
        meet = launcher.meeting_point(case)
        (folder / "job.json").write_text(json.dumps({"ranks": len(names)}), encoding="utf-8")
        processes = [
            _process(folder, meet, rank, token) for token in [secrets.token_hex(16)] for rank in range(len(names))
        ]
        launch = launcher.start(processes)
        try:
            ending = watch(launch, processes, TIMEOUT_S)
        finally:
            launch.stop()
        found = _read(folder / "rank-0.jsonl")
        if found is None or any(ending.codes.values()):
            failed = next((p for p in processes if ending.codes.get(p.name)), processes[0])
            raise LaunchFailed(f"the survey failed on {names[failed.host]}: {tail(failed.log)[-500:].strip()}")
    return _survey(found)


def _alone(host: Host) -> Host:
    """The host with its first device, so that each gets one process; a survey takes real time, whatever trains here."""
    return host.model_copy(update={"devices": (host.devices[0].model_copy(update={"emulation": None}),)})


def case_of(cluster: Cluster, ranks: int, *, framework: str = "survey/survey") -> Case:
    """Launchers think in cases: ranks on hosts, nothing to train."""
    return Case(
        network=Network(name="none", input=ImageInput(height=1, width=1), layers=(Flatten(name="nothing"),)),
        cluster=cluster,
        framework=framework,
        strategy=Strategy(),
        ranks=ranks,
        batch=1,
        scaling="weak",
        placement="packed",
        input="resident",
        threads=1,
    )


def _process(folder: Path, meet: MeetingPoint, rank: int, token: str) -> Process:
    env = {
        "PYTHONPATH": str(worker_path()),
        "PACELINE_JOB": str(folder / "job.json"),
        "PACELINE_RANK": str(rank),
        "PACELINE_EVENTS": str(folder / f"rank-{rank}.jsonl"),
        "PACELINE_MEET": f"{meet.address}:{meet.ports[0]}",
        "PACELINE_TOKEN": token,
        "MASTER_PORT": str(meet.ports[1]),
        **({"GLOO_SOCKET_IFNAME": meet.interface} if meet.interface else {}),
    }
    argv = (sys.executable, "-S", "-m", "paceline.bench.survey.worker")
    return Process(f"rank {rank}", rank, argv, env, folder / f"rank-{rank}.log", rank=rank)


def _read(path: Path) -> dict[str, Any] | None:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines]
    return next((event for event in found if event["event"] == "survey"), None)


def _survey(found: dict[str, Any]) -> Survey:
    names = [host["host"] for host in found["hosts"]]
    links = tuple(_link(pair, names) for pair in found["links"])
    offsets = tuple((float(offset), float(error)) for offset, error in found["clock_offsets_s"])
    return Survey(hosts=tuple(found["hosts"]), links=links, clock_offsets_s=offsets)


def _link(pair: dict[str, Any], names: list[str]) -> LinkFound:
    rates, trips = sorted(pair["bytes_per_s"]), sorted(pair["round_trips_s"])
    return LinkFound(
        source=names[pair["source"]],
        target=names[pair["target"]],
        bandwidth=rates[-1],
        bandwidth_spread=(rates[0], rates[-1]),
        latency=statistics.median(trips) / 2,
        latency_spread=(trips[len(trips) // 10] / 2, trips[-1 - len(trips) // 10] / 2),
    )


def slurm_nodes() -> list[str]:
    """Nodes of the cluster that would take a job now."""
    command = ["sinfo", "--noheader", "--Node", "--format=%N %t"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        raise Unsupported("Slurm is not installed here", hint="run on a login node of the cluster") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-300:]
        raise LaunchFailed(f"Slurm does not answer: {words}", hint="is slurmctld up, and SLURM_CONF right?")
    rows = [line.split()[:2] for line in done.stdout.splitlines() if line.strip()]
    usable = ("idle", "mix", "alloc", "comp")
    names = list(dict.fromkeys(name for name, status in rows if status.startswith(usable)))
    if not names:
        there = ", ".join(" ".join(row) for row in rows) or "none"
        raise LaunchFailed(f"no node of Slurm would take a job now; there are: {there}", hint="`sinfo -R` says why")
    return names
