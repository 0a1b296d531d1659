"""Commands on a host of a virtual cluster, which are killed together with their parent process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from paceline.errors import LaunchFailed

__all__ = ["on_host", "on_network", "run_script"]


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
