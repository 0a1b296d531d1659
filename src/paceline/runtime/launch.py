"""Launch of a training script on the devices of a cluster, with restarts of killed ranks.

A job has a folder while it runs. The folder has the logs of all ranks, and the roster with endpoints for late joiners.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline import variables
from paceline.bench.job import is_crowded
from paceline.bench.sites.site import Process, Rendezvous
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.cost.host import fair_threads
from paceline.errors import InputError
from paceline.model.plan.file import PlanFile
from paceline.runtime.job.following import JobResult, follow_ranks
from paceline.runtime.job.interpreter import check_imports, find_interpreter
from paceline.spec.cluster import Cluster, Placed, place

__all__ = [
    "Grouping",
    "TrainingJob",
    "TrainingRequest",
    "fair_share",
    "num_ports",
    "processes_of",
    "reduced",
    "run_training",
]


@dataclass(frozen=True)
class Grouping:
    """Groups that exchange through a syncer with one shard beside the first rank of each group."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks of each group."""
    samples: tuple[int, ...]
    """Samples in one step of each group."""
    local_steps: int
    quorum: int


@dataclass(frozen=True)
class TrainingRequest:
    """What the user asks to train, and how."""

    script: Path
    arguments: tuple[str, ...]
    cluster: Cluster
    ranks: int
    """Number of processes, one per device; ignored if there is a plan."""
    plan: PlanFile | None = None
    restarts: int = 0
    """Number of restarts of killed ranks."""
    threads: int | None = None
    """Compute threads of each rank; by default an even share of the cores of its host, as plans assume."""
    python: Path | None = None
    """Interpreter of the ranks; by default this one if it has torch, otherwise that of the pytorch environment."""
    environment: str | None = None
    """Environment of Paceline whose interpreter the ranks use; an alternative to `python`."""

    @property
    def chosen(self) -> tuple[int, ...]:
        """The devices that take part; devices that a plan leaves out get no process."""
        if self.plan is None:
            return tuple(range(self.ranks))
        return tuple(sorted(member.rank for group in self.plan.group for member in group.members))

    @property
    def grouping(self) -> Grouping | None:
        """The groups of the plan, numbered by the ranks that take part; None for one group."""
        if self.plan is None or len(self.plan.group) == 1:
            return None
        order, groups = self.chosen, self.plan.group
        return Grouping(
            groups=tuple(tuple(order.index(member.rank) for member in group.members) for group in groups),
            samples=tuple(sum(member.samples for member in group.members) for group in groups),
            local_steps=self.plan.local_steps,
            quorum=self.plan.quorum,
        )

    @property
    def split(self) -> tuple[int, ...] | None:
        """Samples of each rank that takes part, from the plan; None without a plan."""
        if self.plan is None:
            return None
        samples = {member.rank: member.samples for group in self.plan.group for member in group.members}
        return tuple(samples[rank] for rank in self.chosen)


@dataclass(frozen=True)
class TrainingJob:
    """One script that all ranks run."""

    script: Path
    arguments: tuple[str, ...]
    python: Path
    folder: Path
    placement: tuple[Placed, ...]
    rendezvous: Rendezvous
    """The rendezvous, with `num_ports` free ports."""
    threads: int = 1
    one_machine: bool = False
    """Whether this machine emulates all hosts, so that all ranks share its cores."""
    path: Path | None = None
    """Directory from which Paceline is imported if the interpreter does not have it installed."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables that the interpreter needs."""
    grouping: Grouping | None = None
    """Groups of the job; None if all ranks form one group."""
    split: tuple[int, ...] | None = None
    """Samples of each rank in a step, from the plan."""
    watched: bool = False
    """Whether `paceline watch` runs this job, whose hooks are first in PYTHONPATH."""
    secret: str = field(default_factory=lambda: secrets.token_hex(32))


