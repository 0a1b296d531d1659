"""Supervision of a job's processes: their output, restarts, and the result of the job."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paceline import variables
from paceline.bench.sites.site import Process, Site
from paceline.runtime.samples import REACHED
from paceline.runtime.syncer.journal import DAMAGED, SHARD_RESTARTS

__all__ = ["JobResult", "follow_ranks"]

POLL_S = 0.1
"""Seconds between two looks at processes and their logs: the delay of a restart, and of a printed line."""
LONGEST_LINE = 1 << 16
"""Bytes of a line beyond which its beginning is shown before its end is there."""
_REACHED = re.compile(re.sub(r"\\{\w+:\\.2f\\}", r"(\\d+\\.\\d+)", re.escape(REACHED)).replace(r"\{steps\}", r"\d+"))


@dataclass(frozen=True)
class JobResult:
    """How a job ended."""

    codes: dict[str, int]
    """Last exit code of each rank."""
    restarts: int
    reached: float | None = None
    """Measured samples per second of all groups together; only for trainings by a plan."""
    reached_90: tuple[float, float] | None = None
    """90 % interval of `reached`."""

    @property
    def ok(self) -> bool:
        """Whether training finished: at least one rank exited with 0, and none failed with an error of its own."""
        return any(code == 0 for code in self.codes.values()) and all(code <= 0 for code in self.codes.values())


def follow_ranks(site: Site, processes: Sequence[Process], *, restarts: int = 0) -> Iterator[str | JobResult]:
    """Start the ranks and yield their output line by line; the last value is the result of the job.

    A rank that is killed is restarted while restarts are left; it joins the running group.
    """
    together = site.start(processes)
    launches = {process.name: together for process in processes}
    followed = {process.name: _Tail(process.log) for process in processes}
    used = 0
    revived = dict.fromkeys((process.name for process in processes if process.rank is None), 0)
    reported: set[str] = set()
    reached: dict[str, list[float]] = {}
    while True:
        codes = {name: launch.poll()[name] for name, launch in launches.items()}
        training = any(codes[process.name] is None for process in processes if process.rank is not None)
        for process in processes:
            lines = followed[process.name].lines(last=codes[process.name] is not None)
            yield from (f"[{process.name}] {line}" for line in lines)
            reached.update(
                (process.name, [float(number) for number in found.groups()])
                for line in lines
                if (found := _REACHED.search(line))
            )
            allowed = used < restarts if process.rank is not None else revived[process.name] < SHARD_RESTARTS
            if training and _comes_back(process, codes[process.name], allowed):
                if process.rank is None:
                    revived[process.name] += 1
                used += process.rank is not None
                yield f"[{process.name}] ended with {codes[process.name]}; started again"
                launches[process.name] = site.start([_late(process)])
                codes[process.name] = None
            elif codes[process.name] and process.name not in reported:
                reported.add(process.name)
                yield f"[{process.name}] {_ending(process, codes[process.name] or 0, training=training)}"
        if not training:
            codes_of_ranks = {
                p.name: code for p in processes if p.rank is not None and (code := codes[p.name]) is not None
            }
            yield JobResult(codes_of_ranks, used, *_together(list(reached.values())))
            return
        time.sleep(POLL_S)


def _together(groups: list[list[float]]) -> tuple[float | None, tuple[float, float] | None]:
    """Throughput and interval of all groups together; the groups vary independently."""
    if not groups:
        return None, None
    rate = sum(group[0] for group in groups)
    below = math.hypot(*(middle - low for middle, low, _ in groups))
    above = math.hypot(*(high - middle for middle, _, high in groups))
    return rate, (rate - below, rate + above)


def _ending(process: Process, code: int, *, training: bool) -> str:
    """Describes how a process ended that is not restarted."""
    names = {int(known): known.name for known in signal.Signals}
    how = f"was killed by {names.get(-code, f'signal {-code}')}" if code < 0 else f"failed with exit code {code}"
    return f"{how}; training continues without it" if training and process.rank is not None else how


def _comes_back(process: Process, code: int | None, allowed: bool) -> bool:
    """Restart a shard unless its journal is damaged, a rank if it was killed, while restarts are left."""
    if code is None or not allowed:
        return False
    return code != DAMAGED if process.rank is None else code < 0


def _late(process: Process) -> Process:
    """The process of a restarted rank, which finds the others by the roster."""
    return replace(process, env={**process.env, variables.LATE: "1"})


class _Tail:
    """The new whole lines of a growing file; every byte is read once, also of a line that never ends."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, b""

    def lines(self, *, last: bool = False) -> list[str]:
        """The lines since the call before; with `last`, also one that has no end."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset, os.SEEK_SET)
            data = file.read()
        self._offset += len(data)
        data = self._rest + data
        # A progress bar returns to the begin of its line and never ends it.
        end = len(data) if last or len(data) > LONGEST_LINE else max(data.rfind(b"\n"), data[:-1].rfind(b"\r")) + 1
        self._rest = data[end:]
        return data[:end].decode("utf-8", errors="replace").splitlines()
