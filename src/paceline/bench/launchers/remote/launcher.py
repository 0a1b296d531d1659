"""Ranks on other hosts through an engine that exists: the engine starts agents, everything else is the same for all."""

from __future__ import annotations

import base64
import contextlib
import random
import secrets
import shlex
import socket
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Protocol

from paceline.bench.job import Launch, MeetingPoint, Process
from paceline.bench.launchers.local import NUM_PORTS, Spawned, inherited, spawn
from paceline.bench.launchers.remote.leash import Leash, accept, own_addresses
from paceline.errors import LaunchFailed
from paceline.spec.study import Case

__all__ = ["Engine", "RemoteLauncher", "Seats"]

PLACEHOLDER = "address-of-rank-0"
GRACE_S = 8.0


@dataclass(frozen=True)
class Seats:
    """What an engine is asked to start: one agent for each entry of `hosts`."""

    hosts: tuple[str, ...]
    """Host of each process, empty names if any will do."""
    agent: tuple[str, ...]
    """The command of an agent."""
    folder: Path

    @property
    def named(self) -> bool:
        """Whether it matters which hosts they are."""
        return all(self.hosts)

    @property
    def shell_agent(self) -> str:
        """The agent's command as one line for a shell."""
        return shlex.join(self.agent)


class Engine(Protocol):
    """Starts agents on hosts: ssh, mpirun, srun, Ray."""

    name: str
    patience_s: float
    """How long its agents may take to call."""

    def commands(self, seats: Seats) -> dict[str, list[str]]:
        """Commands to run here, by name, that start the agents there."""
        ...

    def cancel(self) -> None:
        """Tell a scheduler that holds jobs of ours to drop them."""
        ...


class RemoteLauncher:
    """Starts processes through an engine and holds each by a leash."""

    one_machine = False

    def __init__(self, engine: Engine, *, hosts: tuple[str, ...] = ()) -> None:
        self.name = engine.name
        self._engine, self._hosts = engine, hosts
        self._case: Case | None = None
        self._known: dict[str, str] = {}
        """Addresses by the placeholders that stand for them, as agents of this meeting called from there."""

    def meeting_point(self, case: Case) -> MeetingPoint:
        """Addresses are known once agents have called from there; until then placeholders stand for them."""
        self._case, self._known = case, {}
        first = random.SystemRandom().randrange(20000, 32000, NUM_PORTS)
        hosts = tuple(_placeholder(host) for host in range(len(case.cluster.hosts)))
        return MeetingPoint(PLACEHOLDER, tuple(range(first, first + NUM_PORTS)), hosts=hosts)

    def start(self, processes: Sequence[Process]) -> Launch:
        """Have the engine start an agent for each process, then hand out the work."""
        token = secrets.token_hex(16)
        addresses = own_addresses()
        with socket.create_server(("", 0), backlog=len(processes)) as server:
            agent = _agent_command(addresses, server.getsockname()[1], token)
            hosts = tuple(self._host(process) for process in processes)
            seats = Seats(hosts, agent, processes[0].log.parent)
            launch = _RemoteLaunch(self._engine, _spawn(self._engine, seats))
            try:
                leashes = _gather(server, token, launch, expected=len(processes), folder=seats.folder)
                launch.leashes = _assign(processes, hosts, leashes)
                self._learn(processes, launch.leashes)
                _hand_out(processes, launch.leashes, self._known)
            except BaseException:
                launch.stop()
                raise
        return launch

    def _learn(self, processes: Sequence[Process], leashes: dict[str, Leash]) -> None:
        """Whoever is started later in the same meeting is told the same addresses."""
        self._known.setdefault(PLACEHOLDER, leashes[processes[0].name].address)
        for process in processes:
            self._known.setdefault(_placeholder(process.host), leashes[process.name].address)

    def _host(self, process: Process) -> str:
        """The name by which the engine knows a process's host: as said on the command line, else by the cluster."""
        assert self._case is not None
        if self._hosts:
            if process.host >= len(self._hosts):
                raise LaunchFailed(f"{process.name} needs host number {process.host + 1}, --hosts names fewer")
            return self._hosts[process.host]
        host = self._case.cluster.hosts[process.host]
        return "" if host.name == "localhost" else host.address or host.name

    def slow_down(self, case: Case) -> None:
        """Real time cannot be dilated."""

    def close(self) -> None:
        """Nothing is held between launches."""


