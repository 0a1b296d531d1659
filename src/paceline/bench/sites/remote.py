"""Ranks on other hosts: an engine starts agents, everything else is common to all engines."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import random
import secrets
import select
import socket
import tarfile
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import psutil

from paceline.bench.sites.engines import Agents, Engine, Submission
from paceline.bench.sites.local import DROPPED_VARIABLES, Spawned, inherited, spawn
from paceline.bench.sites.site import Launch, Launcher, Process, Rendezvous, Site, SiteRequest
from paceline.errors import LaunchFailed
from paceline.spec.cluster import Cluster

__all__ = ["LOST", "AgentConnection", "RemoteLauncher", "RemoteSite", "accept", "own_addresses"]

PLACEHOLDER = "address-of-rank-0"
FIRST_PORT, LAST_PORT, PORT_STEP = 20000, 32000, 16
GRACE_S = 8.0


class RemoteLauncher(Launcher):
    """Starts processes through an engine and controls each over the connection of its agent."""

    def __init__(self, engine: Engine, *, hosts: tuple[str, ...] = ()) -> None:
        self.name = engine.name
        self._engine, self._hosts = engine, hosts

    def _open(self, request: SiteRequest) -> Site:
        """A site with placeholders for addresses, which are known after the agents have connected."""
        first = random.SystemRandom().randrange(FIRST_PORT, LAST_PORT, PORT_STEP)
        ports = tuple(range(first, first + request.num_ports))
        hosts = tuple(_placeholder(host) for host in range(len(request.cluster.hosts)))
        return RemoteSite(
            Rendezvous(PLACEHOLDER, ports, hosts=hosts), self._engine, self._hosts or _names(request.cluster)
        )


class RemoteSite(Site):
    """Hosts that an engine reaches under these names."""

    def __init__(self, rendezvous: Rendezvous, engine: Engine, hosts: tuple[str, ...]) -> None:
        super().__init__(rendezvous)
        self._engine, self._hosts = engine, hosts
        self._addresses: dict[str, str] = {}
        """Addresses by placeholder, from the connections of agents of this site."""

    def _start(self, processes: Sequence[Process]) -> Launch:
        """Have the engine start an agent for each process, then send each agent its process."""
        token = secrets.token_hex(16)
        with socket.create_server(("", 0), backlog=len(processes)) as server:
            command = _agent_command(own_addresses(), server.getsockname()[1], token)
            hosts = tuple(self._host(process) for process in processes)
            agents = Agents(hosts, command, processes[0].log.parent)
            launch = _RemoteLaunch(self._engine.submission(agents), agents)
            try:
                connections = _accept_all(server, token, launch, timeout_s=self._engine.timeout_s)
                launch.connections = _assign(processes, hosts, connections)
                self._learn(processes, launch.connections)
                _send_out(processes, launch.connections, self._addresses)
            except BaseException:
                launch.stop()
                raise
        return launch

    def _learn(self, processes: Sequence[Process], connections: dict[str, AgentConnection]) -> None:
        """Fix the addresses, which later processes of this site receive as well."""
        self._addresses.setdefault(PLACEHOLDER, connections[processes[0].name].address)
        for process in processes:
            self._addresses.setdefault(_placeholder(process.host), connections[process.name].address)

    def _host(self, process: Process) -> str:
        if process.host >= len(self._hosts):
            raise LaunchFailed(f"{process.name} needs host number {process.host + 1}, --hosts names fewer")
        return self._hosts[process.host]


def _names(cluster: Cluster) -> tuple[str, ...]:
    """The names of the hosts for an engine; empty for the local cluster."""
    return tuple("" if host.name == "localhost" else host.address or host.name for host in cluster.hosts)


def _placeholder(host: int) -> str:
    return f"host-{host}-address"


def _agent_command(addresses: list[str], port: int, token: str) -> tuple[str, ...]:
    """The command of the agent with its source in an argument, so that hosts need only Python."""
    source = files("paceline.bench.sites").joinpath("agent.py").read_bytes()
    packed = base64.b64encode(zlib.compress(source, 9)).decode()
    loader = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    return ("python3", "-c", loader, ",".join(addresses), str(port), token)


def _accept_all(server: socket.socket, token: str, launch: _RemoteLaunch, *, timeout_s: float) -> list[AgentConnection]:
    """Wait for all agents; if the engine ends before they connect, the launch fails with its log."""
    connections: list[AgentConnection] = []
    expected, deadline = len(launch.agents.hosts), time.monotonic() + timeout_s
    while len(connections) < expected:
        connection = accept(server, token, timeout_s=0.2)
        if connection is not None:
            connections.append(connection)
            continue
        gone = [name for name, code in launch.engine.poll().items() if code]
        if gone or time.monotonic() > deadline:
            for connection in connections:
                connection.release()
                connection.close(0)
            reason = f"{gone[0]} gave up" if gone else f"only {len(connections)} of {expected} hosts answered"
            words = launch.last_words(gone) or "it said nothing"
            raise LaunchFailed(f"{reason}: {words}", hint="are the hosts up and reachable?")
    return connections


def _assign(
    processes: Sequence[Process], hosts: tuple[str, ...], connections: list[AgentConnection]
) -> dict[str, AgentConnection]:
    """Assign an agent to each process, on its host if hosts are specified."""
    free = sorted(connections, key=lambda connection: (connection.address, connection.pid))
    assigned: dict[str, AgentConnection] = {}
    for process, host in zip(processes, hosts, strict=True):
        chosen = next((connection for connection in free if not host or _is_on(connection, host)), None)
        if chosen is None:
            there = ", ".join(sorted({connection.host for connection in connections}))
            raise LaunchFailed(f"no agent came from host {host!r} for {process.name}; they came from {there}")
        free.remove(chosen)
        assigned[process.name] = chosen
    return assigned


def _is_on(connection: AgentConnection, host: str) -> bool:
    name = host.rpartition("@")[2]
    if name in (connection.host, connection.address, connection.host.partition(".")[0]):
        return True
    with contextlib.suppress(OSError):
        return socket.gethostbyname(name) == connection.address
    return False


def _send_out(processes: Sequence[Process], connections: dict[str, AgentConnection], addresses: dict[str, str]) -> None:
    for process in processes:
        folder = Path(process.env["PYTHONPATH"]) if "PYTHONPATH" in process.env else None
        packages = [link.resolve() for link in sorted(folder.iterdir())] if folder and folder.is_dir() else []
        needed = [Path(process.argv[0]).parent.parent, *([folder, *packages] if folder else [])]
        connections[process.name].run(process, addresses=addresses, needed=needed)


class _RemoteLaunch:
    def __init__(self, submission: Submission, agents: Agents) -> None:
        self._cancel, self.agents = submission.cancel, agents
        commands = {name: (argv, inherited(), agents.log(name)) for name, argv in submission.commands.items()}
        self.engine: Spawned = spawn(commands)
        self.connections: dict[str, AgentConnection] = {}

    def last_words(self, names: Sequence[str]) -> str:
        """The ends of the logs of the engine's commands, of all if none is named."""
        logs = [self.agents.log(name) for name in names or self.engine.poll()]
        return "\n".join(log.read_text(errors="replace")[-400:] for log in logs).strip()

    def poll(self) -> dict[str, int | None]:
        return {name: connection.code for name, connection in self.connections.items()}

    def stop(self) -> None:
        for connection in self.connections.values():
            connection.release()
        deadline = time.monotonic() + GRACE_S
        for connection in self.connections.values():
            connection.close(max(0.0, deadline - time.monotonic()))
        while any(code is None for code in self.engine.poll().values()) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._cancel()
        self.engine.stop()


