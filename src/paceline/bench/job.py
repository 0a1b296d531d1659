"""What a launch is asked to do, and the processes that do it: the data between campaign, adapters and launchers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from paceline.bench.generated_data import data_set
from paceline.bench.virtual.devices.emulation import emulation_document, least_tail
from paceline.spec.cluster import Device, Placed, place
from paceline.spec.network import plain_network
from paceline.spec.protocol import Protocol as MeasuringProtocol
from paceline.spec.study import Case

__all__ = [
    "Adapter",
    "Launch",
    "Launcher",
    "MeetingPoint",
    "Order",
    "Process",
    "job_document",
    "passes_of",
    "rank_processes",
    "threads_of",
]


@dataclass(frozen=True)
class MeetingPoint:
    """Where the ranks of one launch find each other: rank 0's address, free ports on its host, the interface."""

    address: str
    ports: tuple[int, ...]
    interface: str | None = None
    dilation: float = 1.0
    """Factor by which links and emulated compute are slowed there."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What is known about the place, stored with the run: links as measured, hosts, job numbers."""
    hosts: tuple[str, ...] = ()
    """Address of each host of the cluster; none where all are the same machine."""

    def address_of(self, host: int) -> str:
        """The address of one of the cluster's hosts."""
        return self.hosts[host] if self.hosts else self.address


@dataclass(frozen=True)
class Process:
    """One process of a launch, ready to be started on a host."""

    name: str
    """`rank 0`, `server 1`, ...; unique in the launch."""
    host: int
    """Index of its host in the cluster."""
    argv: tuple[str, ...]
    env: dict[str, str]
    log: Path
    rank: int | None = None
    """None for helpers, such as parameter servers, which end when the ranks are done."""


@dataclass(frozen=True)
class Order:
    """One launch to carry out: the case, its folder, the interpreter of its environment, and where ranks meet."""

    case: Case
    folder: Path
    python: Path
    worker_path: Path
    """The directory that makes `paceline` importable in the worker, and nothing else."""
    meet: MeetingPoint
    token: str
    threads: int
    env: dict[str, str] = field(default_factory=dict)
    """Variables that the framework's environment needs."""
    one_machine: bool = False
    """Whether this machine plays all hosts, so that all ranks share its cores."""

    @property
    def placement(self) -> tuple[Placed, ...]:
        """Where each rank goes."""
        return place(self.case.cluster, self.case.ranks, spread=self.case.placement == "spread")

    @property
    def job_path(self) -> Path:
        """The job's file."""
        return self.folder / "job.json"

    def events_path(self, rank: int) -> Path:
        """The rank's event file."""
        return self.folder / f"rank-{rank}.jsonl"


class Adapter(Protocol):
    """A framework as the bench sees it: how a case becomes processes, and what it refuses."""

    name: str
    """As in the catalog."""

    def environment(self, mode: str) -> str:
        """Name of the isolated environment that a mode needs."""
        ...

    def refusal(self, case: Case) -> str | None:
        """Why this case cannot be measured in this framework; None if it can."""
        ...

    def processes(self, order: Order) -> list[Process]:
        """The processes of one launch."""
        ...


class Launch(Protocol):
    """Processes that were started."""

    def poll(self) -> dict[str, int | None]:
        """Exit code of each process by name; None while it runs. A lost host is reported as -9."""
        ...

    def stop(self) -> None:
        """End whatever still runs, and everything it started."""
        ...


class Launcher(Protocol):
    """Starts processes on the hosts of a cluster."""

    name: str
    one_machine: bool
    """Whether all hosts are played by this machine, so that all ranks share its cores."""

    def meeting_point(self, case: Case) -> MeetingPoint:
        """Rank 0's address and free ports there."""
        ...

    def start(self, processes: Sequence[Process]) -> Launch:
        """Start them all."""
        ...

    def slow_down(self, case: Case) -> None:
        """The machine did not keep up with this case: dilate time more the next time, where that is possible."""
        ...

    def close(self) -> None:
        """Give back whatever is held from launch to launch."""
        ...


