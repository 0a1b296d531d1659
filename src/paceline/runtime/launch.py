"""Launch of a training script on the devices of a cluster, with restarts of failed ranks.

A job has a folder for its secret's lifetime: logs of all ranks, and the roster in which late joiners find the members.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline import variables
from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.bench.sites.site import Process, Rendezvous, Site
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.errors import InputError
from paceline.model.plan.file import PlanFile
from paceline.runtime.syncer.journal import DAMAGED, SHARD_RESTARTS
from paceline.spec.cluster import Cluster, Placed, place

__all__ = [
    "Grouping",
    "JobResult",
    "TrainingJob",
    "TrainingRequest",
    "check_imports",
    "follow_ranks",
    "num_ports",
    "processes_of",
    "reduced",
    "run_training",
]

POLL_S = 0.1
"""Seconds between two looks at processes and their logs: the delay of a restart, and of a printed line."""


@dataclass(frozen=True)
class Grouping:
    """Groups that exchange through a syncer with one shard beside the first rank of each group."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks of each group."""
    samples: tuple[int, ...]
    """Of a step of each group."""
    local_steps: int
    quorum: int


@dataclass(frozen=True)
class TrainingRequest:
    """What a user asks to be trained."""

    script: Path
    arguments: tuple[str, ...]
    cluster: Cluster
    ranks: int
    """Processes, one per device; without meaning if there is a plan."""
    plan: PlanFile | None = None
    restarts: int = 0
    """How often killed ranks are started again."""
    threads: int = 1
    python: Path | None = None
    """Interpreter of the ranks; by default this one if it has torch, else that of the pytorch environment."""

    @property
    def chosen(self) -> tuple[int, ...]:
        """The devices that take part; those that a plan leaves out are not started."""
        if self.plan is None:
            return tuple(range(self.ranks))
        return tuple(sorted(member.rank for group in self.plan.group for member in group.members))

    @property
    def grouping(self) -> Grouping | None:
        """The groups of the plan, by the numbers of the ranks that take part."""
        if self.plan is None or len(self.plan.group) == 1:
            return None
        order, groups = self.chosen, self.plan.group
        return Grouping(
            groups=tuple(tuple(order.index(member.rank) for member in group.members) for group in groups),
            samples=tuple(sum(member.samples for member in group.members) for group in groups),
            local_steps=self.plan.local_steps,
            quorum=self.plan.quorum,
        )


@dataclass(frozen=True)
class TrainingJob:
    """One script to be run by all ranks."""

    script: Path
    arguments: tuple[str, ...]
    python: Path
    folder: Path
    placement: tuple[Placed, ...]
    rendezvous: Rendezvous
    """With as many free ports as `num_ports` says."""
    threads: int = 1
    path: Path | None = None
    """Directory to import Paceline from, where the interpreter does not have it installed."""
    grouping: Grouping | None = None
    """None: all ranks are one group."""
    secret: str = field(default_factory=lambda: secrets.token_hex(32))


@dataclass(frozen=True)
class JobResult:
    """How a job ended."""

    codes: dict[str, int]
    """Last exit code of each rank."""
    restarts: int

    @property
    def ok(self) -> bool:
        """Whether training finished: at least one rank finished, and none ended with an error of its own."""
        return any(code == 0 for code in self.codes.values()) and all(code <= 0 for code in self.codes.values())


def run_training(request: TrainingRequest, target: LaunchTarget, show: Callable[[str], None]) -> JobResult:
    """Run a script on the devices that take part, and show what its ranks print."""
    cluster, chosen, grouping = request.cluster, request.chosen, request.grouping
    if max(chosen) >= cluster.num_devices:
        raise InputError(
            f"rank {max(chosen)} is asked for, cluster {cluster.name!r} has {cluster.num_devices} devices",
            hint="ask for fewer ranks, or name the cluster that the plan was made for",
        )
    used = reduced(cluster, chosen)
    # Training runs in real time unless it is asked for otherwise.
    if target.on == "virtual" and target.dilation is None:
        target = replace(target, dilation=1.0)
    with (
        tempfile.TemporaryDirectory(prefix="paceline-train-") as folder,
        make_launcher(target) as launcher,
        launcher.open(used, used.num_devices, num_ports=num_ports(grouping)) as site,
    ):
        python, path = _interpreter(request, show)
        if target.on in ("local", "virtual"):
            check_imports(request.script, python)
        job = TrainingJob(
            script=request.script,
            arguments=request.arguments,
            python=python,
            folder=Path(folder),
            placement=place(used, used.num_devices),
            rendezvous=site.rendezvous,
            threads=request.threads,
            path=path,
            grouping=grouping,
        )
        # Agents on hosts see by this file whether they share this folder.
        (job.folder / "job.json").write_text("{}", encoding="utf-8")
        for line in follow_ranks(site, processes_of(job), restarts=request.restarts):
            if isinstance(line, JobResult):
                return line
            show(line)
    raise AssertionError("a watched job always ends")


def _interpreter(request: TrainingRequest, show: Callable[[str], None]) -> tuple[Path, Path | None]:
    """The interpreter of the ranks, and where it finds Paceline if it is not installed there."""
    if request.python is not None:
        if not os.access(request.python, os.X_OK):
            raise InputError(f"{request.python} is not an interpreter", hint="--python PATH, such as env/bin/python")
        return request.python.absolute(), worker_path()
    if importlib.util.find_spec("torch") is not None:
        return Path(sys.executable), None
    return environment_python(prepare("pytorch", show)), worker_path()


DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow", "cv2": "opencv-python", "yaml": "pyyaml"}
"""Names under which pip knows packages that are imported by another name."""
FIND = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"


def check_imports(script: Path, python: Path) -> None:
    """Refuse a script whose imports its interpreter does not have, and say what installs them."""
    names = sorted(_imports(script) - set(sys.stdlib_module_names) - {"paceline"})
    if not names:
        return
    env = {**os.environ, "PYTHONPATH": str(script.resolve().parent)}
    found = subprocess.run([str(python), "-c", FIND, *names], capture_output=True, text=True, env=env, check=False)
    missing = found.stdout.split() if found.returncode == 0 else []
    if missing:
        packages = " ".join(DISTRIBUTIONS.get(name, name) for name in missing)
        raise InputError(
            f"{script} imports {', '.join(missing)}, which {python} does not have",
            hint=f"{python} -m pip install {packages}; or --python PATH of an interpreter that has them, and torch",
        )


def _imports(script: Path) -> set[str]:
    """Packages that the script imports when it begins; none if it cannot be read, which its ranks will say."""
    try:
        tree = ast.parse(script.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return set()
    names = {alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in tree.body if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.split(".")[0] for name in names}


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
    """One process per shard; what it commits is kept in the job's folder, so that it can be started again."""
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
    """Each shard is on the host of its group's first rank, so that no single host is a hot spot."""
    host = job.placement[grouping.groups[index][0]].host
    return job.rendezvous.address_of(host), job.rendezvous.ports[1 + len(grouping.groups) + index]


def _path(job: TrainingJob) -> dict[str, str]:
    return {"PYTHONPATH": str(job.path)} if job.path is not None else {}


def _waiting(job: TrainingJob, placed: Placed) -> dict[str, str]:
    """Ranks with more threads than their host has cores leave cores to each other while they wait."""
    mates = sum(1 for other in job.placement if other.host == placed.host)
    crowded = mates * job.threads > len(os.sched_getaffinity(0))
    return {"OMP_WAIT_POLICY": "passive"} if crowded else {}


def _group_env(job: TrainingJob, grouping: Grouping, rank: int) -> dict[str, str]:
    """Variables of a rank of one of several groups, in place of the whole job's."""
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
    env |= _path(job)
    if job.grouping is not None:
        env |= _group_env(job, job.grouping, placed.rank)
    if placed.device.emulation is not None:
        emulation = placed.device.emulation.model_dump(mode="json")
        emulation["speed"] /= job.rendezvous.dilation
        env[variables.EMULATION] = json.dumps(emulation)
    return env


def reduced(cluster: Cluster, chosen: Sequence[int]) -> Cluster:
    """The cluster with just the devices that take part; its hosts keep their numbers."""
    wanted = {(placed.host, placed.local_rank) for placed in place(cluster, max(chosen) + 1) if placed.rank in chosen}
    hosts = [
        host.model_copy(
            update={"devices": tuple(device for n, device in enumerate(host.devices) if (index, n) in wanted)}
        )
        for index, host in enumerate(cluster.hosts)
    ]
    return cluster.model_copy(update={"hosts": tuple(hosts)})


def num_ports(grouping: Grouping | None) -> int:
    """Ports that a job needs: one for rank 0, then one for each group's first rank, then one for each shard."""
    return 1 + (2 * len(grouping.groups) if grouping is not None else 0)


def follow_ranks(site: Site, processes: Sequence[Process], *, restarts: int = 0) -> Iterator[str | JobResult]:
    """Start the ranks and yield their lines as they come; the last value says how the job ended.

    A rank that is killed is started again while restarts are left; it joins the others where they are.
    """
    together = site.start(processes)
    launches = {process.name: together for process in processes}
    followed = {process.name: _Tail(process.log) for process in processes}
    used = 0
    revived = dict.fromkeys((process.name for process in processes if process.rank is None), 0)
    while True:
        codes = {name: launch.poll()[name] for name, launch in launches.items()}
        training = any(codes[process.name] is None for process in processes if process.rank is not None)
        for process in processes:
            yield from (f"[{process.name}] {line}" for line in followed[process.name].lines())
            allowed = used < restarts if process.rank is not None else revived[process.name] < SHARD_RESTARTS
            if training and _comes_back(process, codes[process.name], allowed):
                if process.rank is None:
                    revived[process.name] += 1
                used += process.rank is not None
                yield f"[{process.name}] ended with {codes[process.name]}; started again"
                launches[process.name] = site.start([_late(process)])
                codes[process.name] = None
        if not training:
            codes_of_ranks = {
                p.name: code for p in processes if p.rank is not None and (code := codes[p.name]) is not None
            }
            yield JobResult(codes_of_ranks, used)
            return
        time.sleep(POLL_S)


def _comes_back(process: Process, code: int | None, allowed: bool) -> bool:
    """Restart a shard unless its journal is damaged, a rank if it was killed, while restarts are left."""
    if code is None or not allowed:
        return False
    return code != DAMAGED if process.rank is None else code < 0


def _late(process: Process) -> Process:
    """A restarted rank, which finds the others by the roster."""
    return replace(process, env={**process.env, variables.LATE: "1"})


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
