"""The driver that runs in an interpreter with Ray: starts an agent on each requested node and waits for all.

python ray_driver.py REQUEST.json      {"address": ..., "hosts": [...], "agent": [...], "env": {...}}
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["main", "node_of", "run_agent"]


@ray.remote(num_cpus=0)  # type: ignore[untyped-decorator]
def run_agent(command: list[str], env: dict[str, str]) -> int:
    """One agent, from start to end."""
    return subprocess.run(command, env={**os.environ, **env}, check=False).returncode


def node_of(host: str, nodes: list[dict[str, Any]]) -> str:
    """The node of a host name or address."""
    address = socket.gethostbyname(host)
    for node in nodes:
        if node["Alive"] and host in (node["NodeManagerHostname"], node["NodeManagerAddress"]):
            return str(node["NodeID"])
        if node["Alive"] and address == node["NodeManagerAddress"]:
            return str(node["NodeID"])
    raise SystemExit(f"no live Ray node is {host!r}")


def main(path: str) -> int:
    """Start all agents and end when they have ended."""
    with open(path, encoding="utf-8") as file:
        request = json.load(file)
    ray.init(address=request["address"], log_to_driver=False)
    nodes = ray.nodes()
    alive = [node["NodeID"] for node in nodes if node["Alive"]]
    pending = []
    for number, host in enumerate(request["hosts"]):
        node = node_of(host, nodes) if host else alive[number % len(alive)]
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        task = run_agent.options(scheduling_strategy=where, max_retries=0)
        pending.append(task.remote(request["agent"], request["env"]))
    codes: list[int] = ray.get(pending)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
