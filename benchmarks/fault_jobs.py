"""Jobs of real processes that suffer faults: on this machine, on a virtual cluster, in groups around a syncer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ranks
from fault_worker import BATCH, SAMPLES

from paceline.bench.launchers.local import free_ports
from paceline.bench.virtual.hosts.enter import on_network
from paceline.bench.virtual.lifecycle import bring_up, take_down
from paceline.spec.cluster import Cluster, Device, Host, Link

SCRIPT = Path(__file__).with_name("fault_worker.py")
START = 180.0
"""Seconds that a busy machine may take to start all ranks."""
LONGEST = 800
"""Bytes that a line takes at most."""
Record = dict[str, Any]


class Job:
    """Ranks of one group and the lines they write."""

    samples, batch = SAMPLES, BATCH

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.folder, self.size = folder, size
        self.meet = f"127.0.0.1:{free_ports(1)[0]}"
        self._env = ranks.environment(size)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.names = [str(rank) for rank in range(size)]
        """Of all ranks that there ever were."""

    def begin(self) -> None:
        """Start the ranks and wait until all step together."""
        for name in self.names:
            self.start(name)
        self.until(lambda record: record["size"] == self.size, since=0.0, timeout=START)

    def end(self) -> list[int]:
        """Let the job stop by itself; exit codes."""
        (self.folder / "stop").touch()
        return [process.wait(60) for process in self.processes.values()]

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()

    def start(self, name: str, *, late: bool = False) -> float:
        """Start a rank; late ones join the others. When that was."""
        env = {**self._env, **self.environment(name), **({"PACELINE_LATE": "1"} if late else {})}
        with (self.folder / f"{name}.log").open("ab") as log:
            argv = self.command(name, [sys.executable, str(SCRIPT), str(self.folder)])
            self.processes[name] = subprocess.Popen(argv, env=env, stdout=log, stderr=log)
        return time.monotonic()

    def environment(self, name: str) -> dict[str, str]:
        """What a rank is told."""
        roster = str(self.folder / "roster.json")
        return {"PACELINE_JOIN": self.meet, "PACELINE_ROSTER": roster, "RANK": name, "WORKER": name}

    def command(self, name: str, argv: Sequence[str]) -> list[str]:
        """How a rank is started."""
        return list(argv)

    def lines(self, name: str, *, newest: int = 0) -> list[Record]:
        """What a rank has written, or the newest of it; a line cut off by a kill is left out."""
        path = self.folder / f"{name}.steps"
        if not path.exists():
            return []
        with path.open("rb") as file:
            if newest:
                file.seek(max(0, path.stat().st_size - newest * LONGEST))
            text = file.read().decode().splitlines()
        whole = [line for line in text if line.startswith("{") and line.endswith("}")]
        return [json.loads(line) for line in whole[-newest:]]

    def steps(self, name: str, *, newest: int = 0) -> list[Record]:
        """The steps that a rank has committed."""
        return [record for record in self.lines(name, newest=newest) if "step" in record]

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
        timeout: float = 60.0,
    ) -> Record:
        """The first record like that of a rank after a moment."""
        deadline = time.monotonic() + timeout
        watched = [name for name in (only or self.names) if name not in without]
        while time.monotonic() < deadline:
            found = [
                record
                for name in watched
                for record in self.steps(name, newest=60)
                if record["at"] > since and wanted(record)
            ]
            if found:
                return min(found, key=lambda record: float(record["at"]))
            time.sleep(0.01)
        logs = "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.names)
        raise SystemExit(f"no such step within {timeout} s: the job hangs\n{logs}")

    def noticed(self, since: float, without: Sequence[str] = ()) -> float | None:
        """When the first of the others knew that the group had changed."""
        names = [name for name in self.names if name not in without]
        newest = [self.steps(name, newest=3)[-1:] for name in names]
        moments = [at for records in newest for record in records for at in record["noticed"] if at > since]
        return min(moments, default=None)

    def log(self, name: str) -> str:
        """What a rank has said."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def order(self, name: str) -> Path:
        """A file that tells ranks something while it is there."""
        return self.folder / name


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


class SyncerJob(Job):
    """Two groups of one rank that exchange through two shards."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.ports = free_ports(2)
        self.names = ["a", "b"]
        self.secret = self._env["PACELINE_SECRET"]
        self._env.pop("MASTER_PORT")
        for index, port in enumerate(self.ports):
            settings = {"index": index, "folder": str(folder), "address": "127.0.0.1", "port": port}
            settings |= {"groups": 2, "quorum": 1}
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
        argv = [sys.executable, "-m", "paceline.runtime.syncer.server", str(self.folder / f"shard-{index}.json")]
        with (self.folder / f"shard-{index}.log").open("ab") as log:
            self.processes[f"shard-{index}"] = subprocess.Popen(argv, env=self._env, stdout=log, stderr=log)

    def end(self) -> list[int]:
        """Only the ranks stop by themselves."""
        (self.folder / "stop").touch()
        return [self.processes[name].wait(60) for name in self.names]

    def environment(self, name: str) -> dict[str, str]:
        """A group of one."""
        places = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        told = {"PACELINE_SYNCER": places, "PACELINE_SYNCER_SECRET": self.secret, "PACELINE_GROUP": name}
        told |= {"PACELINE_GROUP_SHARE": "0.5", "PACELINE_LOCAL_STEPS": "2", "WORKER": name}
        return told | {"WORLD_SIZE": "1", "RANK": "0"}