def run_training(request: TrainingRequest, target: LaunchTarget, show: Callable[[str], None]) -> JobResult:
    """Run a script on the devices that take part, and show the output of its ranks."""
    cluster, chosen, grouping = request.cluster, request.chosen, request.grouping
    _check_devices(request)
    used = reduced(cluster, chosen)
    # Training runs in real time by default.
    if target.on == "virtual" and target.dilation is None:
        target = replace(target, dilation=1.0)
    with (
        tempfile.TemporaryDirectory(prefix="paceline-train-") as folder,
        make_launcher(target) as launcher,
        launcher.open(used, used.num_devices, num_ports=num_ports(grouping)) as site,
    ):
        interpreter = find_interpreter(request.python, request.environment, show)
        if target.on in ("local", "virtual"):
            check_imports(request.script, interpreter.python)
        job = TrainingJob(
            script=request.script,
            arguments=request.arguments,
            python=interpreter.python,
            folder=Path(folder),
            placement=place(used, used.num_devices),
            rendezvous=site.rendezvous,
            threads=request.threads or fair_share(used, one_machine=launcher.one_machine),
            one_machine=launcher.one_machine,
            path=interpreter.path,
            watched=target.on == "local" and variables.WATCH in os.environ,
            env=interpreter.env,
            grouping=grouping,
            split=request.split,
        )
        # Agents check with this file whether their host shares this folder.
        (job.folder / "job.json").write_text("{}", encoding="utf-8")
        for line in follow_ranks(site, processes_of(job), restarts=request.restarts):
            if isinstance(line, JobResult):
                return line
            show(line)
    raise AssertionError("a watched job always ends")


def fair_share(cluster: Cluster, *, one_machine: bool) -> int:
    """Threads of each rank: an even share of the cores, on the host with the fewest cores per rank."""
    here = len(os.sched_getaffinity(0))
    if one_machine:
        return fair_threads(here, cluster.num_devices)
    return min(fair_threads(host.cores or here, len(host.devices)) for host in cluster.hosts)


def _check_devices(request: TrainingRequest) -> None:
    """Refuse a plan for another cluster, and more ranks than the cluster has devices."""
    cluster, last = request.cluster, max(request.chosen)
    if request.plan is not None:
        _check_plan(request.plan, cluster)
    if last >= cluster.num_devices:
        raise InputError(
            f"rank {last} is asked for, cluster {cluster.name!r} has {cluster.num_devices} devices",
            hint="ask for fewer ranks, or name the cluster that the plan was made for",
        )


def _check_plan(plan: PlanFile, cluster: Cluster) -> None:
    """Refuse a plan that was made for another cluster."""
    hint = f"--cluster {plan.cluster} (or its file), or plan again: paceline plan --cluster {cluster.name} ..."
    if plan.cluster != cluster.name:
        raise InputError(f"the plan is for cluster {plan.cluster!r}, asked is {cluster.name!r}", hint=hint)
    devices = [placed.device.name for placed in place(cluster, cluster.num_devices)]
    for member in (member for group in plan.group for member in group.members):
        found = devices[member.rank] if member.rank < len(devices) else "no device"
        # The name of a measured CPU is followed by its rates.
        if member.device != found and not member.device.startswith(f"{found} ("):
            raise InputError(
                f"rank {member.rank} of the plan is {member.device!r}, in cluster {cluster.name!r} it is {found!r}",
                hint=hint,
            )


