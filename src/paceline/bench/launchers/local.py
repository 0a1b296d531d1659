"""Processes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence

from paceline.bench.job import Launch, MeetingPoint, Process
from paceline.errors import LaunchFailed
from paceline.spec.study import Case

__all__ = ["LocalLauncher", "free_ports"]

NUM_PORTS = 4
GRACE_S = 2.0
"""How long a process may take to end by itself before it is killed."""


class LocalLauncher:
    """Ranks as processes of this machine, meeting over loopback."""

    name = "local"

    def meeting_point(self, case: Case) -> MeetingPoint:
        """Free ports on loopback: those that all frameworks use, and one for each rank."""
        return MeetingPoint("127.0.0.1", free_ports(NUM_PORTS + case.ranks), "lo")

    def start(self, processes: Sequence[Process]) -> Launch:
        """Start each in a session of its own, so that it can be ended with all its children."""
        started: dict[str, subprocess.Popen[bytes]] = {}
        launch = _LocalLaunch(started)
        try:
            for process in processes:
                started[process.name] = _popen(process)
        except OSError as error:
            launch.stop()
            raise LaunchFailed(f"cannot start {process.name}: {error}") from error
        return launch


def _popen(process: Process) -> subprocess.Popen[bytes]:
    env = {**_inherited(), **process.env, "PACELINE_PARENT": str(os.getpid())}
    with process.log.open("ab") as log:
        return subprocess.Popen(
            process.argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=process.log.parent,
        )


def _inherited() -> dict[str, str]:
    """The user's variables without those that would change what is imported or how many threads run."""
    dropped = ("PYTHON", "OMP_", "MKL_", "OPENBLAS_", "VIRTUAL_ENV", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_RANK")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


class _LocalLaunch:
    def __init__(self, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def poll(self) -> dict[str, int | None]:
        return {name: process.poll() for name, process in self._processes.items()}

    def stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + GRACE_S
            while any(p.poll() is None for p in self._processes.values()) and time.monotonic() < deadline:
                time.sleep(0.02)
        for process in self._processes.values():
            process.wait()


def free_ports(count: int, address: str = "127.0.0.1") -> tuple[int, ...]:
    """Ports that nobody listens on at this moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind((address, 0))
        return tuple(item.getsockname()[1] for item in sockets)
