"""One host's part of a survey: reports its hardware and measures its link to every other host.

Standard library only, because it runs on hosts that have nothing else. Rank 0 writes the results of all hosts to its
events file.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import platform
import shutil
import socket
import subprocess
import threading
from typing import Any

from paceline import variables
from paceline.bench.frameworks.rendezvous import ControlChannel, join_job
from paceline.bench.virtual import probe

__all__ = ["describe_host", "main"]

SECONDS = 0.5
REPEATS = 3
TRIPS = 60


def describe_host(interface: str | None) -> dict[str, Any]:
    """The hardware of this host."""
    return {
        "host": socket.gethostname(),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _cpu_name(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "numa_nodes": len(glob.glob("/sys/devices/system/node/node[0-9]*")) or 1,
        "gpus": _gpus(),
        "interface": interface,
        "stated_bits_per_s": _stated_rate(interface),
        "kernel": platform.release(),
    }


def _cpu_name() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _gpus() -> list[dict[str, Any]]:
    """NVIDIA devices according to nvidia-smi, if installed."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if "," in line]
    return [{"name": name.strip(), "memory_bytes": int(float(memory) * 2**20)} for name, memory in rows]


def _stated_rate(interface: str | None) -> float | None:
    """Nominal rate of the interface; None for virtual interfaces."""
    with contextlib.suppress(OSError, ValueError), open(f"/sys/class/net/{interface}/speed", encoding="ascii") as file:
        speed = float(file.read())
        return speed * 1e6 if speed > 0 else None
    return None


def main() -> None:
    """Run this host's part of a survey."""
    with open(os.environ[variables.JOB], encoding="utf-8") as file:
        job = json.load(file)
    rank, ranks = int(os.environ[variables.RANK]), int(job["ranks"])
    channel = join_job(rank, ranks)
    own = describe_host(os.environ.get("GLOO_SOCKET_IFNAME"))
    address, port = os.environ[variables.RENDEZVOUS].rsplit(":", 1)
    own["address"] = address if rank == 0 else _own_address(address, int(port))
    hosts = channel.agree(channel.gather(own))
    offsets = channel.clock_offsets()
    links = _measure(channel, rank, hosts, int(os.environ["MASTER_PORT"]))
    if rank == 0:
        survey = {"event": "survey", "hosts": hosts, "links": links, "clock_offsets_s": offsets}
        with open(os.environ[variables.EVENTS], "a", encoding="utf-8") as events:
            events.write(json.dumps(survey) + "\n")
    channel.barrier()


def _own_address(peer: str, port: int) -> str:
    """The address by which this host reaches its peer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        way.connect((peer, port))
        return str(way.getsockname()[0])


def _measure(channel: ControlChannel, rank: int, hosts: list[dict[str, Any]], port: int) -> list[dict[str, Any]]:
    """Measure every ordered pair of hosts, one pair at a time."""
    server = probe.listen(hosts[rank]["address"], port)
    threading.Thread(target=probe.serve, args=(server,), daemon=True).start()
    channel.barrier()
    measured = []
    for source in range(len(hosts)):
        for target in range(len(hosts)):
            if source == rank != target:
                measured.append(_pair(source, target, hosts[target]["address"], port))
            channel.barrier()
    return [pair for pairs in channel.gather(measured) or [] for pair in pairs]


def _pair(source: int, target: int, address: str, port: int) -> dict[str, Any]:
    rates = [probe.rate(address, port, SECONDS) for _ in range(REPEATS)]
    trips = sorted(received - sent for sent, _, received in probe.exchanges(address, port, TRIPS))
    return {"source": source, "target": target, "bytes_per_s": rates, "round_trips_s": trips}


if __name__ == "__main__":
    main()
