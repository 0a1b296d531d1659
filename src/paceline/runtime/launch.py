"""Starts a training script on the devices of a cluster and stays until it is done; ranks that die may come back.

A job has a folder for its secret's lifetime: logs of all ranks, and the roster that tells late ranks where to ask.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.bench.job import Launch, Launcher, Process
from paceline.errors import InputError
from paceline.spec.cluster import Placed

__all__ = ["Ended", "TrainingJob", "processes_of", "watch"]

POLL_S = 0.1


@dataclass(frozen=True)
class TrainingJob:
    """One script to be run by all ranks."""

    script: Path
    arguments: tuple[str, ...]
    python: Path
    folder: Path
    placement: tuple[Placed, ...]
    meet: tuple[str, int]
    """Rank 0's address and a free port there."""
    threads: int = 1
    path: Path | None = None
    """Directory to import Paceline from, where the interpreter does not have it installed."""
    secret: str = field(default_factory=lambda: secrets.token_hex(32))


@dataclass(frozen=True)
class Ended:
    """How a job ended."""

    codes: dict[str, int]
    """Last exit code of each rank."""
    restarts: int

    @property
    def ok(self) -> bool:
        """Whether the training came to its end: somebody finished, and nobody stopped over an error of its own."""
        return any(code == 0 for code in self.codes.values()) and all(code <= 0 for code in self.codes.values())


def processes_of(job: TrainingJob) -> list[Process]:
    """One process per rank."""
    if not job.script.is_file():
        raise InputError(
            f"{job.script} is not a file", hint="give the training script, as in `paceline train train.py`"
        )
    return [
        Process(
            name=f"rank {placed.rank}",
            rank=placed.rank,
            host=placed.host,
            argv=(str(job.python), str(job.script.resolve()), *job.arguments),
            env=_env(job, placed),
            log=job.folder / f"rank-{placed.rank}.log",
        )
        for placed in job.placement
    ]


def _env(job: TrainingJob, placed: Placed) -> dict[str, str]:
    env = {
        "PYTHONUNBUFFERED": "1",
        "PACELINE_JOIN": f"{job.meet[0]}:{job.meet[1]}",
        "PACELINE_SECRET": job.secret,
        "PACELINE_ROSTER": str(job.folder / "roster.json"),
        "PACELINE_RANK": str(placed.rank),
        "PACELINE_SIZE": str(len(job.placement)),
        "LOCAL_RANK": str(placed.local_rank),
        "OMP_NUM_THREADS": str(job.threads),
    }
    if job.path is not None:
        env["PYTHONPATH"] = str(job.path)
    if placed.device.emulation is not None:
        env["PACELINE_EMULATION"] = json.dumps(placed.device.emulation.model_dump(mode="json"))
    return env


def watch(launcher: Launcher, processes: Sequence[Process], *, restarts: int = 0) -> Iterator[str | Ended]:
    """Start the ranks and tell their lines as they come; the last value says how it ended.

    A rank that is killed is started again while restarts are left; it joins the others where they are.
    """
    launches = {process.name: launcher.start([process]) for process in processes}
    followed = {process.name: _Tail(process.log) for process in processes}
    used = 0
    try:
        while True:
            codes = {name: launch.poll()[name] for name, launch in launches.items()}
            for process in processes:
                yield from (f"[{process.rank}] {line}" for line in followed[process.name].lines())
                killed = (codes[process.name] or 0) < 0
                if killed and used < restarts and any(code is None for code in codes.values()):
                    used += 1
                    yield f"[{process.rank}] ended by signal {-(codes[process.name] or 0)}; started again"
                    launches[process.name] = launcher.start([_late(process)])
                    codes[process.name] = None
            ended = {name: code for name, code in codes.items() if code is not None}
            if len(ended) == len(codes):
                yield Ended(ended, used)
                return
            time.sleep(POLL_S)
    finally:
        for launch in launches.values():
            _stop(launch)


def _late(process: Process) -> Process:
    """A rank that comes back finds the others by the roster."""
    return replace(process, env={**process.env, "PACELINE_LATE": "1"})


def _stop(launch: Launch) -> None:
    with contextlib.suppress(ProcessLookupError):
        launch.stop()


class _Tail:
    """The new whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def lines(self) -> list[str]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset, os.SEEK_SET)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()
