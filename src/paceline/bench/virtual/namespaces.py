"""Namespaces of virtual hosts: the system calls that make them, which Python 3.11 does not offer, and commands inside.

Python 3.9 syntax, because measured processes import this module.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.errors import LaunchFailed

__all__ = [
    "mount",
    "on_host",
    "on_network",
    "run_script",
    "set_host_name",
    "set_parent_death_signal",
    "setns",
    "unshare",
]

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x4000000, 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: object) -> None:
    function: Callable[..., int] = getattr(_libc, name)
    if function(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leave the given kinds of namespace for new ones."""
    _call("unshare", flags)


def setns(descriptor: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _call("setns", descriptor, kind)


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, options: str = "") -> None:
    """Mount, with the kernel's own arguments."""
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def set_host_name(name: str) -> None:
    """Name this host, inside its UTS namespace."""
    _call("sethostname", name.encode(), len(name.encode()))


def set_parent_death_signal() -> None:
    """Let the kernel kill this process when its parent dies."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def on_host(pid: int, command: Sequence[str], *, directory: Path | None = None) -> list[str]:
    """The command, run on the host whose first process is `pid`: its processes, network, name and mounts."""
    where = [f"--wdns={directory}"] if directory else []
    return [
        *("setpriv", "--pdeathsig", "KILL", "--"),
        *("nsenter", f"--target={pid}", "--net", "--uts", "--mount", "--pid", *where, "--"),
        *("setpriv", "--pdeathsig", "KILL", "--", *command),
    ]


def on_network(pid: int, command: Sequence[str]) -> list[str]:
    """The command, run here but on the network of the host whose first process is `pid`."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *command]


def run_script(pid: int, tool: Sequence[str], lines: Sequence[str]) -> None:
    """Run a batch tool (`ip -batch -`) with these lines in the network of a host; an error raises."""
    if not lines:
        return
    done = subprocess.run(
        on_network(pid, tool), input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise LaunchFailed(
            f"{' '.join(tool)} on the network of process {pid} failed: {done.stderr.strip() or done.stdout.strip()}",
            hint="the kernel lacks a feature, or the host died; `paceline doctor` lists what the kernel offers",
        )
