"""Starts the ranks of a benchmark on this machine and collects the JSON value that each prints last.

The ranks run under this interpreter if it has torch, else in the PyTorch environment that studies use as well.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any


def run(
    script: str,
    arguments: Sequence[str],
    size: int,
    *,
    timeout: float = 200.0,
    on: Callable[[int, list[str]], list[str]] = lambda rank, command: command,
    env: dict[str, str] | None = None,
    framework: str = "pytorch",
) -> list[Any]:
    """What each rank printed last; `on` says how a rank's command becomes one on its host."""
    base, command = {**environment(size, framework), **(env or {})}, [interpreter(framework), script, *arguments]
    processes = [
        subprocess.Popen(on(rank, command), env={**base, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{script} {' '.join(arguments)} failed")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


@functools.cache
def interpreter(framework: str = "pytorch") -> str:
    """A Python that has torch, and the framework."""
    if framework == "pytorch" and importlib.util.find_spec("torch") is not None:
        return sys.executable
    from paceline.bench.environments import environment_python, prepare

    return str(environment_python(prepare(framework, print)))


def _package(framework: str) -> dict[str, str]:
    """Where ranks of another interpreter find Paceline."""
    if interpreter(framework) == sys.executable:
        return {}
    from paceline.bench.environments import worker_path

    return {"PYTHONPATH": str(worker_path())}


def environment(size: int, framework: str = "pytorch") -> dict[str, str]:
    """Variables that any of the launchers would set, and one thread per rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size)}
    return {
        **os.environ,
        **_package(framework),
        **meet,
        "PACELINE_SECRET": secrets.token_hex(16),
        "OMP_NUM_THREADS": "1",
    }


def finish(value: Any) -> None:
    """Print a rank's result and end at once, whatever threads are left."""
    print(json.dumps(value), flush=True)
    os._exit(0)
