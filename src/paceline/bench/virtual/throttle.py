"""Throttled real devices: a share of a processor, by control group or by duty cycle.

A quota of 0.5 lets a rank run half of each period. The control group is version 1 (`cpu.cfs_quota_us`) or 2
(`cpu.max`), whichever the kernel offers with a cpu controller; real-time ranks are not bound by either.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["duty_cycle", "group_for", "join_group", "remove_groups"]

PERIOD_US = 10_000
DUTY_PERIOD_S = 0.02
REMOVAL_S = 5.0
_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "paceline-"


def _controller() -> Path | None:
    """The control-group directory for CPU quotas, if any."""
    if (_ROOT / "cpu" / "cpu.cfs_quota_us").exists() or (_ROOT / "cpu" / "cpu.shares").exists():
        return _ROOT / "cpu"
    controllers = _ROOT / "cgroup.subtree_control"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        return _ROOT
    return None


def group_for(instance: str, label: str, *, share: float) -> Path | None:
    """A control group that limits its processes to a share of a core; None without control groups."""
    controller = _controller()
    if controller is None:
        return None
    group = controller / f"{_PREFIX}{instance}" / label
    try:
        group.mkdir(parents=True, exist_ok=True)
        _limit(group, quota_us=max(1000, round(PERIOD_US * share)))
    except OSError:
        return None
    return group


def _limit(group: Path, *, quota_us: int) -> None:
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        return
    (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
    (group / "cpu.cfs_quota_us").write_text(str(quota_us))


def join_group(group: Path, command: Sequence[str]) -> list[str]:
    """The command, started inside the group."""
    script = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    return ["/bin/sh", "-c", script, "sh", *command]


def remove_groups(instance: str) -> None:
    """Remove the groups of one instance; a group outlives its last process by a moment."""
    controller = _controller()
    top = controller / f"{_PREFIX}{instance}" if controller else None
    if top is None or not top.exists():
        return
    deadline = time.monotonic() + REMOVAL_S
    for group in [*(path for path in top.iterdir() if path.is_dir()), top]:
        while not _removed(group) and time.monotonic() < deadline:
            time.sleep(0.02)


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def duty_cycle(pid: int, *, share: float) -> None:
    """Let a process run for a share of each period until it ends, for machines without control groups."""
    ended = os.pidfd_open(pid)
    try:
        while not select.select([ended], [], [], DUTY_PERIOD_S * share)[0]:
            signal.pidfd_send_signal(ended, signal.SIGSTOP)
            time.sleep(DUTY_PERIOD_S * (1 - share))
            signal.pidfd_send_signal(ended, signal.SIGCONT)
    except ProcessLookupError:
        return
    finally:
        os.close(ended)


def main(share: str, *command: str) -> int:
    """Run a command with a duty cycle and exit with its exit code."""
    process = subprocess.Popen(command)
    duty_cycle(process.pid, share=float(share))
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
