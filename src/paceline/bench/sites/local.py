"""Processes on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline import variables
from paceline.bench.sites.site import Launch, Launcher, Process, Rendezvous, Site, SiteRequest
from paceline.errors import LaunchFailed

__all__ = ["LocalLauncher", "LocalSite", "Spawned", "free_ports", "inherited", "spawn"]

DROPPED_VARIABLES = (
    "PYTHON",
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "VIRTUAL_ENV",
    "RANK",
    "WORLD_SIZE",
    "MASTER_",
    "LOCAL_RANK",
)
"""Prefixes of variables that change imports or the number of threads; ranks do not inherit them."""
GRACE_S = 2.0
"""Seconds after SIGTERM before a process is killed."""


class LocalLauncher(Launcher):
    """Ranks as processes of this machine, connected over loopback."""

    name = "local"
    one_machine = True

    def _open(self, request: SiteRequest) -> Site:
        """A site with free ports on loopback."""
        return LocalSite(Rendezvous("127.0.0.1", free_ports(request.num_ports), "lo"))


class LocalSite(Site):
    """This machine."""

    def _start(self, processes: Sequence[Process]) -> Launch:
        parent = {variables.PARENT: str(os.getpid())}
        return spawn({p.name: (p.argv, {**inherited(), **p.env, **parent}, p.log) for p in processes})


Command = tuple[Sequence[str], dict[str, str], Path]
"""Command, complete environment, and output file."""


def spawn(commands: Mapping[str, Command], streams: Mapping[str, socket.socket] | None = None) -> Spawned:
    """Start commands by name, each in a separate session, so that it can be killed with all its children.

    A stream is standard input and output of the command with its name, whose log then gets the errors only.
    """
    started: dict[str, subprocess.Popen[bytes]] = {}
    launch = Spawned(started)
    try:
        for name, command in commands.items():
            started[name] = _popen(*command, (streams or {}).get(name))
    except OSError as error:
        launch.stop()
        raise LaunchFailed(f"cannot start {name}: {error}") from error
    return launch


def _popen(
    argv: Sequence[str], env: dict[str, str], path: Path, stream: socket.socket | None
) -> subprocess.Popen[bytes]:
    with path.open("ab") as log:
        return subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.DEVNULL if stream is None else stream.fileno(),
            stdout=log if stream is None else stream.fileno(),
            stderr=log,
            start_new_session=True,
            cwd=path.parent,
        )


def inherited() -> dict[str, str]:
    """The environment without variables that change imports or the number of threads."""
    return {name: value for name, value in os.environ.items() if not name.startswith(DROPPED_VARIABLES)}


class Spawned:
    """Processes of this machine that were started together."""

    def __init__(self, processes: dict[str, subprocess.Popen[bytes]]) -> None:
        self._processes = processes

    def poll(self) -> dict[str, int | None]:
        """Exit code by name."""
        return {name: process.poll() for name, process in self._processes.items()}

    def stop(self) -> None:
        """Send SIGTERM to all, then SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            deadline = time.monotonic() + GRACE_S
            while any(p.poll() is None for p in self._processes.values()) and time.monotonic() < deadline:
                time.sleep(0.02)
        for process in self._processes.values():
            process.wait()


def free_ports(count: int) -> tuple[int, ...]:
    """Currently free ports of loopback."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return tuple(item.getsockname()[1] for item in sockets)
