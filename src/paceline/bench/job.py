"""The context of a launch, and the adapter interface that derives its processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from paceline import variables
from paceline.bench.sites.site import Process, Rendezvous
from paceline.spec.cluster import Placed
from paceline.spec.study import Case

__all__ = [
    "Adapter",
    "CaseLaunch",
    "LaunchSpec",
    "is_crowded",
    "rank_processes",
    "shared_env",
]


@dataclass(frozen=True, kw_only=True)
class LaunchSpec:
    """The parameters of the processes of one launch: hosts, folder, interpreter, rendezvous."""

    placement: tuple[Placed, ...]
    """Placement of each rank."""
    folder: Path
    python: Path
    worker_path: Path
    """Directory for the PYTHONPATH of workers, with `paceline` only."""
    rendezvous: Rendezvous
    token: str
    threads: int
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables of the framework's environment."""
    one_machine: bool = False
    """Whether this machine emulates all hosts, so that all ranks share its cores."""

    @property
    def job_path(self) -> Path:
        """The job's file."""
        return self.folder / "job.json"

    def events_path(self, rank: int) -> Path:
        """The rank's event file."""
        return self.folder / f"rank-{rank}.jsonl"


@dataclass(frozen=True, kw_only=True)
class CaseLaunch(LaunchSpec):
    """One launch of a case."""

    case: Case


class Adapter(Protocol):
    """The interface of a framework: supported cases, and the processes of a launch."""

    name: str
    """Name of the framework in the catalog."""

    def environment(self, mode: str) -> str:
        """Name of the isolated environment that a mode needs."""
        ...

    def refusal(self, case: Case) -> str | None:
        """Why this case cannot be measured in this framework; None if it can."""
        ...

    def processes(self, launch: CaseLaunch) -> list[Process]:
        """The processes of one launch."""
        ...


def rank_processes(
    spec: LaunchSpec, module: str, env_of: Callable[[Placed], dict[str, str]] = lambda placed: {}
) -> list[Process]:
    """One process per rank that runs a worker module, with the variables that every framework shares."""
    return [
        Process(
            name=f"rank {placed.rank}",
            rank=placed.rank,
            host=placed.host,
            argv=(str(spec.python), "-m", module),
            env={**shared_env(spec, placed), **spec.env, **env_of(placed)},
            log=spec.folder / f"rank-{placed.rank}.log",
        )
        for placed in spec.placement
    ]


def shared_env(spec: LaunchSpec, placed: Placed) -> dict[str, str]:
    """Environment variables of one rank: rank, threads, cores, rendezvous and output files."""
    threads = str(spec.threads)
    rendezvous = spec.rendezvous
    env = {
        "PYTHONPATH": str(spec.worker_path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        variables.JOB: str(spec.job_path),
        variables.RANK: str(placed.rank),
        variables.EVENTS: str(spec.events_path(placed.rank)),
        variables.RENDEZVOUS: f"{rendezvous.address}:{rendezvous.ports[0]}",
        variables.TOKEN: spec.token,
        variables.CORES: _cores(spec, placed),
        "RANK": str(placed.rank),
        "LOCAL_RANK": str(placed.local_rank),
        "WORLD_SIZE": str(len(spec.placement)),
        "MASTER_ADDR": rendezvous.address,
        "MASTER_PORT": str(rendezvous.ports[1]),
    }
    env.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads))
    if is_crowded(spec.placement, placed, spec.threads, one_machine=spec.one_machine):
        env["OMP_WAIT_POLICY"] = "passive"  # a thread that waits leaves its core to other ranks
    if rendezvous.interface:
        env.update(
            dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), rendezvous.interface)
        )
    return env


def is_crowded(placement: Sequence[Placed], placed: Placed, threads: int, *, one_machine: bool) -> bool:
    """Whether the ranks that share cores with this rank have more threads than this machine has cores."""
    mates = sum(1 for other in placement if one_machine or other.host == placed.host)
    return mates * threads > len(os.sched_getaffinity(0))


def _cores(spec: LaunchSpec, placed: Placed) -> str:
    """Cores of a rank, disjoint from those of other ranks; empty if there are too few cores."""
    usable = sorted(os.sched_getaffinity(0))
    mates = [other for other in spec.placement if spec.one_machine or other.host == placed.host]
    position = mates.index(placed)
    if (
        placed.device.emulation is not None
        or placed.device.quota < 1
        or is_crowded(spec.placement, placed, spec.threads, one_machine=spec.one_machine)
    ):
        return ""
    return ",".join(str(core) for core in usable[position * spec.threads : (position + 1) * spec.threads])
