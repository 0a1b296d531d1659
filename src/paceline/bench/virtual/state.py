"""State of running virtual clusters on disk: one directory each, owned by its holder process."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from paceline.bench.virtual.throttle import remove_groups
from paceline.errors import UnknownName

__all__ = ["Processes", "find", "forget", "is_alive", "listing", "read_processes", "state_directory", "sweep"]


@dataclass(frozen=True)
class Processes:
    """Pids of the processes of a cluster, in the outer namespace."""

    holder: int
    keeper: int
    hosts: dict[str, int]


def state_directory() -> Path:
    """The state directory of clusters: $XDG_STATE_HOME/paceline/clusters."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "paceline" / "clusters"


def read_processes(home: Path) -> Processes | None:
    """The processes of a cluster; None before it is complete and after it has ended."""
    try:
        data = json.loads((home / "processes.json").read_text())
    except FileNotFoundError:
        return None
    return Processes(holder=data["holder"], keeper=data["keeper"], hosts=data["hosts"])


def is_alive(home: Path) -> bool:
    """Whether the holder of this cluster runs, identified by the directory in its command line."""
    processes = read_processes(home)
    if processes is None:
        return False
    try:
        command = Path(f"/proc/{processes.holder}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return str(home).encode() in command


def listing() -> list[Path]:
    """Directories of the running, complete clusters by name."""
    root = state_directory()
    homes = sorted(root.iterdir()) if root.is_dir() else []
    return [home for home in homes if (home / "cluster.json").exists() and is_alive(home)]


def find(name: str) -> Path:
    """The directory of a running cluster."""
    for home in listing():
        if home.name == name:
            return home
    raise UnknownName("virtual cluster that is up", name, [home.name for home in listing()])


def sweep(*, older_than_s: float = 60.0) -> list[str]:
    """Remove control groups and state of clusters whose holder was killed; running clusters are not touched."""
    root = state_directory()
    gone = []
    for home in root.iterdir() if root.is_dir() else []:
        if is_alive(home) or (read_processes(home) is None and _is_young(home, older_than_s)):
            continue
        forget(home)
        gone.append(home.name)
    return gone


def forget(home: Path) -> None:
    """Remove the control groups and the state of a cluster whose processes are gone."""
    remove_groups(home.name)
    shutil.rmtree(home, ignore_errors=True)


def _is_young(home: Path, seconds: float) -> bool:
    """Whether a cluster may still be under construction."""
    return time.time() - home.stat().st_mtime < seconds