def _agent_command(addresses: list[str], port: int, token: str) -> tuple[str, ...]:
    """The agent, its source packed into an argument, so that hosts need nothing but Python."""
    source = files("paceline.bench.launchers.remote").joinpath("agent.py").read_bytes()
    packed = base64.b64encode(zlib.compress(source, 9)).decode()
    loader = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    return ("python3", "-c", loader, ",".join(addresses), str(port), token)


def _spawn(engine: Engine, seats: Seats) -> Spawned:
    commands = engine.commands(seats)
    return spawn({name: (argv, inherited(), _log(seats.folder, name)) for name, argv in commands.items()})


def _log(folder: Path, name: str) -> Path:
    return folder / f"engine-{name.replace(' ', '-')}.log"


def _gather(server: socket.socket, token: str, launch: _RemoteLaunch, *, expected: int, folder: Path) -> list[Leash]:
    """All agents; an engine that gives up before they called is a failed launch, with its own words."""
    leashes: list[Leash] = []
    engine, deadline = launch.engine, time.monotonic() + launch.patience_s
    while len(leashes) < expected:
        leash = accept(server, token, timeout_s=0.2)
        if leash is not None:
            leashes.append(leash)
            continue
        gone = [name for name, code in engine.poll().items() if code]
        if gone or time.monotonic() > deadline:
            for leash in leashes:
                leash.release()
                leash.close(0)
            words = "\n".join(_log(folder, name).read_text(errors="replace")[-400:] for name in gone or engine.poll())
            reason = f"{gone[0]} gave up" if gone else f"only {len(leashes)} of {expected} hosts answered"
            raise LaunchFailed(
                f"{reason}: {words.strip() or 'it said nothing'}", hint="are the hosts up and reachable?"
            )
    return leashes


def _assign(processes: Sequence[Process], hosts: tuple[str, ...], leashes: list[Leash]) -> dict[str, Leash]:
    """An agent for each process, on its host if that matters."""
    free = sorted(leashes, key=lambda leash: (leash.address, leash.pid))
    assigned: dict[str, Leash] = {}
    for process, host in zip(processes, hosts, strict=True):
        found = next((leash for leash in free if not host or _is_on(leash, host)), None)
        if found is None:
            there = ", ".join(sorted({leash.host for leash in leashes}))
            raise LaunchFailed(f"no agent came from host {host!r} for {process.name}; they came from {there}")
        free.remove(found)
        assigned[process.name] = found
    return assigned


def _is_on(leash: Leash, host: str) -> bool:
    name = host.rpartition("@")[2]
    if name in (leash.host, leash.address, leash.host.partition(".")[0]):
        return True
    with contextlib.suppress(OSError):
        return socket.gethostbyname(name) == leash.address
    return False


def _placeholder(host: int) -> str:
    return f"host-{host}-address"


def _hand_out(processes: Sequence[Process], leashes: dict[str, Leash], known: dict[str, str]) -> None:
    for process in processes:
        package = Path(process.env["PYTHONPATH"]) / "paceline" if "PYTHONPATH" in process.env else None
        needed = [Path(process.argv[0]).parent.parent, *([package.parent, package.resolve()] if package else [])]
        leashes[process.name].run(process, known=known, needed=needed)


class _RemoteLaunch:
    def __init__(self, engine: Engine, started: Spawned) -> None:
        self._scheduler = engine
        self.patience_s = engine.patience_s
        self.engine = started
        self.leashes: dict[str, Leash] = {}

    def poll(self) -> dict[str, int | None]:
        return {name: leash.code for name, leash in self.leashes.items()}

    def stop(self) -> None:
        for leash in self.leashes.values():
            leash.release()
        deadline = time.monotonic() + GRACE_S
        for leash in self.leashes.values():
            leash.close(max(0.0, deadline - time.monotonic()))
        while any(code is None for code in self.engine.poll().values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._scheduler.cancel()
        self.engine.stop()


def ranks_by_host(hosts: Sequence[str]) -> dict[str, int]:
    """How many processes each host gets, in order of first mention."""
    counts: dict[str, int] = {}
    for host in hosts:
        counts[host] = counts.get(host, 0) + 1
    return counts
