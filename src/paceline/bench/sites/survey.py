"""A survey of hosts through any launcher, and its cluster file: figures as fields, their spread as comments."""

from __future__ import annotations

import json
import os
import secrets
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import variables
from paceline.bench.collect import tail
from paceline.bench.environments import worker_path
from paceline.bench.launch import launch_folder, wait_for_ranks
from paceline.bench.sites.site import Launcher, Process, Rendezvous
from paceline.bench.sites.target import LaunchTarget
from paceline.errors import InputError, LaunchFailed, Unsupported
from paceline.spec.cluster import Cluster, Device, Host, Link
from paceline.units import BANDWIDTH, BYTES, SECONDS

__all__ = [
    "UNKNOWN_LINK",
    "MeasuredLink",
    "Survey",
    "cluster_text",
    "hosts_of",
    "named_hosts",
    "slurm_nodes",
    "survey_hosts",
]

TIMEOUT_S = 300.0
LONELY_BANDWIDTH = "1 GB/s"
UNKNOWN_LINK = "unknown"


@dataclass(frozen=True)
class MeasuredLink:
    """The link from one host to another, as measured."""

    source: str
    target: str
    bandwidth: float
    """Bytes per second of one stream: the maximum of its samples, because disturbances only reduce it."""
    bandwidth_spread: tuple[float, float]
    """Minimum and maximum of the samples."""
    latency: float
    """Half of the median round trip."""
    latency_spread: tuple[float, float]
    """Half of the 10th and the 90th percentile."""


@dataclass(frozen=True)
class Survey:
    """The hardware of the hosts, and the measured links between them."""

    hosts: tuple[dict[str, Any], ...]
    links: tuple[MeasuredLink, ...]
    clock_offsets_s: tuple[tuple[float, float], ...]
    """Clock offset of each host relative to the first host, with its uncertainty."""


def named_hosts(names: Sequence[str]) -> Cluster:
    """A cluster with the names of its hosts only."""
    link = Link(name=UNKNOWN_LINK, bandwidth=1e14)
    devices = (Device(name="unknown", kind="other"),)
    hosts = tuple(Host(name=name, devices=devices, inside=link, link=link) for name in names)
    return Cluster(name="surveyed", hosts=hosts)


def survey_hosts(launcher: Launcher, cluster: Cluster) -> Survey:
    """Start one survey worker on each host and read their results."""
    names = [host.name for host in cluster.hosts]
    # One device of each host, so that each host gets one process.
    hosts = tuple(host.model_copy(update={"devices": host.devices[:1]}) for host in cluster.hosts)
    with launch_folder() as folder:
        (folder / "job.json").write_text(json.dumps({"ranks": len(names)}), encoding="utf-8")
        with launcher.open(cluster.model_copy(update={"hosts": hosts}), len(names)) as site:
            token = secrets.token_hex(16)
            processes = [_process(folder, site.rendezvous, rank, token) for rank in range(len(names))]
            ending = wait_for_ranks(site.start(processes), processes, TIMEOUT_S)
        measured = _read(folder / "rank-0.jsonl")
        if measured is None or any(ending.codes.values()):
            failed = next((p for p in processes if ending.codes.get(p.name)), processes[0])
            raise LaunchFailed(f"the survey failed on {names[failed.host]}: {tail(failed.log)[-500:].strip()}")
    return _survey(measured)


def _process(folder: Path, rendezvous: Rendezvous, rank: int, token: str) -> Process:
    env = {
        "PYTHONPATH": str(worker_path()),
        variables.JOB: str(folder / "job.json"),
        variables.RANK: str(rank),
        variables.EVENTS: str(folder / f"rank-{rank}.jsonl"),
        variables.RENDEZVOUS: f"{rendezvous.address}:{rendezvous.ports[0]}",
        variables.TOKEN: token,
        "MASTER_PORT": str(rendezvous.ports[1]),
        **({"GLOO_SOCKET_IFNAME": rendezvous.interface} if rendezvous.interface else {}),
    }
    argv = (sys.executable, "-S", "-m", "paceline.bench.frameworks.worker_survey")
    return Process(f"rank {rank}", rank, argv, env, folder / f"rank-{rank}.log", rank=rank)


def _read(path: Path) -> dict[str, Any] | None:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    events = [json.loads(line) for line in lines]
    return next((event for event in events if event["event"] == "survey"), None)


def _survey(measured: dict[str, Any]) -> Survey:
    names = [host["host"] for host in measured["hosts"]]
    links = tuple(_link(pair, names) for pair in measured["links"])
    offsets = tuple((float(offset), float(error)) for offset, error in measured["clock_offsets_s"])
    return Survey(hosts=tuple(measured["hosts"]), links=links, clock_offsets_s=offsets)