def processes_of(job: TrainingJob) -> list[Process]:
    """One process per rank."""
    if not job.script.is_file():
        raise InputError(
            f"{job.script} is not a file", hint="give the training script, as in `paceline train train.py`"
        )
    ranks = [
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
    return [*_shards(job, job.grouping), *ranks] if job.grouping is not None else ranks


def _shards(job: TrainingJob, grouping: Grouping) -> list[Process]:
    """One process per shard; its committed state is in the folder of the job, so that it can be restarted."""
    shards = []
    for index, group in enumerate(grouping.groups):
        settings = {
            "index": index,
            "folder": str(job.folder),
            "port": _shard_endpoint(job, grouping, index)[1],
            "groups": len(grouping.groups),
            "quorum": grouping.quorum,
        }
        path = job.folder / f"shard-{index}.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        env = {variables.SECRET: job.secret, "PYTHONUNBUFFERED": "1", **_path(job)}
        host = job.placement[group[0]].host
        address = _shard_endpoint(job, grouping, index)[0]
        argv = (str(job.python), "-m", "paceline.runtime.syncer.shard", str(path), address)
        shards.append(Process(f"shard {index}", host, argv, env, job.folder / f"shard-{index}.log"))
    return shards


def _shard_endpoint(job: TrainingJob, grouping: Grouping, index: int) -> tuple[str, int]:
    """Endpoint of a shard: on the host of the first rank of its group, so that no single host becomes a bottleneck."""
    host = job.placement[grouping.groups[index][0]].host
    return job.rendezvous.address_of(host), job.rendezvous.ports[1 + len(grouping.groups) + index]


def _path(job: TrainingJob) -> dict[str, str]:
    """Where ranks import Paceline from, and the hooks of `paceline watch` if it runs this job on this machine."""
    watched = os.environ.get("PYTHONPATH", "").split(os.pathsep)[:2] if job.watched else []
    paths = [*watched, *([str(job.path)] if job.path is not None else [])]
    return {"PYTHONPATH": os.pathsep.join(paths)} if paths else {}


def _waiting(job: TrainingJob, placed: Placed) -> dict[str, str]:
    """Variables that make waiting threads yield their core, if ranks have more threads than there are cores."""
    crowded = is_crowded(job.placement, placed, job.threads, one_machine=job.one_machine)
    return {"OMP_WAIT_POLICY": "passive"} if crowded else {}


def _group_env(job: TrainingJob, grouping: Grouping, rank: int) -> dict[str, str]:
    """Variables of a rank in one of several groups; they replace those of the whole job."""
    index = next(number for number, group in enumerate(grouping.groups) if rank in group)
    group = grouping.groups[index]
    shards = [_shard_endpoint(job, grouping, number) for number in range(len(grouping.groups))]
    first = job.rendezvous.address_of(job.placement[group[0]].host)
    return {
        variables.JOIN: f"{first}:{job.rendezvous.ports[1 + index]}",
        variables.ROSTER: str(job.folder / f"roster-{index}.json"),
        variables.RANK: str(group.index(rank)),
        variables.SIZE: str(len(group)),
        variables.GROUP: f"group{index}",
        variables.GROUP_SHARE: repr(grouping.samples[index] / sum(grouping.samples)),
        variables.LOCAL_STEPS: str(grouping.local_steps),
        variables.SYNCER: ",".join(f"{address}:{port}" for address, port in shards),
        variables.SYNCER_SECRET: job.secret,
    }


def _env(job: TrainingJob, placed: Placed) -> dict[str, str]:
    env = {
        "PYTHONUNBUFFERED": "1",
        variables.JOIN: f"{job.rendezvous.address}:{job.rendezvous.ports[0]}",
        variables.SECRET: job.secret,
        variables.ROSTER: str(job.folder / "roster.json"),
        variables.RANK: str(placed.rank),
        variables.SIZE: str(len(job.placement)),
        "LOCAL_RANK": str(placed.local_rank),
        "OMP_NUM_THREADS": str(job.threads),
        **_waiting(job, placed),
    }
    env |= _path(job) | job.env | _planned(job, placed.rank)
    if job.grouping is not None:
        env |= _group_env(job, job.grouping, placed.rank)
    if placed.device.emulation is not None:
        emulation = placed.device.emulation.model_dump(mode="json")
        emulation["speed"] /= job.rendezvous.dilation
        env[variables.EMULATION] = json.dumps(emulation)
    return env


def _planned(job: TrainingJob, rank: int) -> dict[str, str]:
    """Variables with the global batch of the plan, and the first split of the rank's group."""
    if job.split is None:
        return {}
    every = tuple(range(len(job.split)))
    groups = job.grouping.groups if job.grouping is not None else (every,)
    mine = next(group for group in groups if rank in group)
    return {
        variables.GLOBAL_BATCH: str(sum(job.split)),
        variables.SPLIT: ",".join(str(job.split[other]) for other in mine),
    }


def reduced(cluster: Cluster, chosen: Sequence[int]) -> Cluster:
    """The cluster with only the devices that take part; hosts keep their numbers."""
    wanted = {(placed.host, placed.local_rank) for placed in place(cluster, max(chosen) + 1) if placed.rank in chosen}
    hosts = [
        host.model_copy(
            update={"devices": tuple(device for n, device in enumerate(host.devices) if (index, n) in wanted)}
        )
        for index, host in enumerate(cluster.hosts)
    ]
    return cluster.model_copy(update={"hosts": tuple(hosts)})


def num_ports(grouping: Grouping | None) -> int:
    """Number of ports of a job: one for rank 0, one for the first rank of each group, and one for each shard."""
    return 1 + (2 * len(grouping.groups) if grouping is not None else 0)
