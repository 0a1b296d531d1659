"""Jobs of real processes that suffer faults: on this machine, on a virtual cluster, in groups around a syncer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from lib import ranks
from lib.fault_worker import BATCH, SAMPLES
from paceline.bench.sites.local import free_ports
from paceline.bench.virtual.hosts.enter import on_network
from paceline.bench.virtual.lifecycle import bring_up, take_down
from paceline.spec.cluster import Cluster, Device, Host, Link

HERE = Path(__file__).parent
START = 180.0
"""Seconds that a busy machine may take to start all ranks."""
SILENCE = 1.0
"""Seconds after which a silent group is taken for dead; ranks of one group are told the same in fault_worker.py."""
HANG = 60.0
"""Seconds without the awaited step after which a job hangs."""
Record = dict[str, Any]


class Failed(Exception):
    """A fault was not survived as it should."""


class Process(Protocol):
    """What is asked of a process."""

    pid: int

    def kill(self) -> None:
        """SIGKILL."""
        ...

    def send_signal(self, number: int, /) -> None:
        """Any signal."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended."""
        ...


class Forked:
    """A process that somebody else started."""

    def __init__(self, number: int) -> None:
        self.pid = number
        self._file = os.pidfd_open(number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Any signal; one that is gone already hears nothing."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._file, number)

    def wait(self, timeout: float | None = None) -> int:
        """Until it has ended; its exit code is known to its parent only."""
        if not select.select([self._file], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a rank", timeout or 0.0)
        return 0


class Lines:
    """The lines that one rank has written so far, each read once."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset, self._rest = path, 0, ""
        self._known: list[Record] = []

    def all(self) -> list[Record]:
        """All whole lines; one that was cut off by a kill is left out."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
            self._offset += len(data)
            *whole, self._rest = (self._rest + data.decode()).split("\n")
            self._known += [json.loads(line) for line in whole if line.startswith("{") and line.endswith("}")]
        return self._known


class Job:
    """Ranks of one group and the lines they write."""

    samples, batch = SAMPLES, BATCH

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.folder, self.size = folder, size
        self.meet = f"127.0.0.1:{free_ports(1)[0]}"
        self._env = ranks.environment(size)
        self.processes: dict[str, Process] = {}
        self.names = [str(rank) for rank in range(size)]
        """Of all ranks that there ever were."""
        self.spared: set[str] = set()
        """Ranks to which nothing happens."""
        self._lines: dict[str, Lines] = {}
        self.stopped = float("inf")
        """When the ranks were told to end; they do so one after the other, so what they do then does not count."""

    def begin(self) -> None:
        """Start the ranks and wait until all step together."""
        for name in self.names:
            self.start(name)
        self.until(lambda record: record["size"] == self.size, since=0.0, timeout=START)

    def end(self) -> None:
        """Let the job stop by itself."""
        self.stopped = time.monotonic()
        (self.folder / "stop").touch()
        for name in self.names:
            if name in self.processes:
                self.processes[name].wait(60)
                if "ended" not in self.lines(name)[-1]:
                    raise Failed(f"rank {name} did not end by itself\n{self.log(name)[-3000:]}")

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes.values():
            process.kill()
            process.wait(30)

    def start(self, name: str, *, late: bool = False) -> float:
        """Start a rank; late ones join the others. When that was."""
        env = {**self._env, **self.environment(name), **({"PACELINE_LATE": "1"} if late else {})}
        self.processes[name] = self.spawn(name, env)
        return time.monotonic()

    def spawn(self, name: str, env: dict[str, str]) -> Process:
        """A new process of a rank."""
        argv = self.command(name, [ranks.interpreter(), str(HERE / "fault_worker.py"), str(self.folder)])
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(argv, env=env, stdout=log, stderr=log)

    def environment(self, name: str) -> dict[str, str]:
        """What a rank is told."""
        roster = str(self.folder / "roster.json")
        return {"PACELINE_JOIN": self.meet, "PACELINE_ROSTER": roster, "RANK": name, "WORKER": name}

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """How a rank is started."""
        return list(argv)

    def lines(self, name: str) -> list[Record]:
        """What a rank has written."""
        return self._lines.setdefault(name, Lines(self.folder / f"{name}.steps")).all()

    def steps(self, name: str) -> list[Record]:
        """The steps that a rank has committed."""
        return [record for record in self.lines(name) if "step" in record and record["at"] < self.stopped]

    def newest(self, name: str) -> list[Record]:
        """The last of them, if there is one."""
        return next(([record] for record in reversed(self.lines(name)) if "step" in record), [])

    def joined(self, name: str) -> float:
        """When a rank last called `join`."""
        return max(float(record["joins"]) for record in self.lines(name) if "joins" in record)

    def until(
        self,
        wanted: Callable[[Record], bool],
        *,
        since: float,
        without: Sequence[str] = (),
        only: Sequence[str] | None = None,
        timeout: float = HANG,
    ) -> Record:
        """The first record like that of a rank after a moment."""
        deadline = time.monotonic() + timeout
        watched = [name for name in (only or self.names) if name not in without]
        while time.monotonic() < deadline:
            found = [record for name in watched for record in self._after(name, since) if wanted(record)]
            if found:
                return min(found, key=lambda record: float(record["at"]))
            time.sleep(0.01)
        logs = "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.names)
        raise Failed(f"no such step within {timeout} s: the job hangs\n{logs}")

    def _after(self, name: str, since: float) -> list[Record]:
        """Steps after a moment."""
        found = []
        for record in reversed(self.lines(name)):
            if record.get("at", since + 1) <= since:
                break
            if "step" in record:
                found.append(record)
        return found

    def noticed(self, since: float, without: Sequence[str] = ()) -> float | None:
        """When the first of the others knew that the group had changed."""
        newest = [self.newest(name) for name in self.names if name not in without]
        moments = [at for records in newest for record in records for at in record["noticed"] if at > since]
        return min(moments, default=None)

    def log(self, name: str) -> str:
        """What a rank has said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def order(self, name: str) -> Path:
        """A file that tells ranks something while it is there."""
        return self.folder / name


class ForkedJob(Job):
    """Ranks that come from a nursery: whoever is killed is back as soon as it may be."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        super().__init__(folder, size)
        argv = [ranks.interpreter(), str(HERE / "fault_nursery.py")]
        pipe = subprocess.PIPE
        self._nursery = subprocess.Popen(argv, env=self._env, stdin=pipe, stdout=pipe, text=True)

    def spawn(self, name: str, env: dict[str, str]) -> Process:
        """A fork."""
        return self.ordered({"folder": str(self.folder), "env": env, "log": str(self.folder / f"{name}.log")})

    def ordered(self, order: dict[str, Any]) -> Process:
        """What the nursery makes of an order."""
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        self._nursery.stdin.write(json.dumps(order) + "\n")
        self._nursery.stdin.flush()
        return Forked(int(self._nursery.stdout.readline()))

    def close(self) -> None:
        """The nursery goes too."""
        super().close()
        self._nursery.communicate(timeout=30)


class VirtualJob(Job):
    """Each rank on a host of its own, joined by links that can be cut and delayed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.up = bring_up(_cluster(0.0, self.size), owner=os.getpid())
        self.meet = f"{self.up.layout.seats[0].address}:20000"

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """Started on the network of its host."""
        return on_network(self.up.pid_of(f"n{name}"), argv)

    def link(self, name: str, *, up: bool) -> None:
        """Drop everything on a host's link, or let it pass again."""
        for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
            argv = ["iptables", "--wait", "5", "-D" if up else "-I", chain, way, "eth0", "-j", "DROP"]
            subprocess.run(on_network(self.up.pid_of(f"n{name}"), argv), check=True, timeout=10, capture_output=True)

    def close(self) -> None:
        """The cluster goes too."""
        super().close()
        take_down(self.up.home)


def _cluster(latency: float, size: int) -> Cluster:
    way, inside = Link(name="way", bandwidth=1.25e8, latency=latency), Link(name="bus", bandwidth=1e11)
    hosts = [Host(name=f"n{rank}", devices=(Device(name="cpu"),), inside=inside, link=way) for rank in range(size)]
    return Cluster(name="faults", hosts=tuple(hosts))


def delayed(job: Job) -> Cluster:
    """The same cluster with a tenth of a second on the way between two hosts."""
    return _cluster(0.05, job.size)


class SyncerJob(ForkedJob):
    """Two groups of one rank that exchange through two shards, without waiting for each other."""

    quorum = 1

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = free_ports(2)
        self.names = ["a", "b"]
        self.secret = self._env["PACELINE_SECRET"]
        self._env.pop("MASTER_PORT")
        for index, port in enumerate(self.ports):
            settings = {"index": index, "folder": str(folder), "address": "127.0.0.1", "port": port}
            settings |= {"groups": 2, "quorum": self.quorum, "heartbeat_timeout": SILENCE}
            (folder / f"shard-{index}.json").write_text(json.dumps(settings))

    def begin(self) -> None:
        """Shards first."""
        for index in range(len(self.ports)):
            self.start_shard(index)
        for name in self.names:
            self.start(name)
        for name in self.names:
            self.until(lambda record: record["step"] > 2, since=0.0, only=[name], timeout=START)

    def start_shard(self, index: int) -> None:
        """Start a shard; it goes on from what it had committed."""
        name = f"shard-{index}"
        order = {"shard": str(self.folder / f"{name}.json"), "env": self._env, "log": str(self.folder / f"{name}.log")}
        self.processes[name] = self.ordered(order)

    def environment(self, name: str) -> dict[str, str]:
        """A group of one."""
        places = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        told = {"PACELINE_SYNCER": places, "PACELINE_SYNCER_SECRET": self.secret, "PACELINE_GROUP": name}
        told |= {"PACELINE_GROUP_SHARE": "0.5", "PACELINE_LOCAL_STEPS": "2", "WORKER": name}
        return told | {"WORLD_SIZE": "1", "RANK": "0"}


class RoundsJob(SyncerJob):
    """Two groups that wait for each other at every exchange."""

    quorum = 2

    def lost(self, group: str, since: float) -> float | None:
        """When the last shard took a group for dead, by time.time()."""
        moments = []
        for index in range(len(self.ports)):
            said = [line.split(maxsplit=1) for line in self.log(f"shard-{index}").splitlines()]
            found = [float(at) for at, text in said if text.startswith(f"group {group} sent no heartbeat")]
            moments.append(next((at for at in found if at > since), None))
        known = [at for at in moments if at is not None]
        return max(known) if len(known) == len(moments) else None