LOST = -9
"""Exit code of a process whose host was lost."""


class AgentConnection:
    """One agent: its host and, after `run`, the state of its process."""

    def __init__(self, connection: socket.socket, hello: dict[str, Any], lines: Iterable[str]) -> None:
        self.host, self.address, self.pid = str(hello["host"]), str(hello["address"]), int(hello["pid"])
        self._connection, self._lines = connection, iter(lines)
        self._thread: threading.Thread | None = None
        self.code: int | None = None

    def run(self, process: Process, *, addresses: Mapping[str, str], needed: Iterable[Path]) -> None:
        """Send the agent its command, with addresses in place of placeholders."""
        folder = process.log.parent

        def resolved(text: str) -> str:
            for placeholder, address in addresses.items():
                text = text.replace(placeholder, address)
            return text

        request = {
            "argv": [resolved(word) for word in process.argv],
            "env": {name: resolved(value) for name, value in process.env.items()},
            "dropped": DROPPED_VARIABLES,
            "folder": str(folder),
            "marker": str(folder / "job.json"),
            "log": str(process.log),
            "returned": [str(process.log), str(folder / f"rank-{process.rank}.jsonl")],
            "needed": [str(path) for path in needed],
        }
        self._send(request)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """Serve the agent until it reports the exit code or is lost."""
        code = LOST
        with contextlib.suppress(OSError, ValueError):
            for line in self._lines:
                message = json.loads(line)
                if "missing" in message:
                    self._send_files([Path(path) for path in message["missing"]])
                if "exit" in message:
                    for path, text in message["files"].items():
                        Path(path).write_text(text, encoding="utf-8")
                    code = int(message["exit"])
                    break
        self.code = code

    def _send(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._connection.sendall((json.dumps(message) + "\n").encode())

    def _send_files(self, paths: list[Path]) -> None:
        for path in paths:
            for member in _members(path):
                buffer = io.BytesIO()
                with tarfile.open(fileobj=buffer, mode="w") as archive:
                    archive.add(member, arcname=str(member).lstrip("/"), recursive=False)
                self._send({"tar": base64.b64encode(buffer.getvalue()).decode()})
        self._send({"end": True})

    def release(self) -> None:
        """Close the connection: the agent ends its process and exits."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    def close(self, timeout_s: float) -> None:
        """Wait for the last messages, then close the connection."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        self._connection.close()


def _members(path: Path) -> Iterable[Path]:
    """An archive of a folder; links to folders are followed once, so that a linked package is sent as files."""
    if path.is_symlink() or not path.is_dir():
        yield path
        return
    yield path
    for child in sorted(path.iterdir()):
        if child.name != "__pycache__":
            yield from _members(child)


def accept(server: socket.socket, token: str, *, timeout_s: float) -> AgentConnection | None:
    """The next authenticated agent; None after the timeout."""
    if not select.select([server], [], [], timeout_s)[0]:
        return None
    connection, _ = server.accept()
    connection.settimeout(10)
    lines = connection.makefile("r", encoding="utf-8")
    try:
        hello = json.loads(lines.readline() or "{}")
    except (OSError, ValueError):
        hello = {}
    if hello.get("token") != token:
        connection.close()
        return None
    connection.settimeout(None)
    return AgentConnection(connection, hello, lines)


def own_addresses() -> list[str]:
    """Addresses of this host by which others may reach it, loopback last."""
    interfaces = psutil.net_if_addrs().values()
    addresses = [item.address for items in interfaces for item in items if item.family is socket.AF_INET]
    return sorted(addresses, key=lambda address: address.startswith("127.")) or ["127.0.0.1"]
