"""Starts ranks that learn digits, on this machine or on the hosts of a virtual cluster, and collects what they saw."""

from __future__ import annotations

import json
import secrets
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lib import ranks
from lib.pythons import python_of
from paceline.bench.environments import worker_path
from paceline.bench.sites.local import free_ports
from paceline.bench.virtual.lifecycle import VirtualCluster
from paceline.bench.virtual.namespaces import on_network

HERE = Path(__file__).parent
Started = list[subprocess.Popen[str]]


class Place:
    """Where processes run: on the hosts of a virtual cluster, or all on this machine."""

    def __init__(self, up: VirtualCluster | None = None) -> None:
        self._up = up

    def address(self, host: int) -> str:
        """The address of a host."""
        return self._up.layout.seat(f"h{host}").address if self._up else "127.0.0.1"

    def start(self, host: int, argv: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
        """Start a process on a host."""
        where = on_network(self._up.pid_of(f"h{host}"), argv) if self._up else list(argv)
        interface = {"GLOO_SOCKET_IFNAME": "eth0"} if self._up else {}
        env = {**env, **interface, "PYTHONPATH": str(worker_path())}
        return subprocess.Popen(where, env=env, stdout=subprocess.PIPE, text=True)


def learn(place: Place, told: dict[str, Any], *, each: int, shards: int = 1) -> list[dict[str, Any]]:
    """One training run of `devices` ranks, `each` on a host or in a group; what every rank saw."""
    with tempfile.TemporaryDirectory() as name:
        told = {**told, "folder": name}
        argv = [python_of("digits"), str(HERE / "digits_worker.py"), json.dumps(told)]
        started: Started = []
        try:
            if told["way"] == "groups":
                started += _groups(place, argv, told, each=each, shards=shards)
            else:
                started += _one(place, argv, told, each=each)
            outputs = [process.communicate(timeout=240)[0] for process in started[-told["devices"] :]]
        finally:
            for process in started:
                process.kill()
                process.wait()
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def _one(place: Place, argv: list[str], told: dict[str, Any], *, each: int) -> Started:
    """All ranks together."""
    base = {**ranks.environment(told["devices"]), "MASTER_ADDR": place.address(0)}
    return [
        place.start(rank // each, argv, {**base, "RANK": str(rank), "PLACE": str(rank)})
        for rank in range(told["devices"])
    ]


def _groups(place: Place, argv: list[str], told: dict[str, Any], *, each: int, shards: int) -> Started:
    """Shards first, each on a host of its own, then the ranks of all groups."""
    secret, groups = secrets.token_hex(16), told["devices"] // each
    base = {**ranks.environment(each), "PACELINE_SECRET": secret, "PACELINE_SYNCER_SECRET": secret}
    ports = free_ports(shards + groups)
    started = []
    for index, port in enumerate(ports[:shards]):
        policy = {"index": index, "folder": told["folder"], "address": place.address(index), "port": port}
        policy |= {"groups": groups, "quorum": told["quorum"], "grace": told["grace"], "rule": {"name": told["rule"]}}
        policy["outer"] = told["outer"]
        path = Path(told["folder"]) / f"shard-{index}.json"
        path.write_text(json.dumps(policy))
        started.append(
            place.start(index, [python_of("digits"), "-m", "paceline.runtime.syncer.shard", str(path)], base)
        )
    places = ",".join(f"{place.address(index)}:{port}" for index, port in enumerate(ports[:shards]))
    base |= {"PACELINE_SYNCER": places, "PACELINE_GROUP_SHARE": str(1 / groups)}
    base |= {"PACELINE_LOCAL_STEPS": str(told["local_steps"])}
    for rank in range(told["devices"]):
        group = rank // each
        meet = {"PACELINE_JOIN": f"{place.address(group)}:{ports[shards + group]}", "PACELINE_GROUP": f"group{group}"}
        here = {"RANK": str(rank % each), "PLACE": str(rank)}
        started.append(place.start(group, argv, {**base, **meet, **here}))
    return started