def threads_of(case: Case, cores: int, *, one_machine: bool = True) -> int:
    """Compute threads of each rank: what is asked, else an even share of the cores that its peers use too."""
    if case.threads is not None:
        return case.threads
    placed = place(case.cluster, case.ranks, spread=case.placement == "spread")
    busiest = (
        len(placed) if one_machine else max(sum(1 for other in placed if other.host == item.host) for item in placed)
    )
    return max(1, cores // busiest)


def passes_of(case: Case) -> list[str]:
    """The partial steps that split this case's step into phases, each adding one part to the one before."""
    exchange = ["exchange"] if case.ranks > 1 else []
    more = {"resident": [], "copied": ["copied"], "files": ["copied", "full"]}[case.input]
    return ["forward", "compute", *exchange, "resident", *more]


def job_document(order: Order, protocol: MeasuringProtocol) -> dict[str, Any]:
    """Everything a worker needs to know, as JSON data."""
    case = order.case
    framework, mode = case.framework.split("/")
    devices = [item.device for item in order.placement]
    return {
        "framework": framework,
        "mode": mode,
        "network": plain_network(case.network),
        "strategy": case.strategy.model_dump(mode="json"),
        "ranks": case.ranks,
        "batch": case.batch,
        "input": case.input,
        "threads": order.threads,
        "accelerator": "cuda" if all(device.kind == "gpu" and not device.emulation for device in devices) else "none",
        "devices": [device.model_dump(mode="json") for device in devices],
        "emulation": _emulation(devices, case) if any(device.emulation for device in devices) else None,
        "dilation": order.meet.dilation,
        "data": data_set(case.network) if case.input == "files" else None,
        "script": case.script.model_dump(mode="json") if case.script else None,
        "passes": passes_of(case),
        "phases": protocol.phases,
        "warmup": protocol.warmup,
        "steps": protocol.steps,
        "launch_budget": protocol.launch_budget,
        "phase_steps": protocol.phase_steps,
        "timeout": protocol.timeout,
        "seed": protocol.seed,
    }


def _emulation(devices: list[Device], case: Case) -> list[dict[str, Any]]:
    documents = zip(emulation_document(devices, case), devices, strict=True)
    return [{**document, "least_tail": least_tail(case, device)} for document, device in documents]


def rank_processes(
    order: Order, module: str, env_of: Callable[[Placed], dict[str, str]] = lambda placed: {}
) -> list[Process]:
    """One process per rank that runs a worker module, with the variables that every framework shares."""
    return [
        Process(
            name=f"rank {placed.rank}",
            rank=placed.rank,
            host=placed.host,
            argv=(str(order.python), "-m", module),
            env={**shared_env(order, placed), **order.env, **env_of(placed)},
            log=order.folder / f"rank-{placed.rank}.log",
        )
        for placed in order.placement
    ]


def shared_env(order: Order, placed: Placed) -> dict[str, str]:
    """Variables of one rank: its place among the ranks, its threads and cores, where to meet and to write."""
    threads = str(order.threads)
    meet = order.meet
    env = {
        "PYTHONPATH": str(order.worker_path),
        "PYTHONUNBUFFERED": "1",
        "PYTHONNOUSERSITE": "1",
        "PACELINE_JOB": str(order.job_path),
        "PACELINE_RANK": str(placed.rank),
        "PACELINE_EVENTS": str(order.events_path(placed.rank)),
        "PACELINE_MEET": f"{meet.address}:{meet.ports[0]}",
        "PACELINE_TOKEN": order.token,
        "PACELINE_CORES": _cores(order, placed),
        "RANK": str(placed.rank),
        "LOCAL_RANK": str(placed.local_rank),
        "WORLD_SIZE": str(order.case.ranks),
        "MASTER_ADDR": meet.address,
        "MASTER_PORT": str(meet.ports[1]),
    }
    env.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads))
    if meet.interface:
        env.update(dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), meet.interface))
    return env


def _cores(order: Order, placed: Placed) -> str:
    """Cores of a rank, so that ranks of a machine do not share any; empty where there are too few."""
    usable = sorted(os.sched_getaffinity(0))
    mates = [other for other in order.placement if order.one_machine or other.host == placed.host]
    position = mates.index(placed)
    emulated = placed.device.emulation is not None or placed.device.quota < 1
    if emulated or len(mates) * order.threads > len(usable):
        return ""
    return ",".join(str(core) for core in usable[position * order.threads : (position + 1) * order.threads])