def _link(pair: dict[str, Any], names: list[str]) -> MeasuredLink:
    rates, trips = sorted(pair["bytes_per_s"]), sorted(pair["round_trips_s"])
    return MeasuredLink(
        source=names[pair["source"]],
        target=names[pair["target"]],
        bandwidth=rates[-1],
        bandwidth_spread=(rates[0], rates[-1]),
        latency=statistics.median(trips) / 2,
        latency_spread=(trips[len(trips) // 10] / 2, trips[-1 - len(trips) // 10] / 2),
    )


def hosts_of(target: LaunchTarget) -> Cluster:
    """The hosts of a target: by name, of Slurm, of the running virtual cluster, or this host."""
    from paceline.bench.virtual import state
    from paceline.bench.virtual.lifecycle import opened

    if target.on == "virtual":
        running = [item for item in (opened(home.name) for home in state.listing()) if not item.owned]
        chosen = [item for item in running if not target.hosts or item.name in target.hosts]
        if len(chosen) != 1:
            names = ", ".join(item.name for item in running) or "none"
            raise InputError(
                f"no virtual cluster named; these are up: {names}", hint="name it: --on virtual --hosts NAME"
            )
        return chosen[0].cluster
    if target.hosts:
        return named_hosts(target.hosts)
    return named_hosts(slurm_nodes() if target.on.startswith("slurm") else ["localhost"])


def slurm_nodes() -> list[str]:
    """Nodes of this allocation; outside of one, nodes of the Slurm cluster that accept jobs now."""
    allocated = os.environ.get("SLURM_JOB_NODELIST")
    if allocated:
        return _slurm("scontrol", "show", "hostnames", allocated).split()
    rows = [line.split()[:2] for line in _slurm("sinfo", "--noheader", "--Node", "--format=%N %t").splitlines() if line]
    usable = ("idle", "mix", "alloc", "comp")
    names = list(dict.fromkeys(name for name, status in rows if status.startswith(usable)))
    if not names:
        there = ", ".join(" ".join(row) for row in rows) or "none"
        raise LaunchFailed(f"no Slurm node accepts a job now; the nodes are: {there}", hint="`sinfo -R` says why")
    return names


def _slurm(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError:
        raise Unsupported("Slurm is not installed here", hint="run on a login node of the cluster") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()[-300:]
        raise LaunchFailed(f"Slurm does not answer: {words}", hint="is slurmctld up, and SLURM_CONF right?")
    return done.stdout


def cluster_text(survey: Survey, *, name: str, how: str) -> str:
    """TOML that `paceline run` and `paceline predict` can read."""
    parts = [
        f"# Found by `paceline cluster inspect`; comments say how sure each figure is.\nname = {json.dumps(name)}",
        f"source = {json.dumps(how)}",
    ]
    parts += [_host(survey, index) for index in range(len(survey.hosts))]
    return "\n".join(parts) + "\n"


def _host(survey: Survey, index: int) -> str:
    host = survey.hosts[index]
    offset, error = survey.clock_offsets_s[index] if index < len(survey.clock_offsets_s) else (0.0, 0.0)
    stated = host["stated_bits_per_s"]
    lines = [
        "\n[[host]]",
        f"name = {json.dumps(host['host'])}",
        f"address = {json.dumps(host['address'])}",
        f"cores = {host['cores']}  # {_machine(host)}",
        f"devices = [{', '.join(_devices(host))}]",
        'inside = "loopback"',
        _link_line([link for link in survey.links if link.source == host["host"]], stated),
        f"# clock: {1e6 * offset:+.1f} us from the first host's, +- {1e6 * error:.1f} us",
    ]
    return "\n".join(lines)


def _machine(host: dict[str, Any]) -> str:
    return f"{host['cpu']}, {host['numa_nodes']} NUMA node(s), {BYTES.format(host['memory_bytes'])}"


def _devices(host: dict[str, Any]) -> list[str]:
    if not host["gpus"]:
        return ['"host-cpu"']
    return [
        f'{{ name = {json.dumps(gpu["name"])}, kind = "gpu", memory = "{BYTES.exact(gpu["memory_bytes"])}" }}'
        for gpu in host["gpus"]
    ]


def _link_line(links: list[MeasuredLink], stated: float | None) -> str:
    """The host's link: the median over its peers, and the spread of all samples."""
    if not links:
        return f'link = {{ name = "none", bandwidth = "{LONELY_BANDWIDTH}" }}  # one host: no link was measured'
    bandwidth = statistics.median(link.bandwidth for link in links)
    latency = statistics.median(link.latency for link in links)
    low, high = min(link.bandwidth_spread[0] for link in links), max(link.bandwidth_spread[1] for link in links)
    short, long = min(link.latency_spread[0] for link in links), max(link.latency_spread[1] for link in links)
    sure = (
        f"{BANDWIDTH.format(low)} to {BANDWIDTH.format(high)}, {SECONDS.format(short)} to {SECONDS.format(long)}, "
        f"{len(links)} peers" + (f"; the interface states {stated / 1e9:g} Gb/s" if stated else "")
    )
    figures = f'bandwidth = "{bandwidth / 1e6:.6g} MB/s", latency = "{latency * 1e6:.6g} us"'
    return f'link = {{ name = "measured", {figures} }}  # {sure}'
