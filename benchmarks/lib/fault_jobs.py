"""Jobs of real processes that suffer faults: on this machine, on a virtual cluster, in groups around a syncer."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from lib import ranks
from lib.fault_worker import BATCH, SAMPLES
from paceline.bench.sites.local import free_ports
from paceline.bench.virtual.lifecycle import bring_up, take_down
from paceline.bench.virtual.namespaces import on_network
from paceline.spec.cluster import Cluster, Device, Host, Link

HERE = Path(__file__).parent
START = 180.0
"""Seconds that a busy machine may take to start all ranks."""
SILENCE = 1.0
"""Seconds after which a silent group is taken for dead; ranks of one group are told the same in fault_worker.py."""
HANG = 60.0
"""Seconds without the awaited step after which a job hangs."""
DROPPED, RESET = ("DROP",), ("REJECT", "--reject-with", "tcp-reset")
"""What a firewall does with a packet: a reset looks as if the process at the other end had gone."""
Record = dict[str, Any]
Endpoint = tuple[str, int]
NAMED = re.compile(r"(rank\S+) has been in its own code for (\d+) s in step (\d+)")


ENDING = 8
"""Steps from the order to end to the last one: enough for every rank to see the order before."""


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
        waiter = select.poll()  # `select` knows no descriptors beyond 1,023
        waiter.register(self._file, select.POLLIN)
        if not waiter.poll(None if timeout is None else timeout * 1000):
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
        self.haste = 1.0
        """By how much the random times between two faults are shorter."""
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
        """Let the job stop by itself, all ranks after the same step."""
        last = max((record["step"] for name in self.names for record in self.newest(name)), default=0)
        self.order("stop").write_text(f"{last + ENDING}\n")
        self._wait_for_ends()

    def _wait_for_ends(self) -> None:
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
        """A new process of a rank, forked where torch is loaded: whoever is killed is back as soon as it may be."""
        order = {"folder": str(self.folder), "env": env, "log": str(self.folder / f"{name}.log")}
        return the_nursery().ordered({**order, "network": self.network(name)})

    def network(self, name: str) -> str | None:
        """The network namespace that a rank runs in; None for the one of this process."""
        return None

    def environment(self, name: str) -> dict[str, str]:
        """What a rank is told."""
        roster = str(self.folder / "roster.json")
        return {"PACELINE_JOIN": self.meet, "PACELINE_ROSTER": roster, "RANK": name, "WORKER": name}

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

    def said(self, text: str) -> int:
        """How often ranks have said something."""
        return sum(self.log(name).count(text) for name in self.names)

    def named(self, rank: str) -> list[tuple[int, int]]:
        """Step and seconds of each time that a rank was said to hang in its own code, in the order of seconds."""
        found = [match.groups() for name in self.names for match in NAMED.finditer(self.log(name))]
        return sorted((int(step), int(seconds)) for who, seconds, step in found if who.startswith(rank))

    def wait_for(self, happened: Callable[[], bool], what: str) -> None:
        """Look until something has happened."""
        deadline = time.monotonic() + HANG
        while not happened():
            if time.monotonic() > deadline:
                raise Failed(f"{HANG} s without {what}\n" + "\n".join(self.log(name)[-2000:] for name in self.names))
            time.sleep(0.02)

    def endpoints(self) -> list[Endpoint]:
        """Where the ranks listen, in their order."""
        return [(address, port) for address, port in json.loads(self.order("roster.json").read_text())]

    def slept(self, name: str, since: float) -> float:
        """Seconds for which a rank did not run at once since a moment, if they exceed a heartbeat timeout; else 0."""
        notes = Lines(self.folder / f"{name}.slept").all()
        return max((note["slept"] for note in notes if note["at"] > since), default=0.0)

    def order(self, name: str) -> Path:
        """A file that tells ranks something while it is there."""
        return self.folder / name


class Nursery:
    """One for all jobs of a benchmark: loading torch takes longer than most turns."""

    def __init__(self) -> None:
        argv, pipe = [ranks.interpreter(), str(HERE / "fault_nursery.py")], subprocess.PIPE
        self._process = subprocess.Popen(argv, env=ranks.environment(1), stdin=pipe, stdout=pipe, text=True)
        self._lock = threading.Lock()

    def ordered(self, order: dict[str, Any]) -> Process:
        """What the nursery makes of an order."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return Forked(int(self._process.stdout.readline()))


the_nursery = functools.cache(Nursery)


class DiskJob(Job):
    """Ranks with checkpoints on a disk of their own, which can be filled: a small tmpfs if this user may mount one."""

    SMALL, MAX_FILE = 16 << 20, 1 << 20

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        disk = folder / "disk"
        disk.mkdir()
        self.checkpoint = disk / "checkpoint"
        mount = ["mount", "-t", "tmpfs", "-o", f"size={self.SMALL}", "none", str(disk)]
        self._mounted = os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0

    def environment(self, name: str) -> dict[str, str]:
        """With checkpoints."""
        return {**super().environment(name), "CHECKPOINT": str(self.checkpoint)}

    def saved_at(self) -> int:
        """When the newest checkpoint was written, by time.time_ns(); 0 if there is none, or it is being renamed."""
        try:
            return self.checkpoint.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """No space is left (ENOSPC), or, without a disk of our own, no file may become as large as a checkpoint."""
        filler = self.checkpoint.with_name("filler")
        if self._mounted:
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
        else:
            self._limit(self.MAX_FILE)
        try:
            yield
        finally:
            filler.unlink(missing_ok=True) if self._mounted else self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        for process in self.processes.values():
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def close(self) -> None:
        """The disk goes too."""
        super().close()
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.checkpoint.parent)], check=False)


class VirtualJob(Job):
    """Each rank on a host of its own, joined by links that can be cut and delayed."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.up = bring_up(_cluster(0.0, self.size), owner=os.getpid())
        self.meet = f"{self.up.layout.seats[0].address}:20000"

    def network(self, name: str) -> str | None:
        """That of its host."""
        return f"/proc/{self.up.pid_of(f'n{name}')}/ns/net"

    def link(self, name: str, *, up: bool, which: Sequence[str] = (), fate: Sequence[str] = DROPPED) -> None:
        """Drop or reset everything on a host's link, or packets of some kind; or let them pass again."""
        for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
            argv = ["iptables", "--wait", "5", "-D" if up else "-I", chain, way, "eth0", *which, "-j", *fate]
            subprocess.run(on_network(self.up.pid_of(f"n{name}"), argv), check=True, timeout=10, capture_output=True)

    @contextlib.contextmanager
    def smaller_than(self, name: str, size: int) -> Iterator[None]:
        """Only packets below this size pass a host's link."""
        which = ("-m", "length", "--length", f"{size}:65535")
        self.link(name, up=False, which=which)
        try:
            yield
        finally:
            self.link(name, up=True, which=which)

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
