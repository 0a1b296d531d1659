"""Ranks on other hosts: an engine starts agents, everything else is common to all engines."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import secrets
import socket
import time
import zlib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import psutil

from paceline import variables
from paceline.bench.sites.arrivals import AgentConnection, Arrivals
from paceline.bench.sites.engines import Agents, Engine, Submission
from paceline.bench.sites.local import Spawned, inherited, spawn
from paceline.bench.sites.site import Launch, Launcher, Process, Rendezvous, Site, SiteRequest
from paceline.errors import LaunchFailed
from paceline.spec.cluster import Cluster

__all__ = ["RemoteLauncher", "RemoteSite", "own_addresses"]

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
        hosts = tuple(self._host(process) for process in processes)
        with Arrivals(secrets.token_hex(32), listens=not self._engine.carries) as arrivals:
            command = _agent_command(own_addresses(), arrivals.port)
            agents = Agents(hosts, command, processes[0].log.parent, arrivals.token)
            launch = _RemoteLaunch(self._engine.submission(agents), agents, arrivals)
            try:
                connections = _accept_all(arrivals, launch, timeout_s=self._engine.timeout_s)
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


SENT_MODULES = (
    "variables",
    "channel",
    "channel.handshake",
    "channel.plain",
    "channel.macs",
    "channel.sockets",
    "channel.frames",
)
"""Modules that an agent imports, in the order of their dependencies."""
LOADER = """import base64,json,sys,types,zlib
for name,source in json.loads(zlib.decompress(base64.b64decode('{packed}'))):
 module=sys.modules[name] if name=='__main__' else types.ModuleType(name)
 module.__path__=[]
 sys.modules[name]=module
 parent,_,leaf=name.rpartition('.')
 if parent: setattr(sys.modules[parent],leaf,module)
 exec(compile(source,name,'exec'),module.__dict__)
"""


def _agent_command(addresses: list[str], port: int | None) -> tuple[str, ...]:
    """The command of the agent with its sources in an argument, so that hosts need only Python."""
    ours = files("paceline")
    modules = [("paceline", "")]
    for name in SENT_MODULES:
        path = ours.joinpath(*name.split("."))
        source = path.joinpath("__init__.py") if path.is_dir() else ours.joinpath(f"{name.replace('.', '/')}.py")
        modules.append((f"paceline.{name}", source.read_text(encoding="utf-8")))
    modules.append(("__main__", ours.joinpath("bench/sites/agent.py").read_text(encoding="utf-8")))
    packed = base64.b64encode(zlib.compress(json.dumps(modules).encode(), 9)).decode()
    return ("python3", "-c", LOADER.format(packed=packed), ",".join(addresses), "-" if port is None else str(port))


def _accept_all(arrivals: Arrivals, launch: _RemoteLaunch, *, timeout_s: float) -> list[AgentConnection]:
    """Wait for all agents; if the engine ends before they connect, the launch fails with its log."""
    connections: list[AgentConnection] = []
    expected, deadline = len(launch.agents.hosts), time.monotonic() + timeout_s
    while len(connections) < expected:
        connection = arrivals.next(timeout_s=0.2)
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
            raise LaunchFailed(
                f"no agent connected from host {host!r} for {process.name}; agents connected from {there}"
            )
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
    def __init__(self, submission: Submission, agents: Agents, arrivals: Arrivals) -> None:
        self._cancel, self.agents = submission.cancel, agents
        # Commands that carry their agent's connection hand the token over inside of it.
        env = {**inherited(), **({variables.AGENT_TOKEN: agents.token} if arrivals.port is not None else {})}
        commands = {name: (argv, env, agents.log(name)) for name, argv in submission.commands.items()}
        with arrivals.streams(commands if arrivals.port is None else ()) as streams:
            self.engine: Spawned = spawn(commands, streams)
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


def own_addresses() -> list[str]:
    """Addresses of this host by which others may reach it, loopback last."""
    interfaces = psutil.net_if_addrs().values()
    addresses = [item.address for items in interfaces for item in items if item.family is socket.AF_INET]
    return sorted(addresses, key=lambda address: address.startswith("127.")) or ["127.0.0.1"]
