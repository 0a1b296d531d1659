"""Agents on hosts: they log in, get and give the files of their launch only, and no secret is in an argument."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import variables
from paceline.bench.sites import agent as agent_module
from paceline.bench.sites import remote
from paceline.bench.sites.arrivals import LOST, AgentConnection, Arrivals
from paceline.bench.sites.engines import Agents, MpiEngine, RayEngine, SshEngine, Submission
from paceline.bench.sites.remote import RemoteLauncher
from paceline.bench.sites.schedulers import KubernetesEngine, SlurmEngine
from paceline.bench.sites.site import Process, Rendezvous
from paceline.catalog import cluster
from paceline.channel.frames import SecureConnection, open_connection
from paceline.channel.handshake import Login
from paceline.errors import InputError, LaunchFailed
from tests.integration.site_conformance import check_launcher

TOKEN = "0123456789abcdef" * 4


class Here:
    """An engine that starts agents on this machine: they call, or their command carries the connection."""

    name = "here"
    timeout_s = 30.0

    def __init__(self, *, carries: bool) -> None:
        self.carries = carries
        self.seen: list[str] = []

    def submission(self, agents: Agents) -> Submission:
        greeting = "echo welcome to this host;" if self.carries else ""
        command = agents.shell_command.replace("python3", sys.executable, 1)
        commands = {f"agent {n}": ["sh", "-c", f"{greeting} exec {command}"] for n in range(len(agents.hosts))}
        self.seen = [word for words in commands.values() for word in words] + [agents.token]
        return Submission(commands)


@pytest.mark.parametrize("carries", [False, True], ids=["calls", "carried"])
def test_agents_conform_and_their_arguments_hold_no_secret(tmp_path: Path, carries: bool) -> None:
    engine = Here(carries=carries)
    check_launcher(RemoteLauncher(engine), cluster("local"), tmp_path)
    *words, token = engine.seen
    assert len(token) == 64
    assert not [word for word in words if token in word]


class Agent:
    """An agent of our own making, which may ask for what it likes."""

    def __init__(self, folder: Path) -> None:
        self.arrivals = Arrivals(TOKEN, listens=True)
        assert self.arrivals.port is not None
        login = Login(TOKEN.encode(), "agent")
        self.side: SecureConnection = open_connection(
            "127.0.0.1", self.arrivals.port, login, listener="launcher", timeout=5
        )
        self.side.send_plain({"host": "h", "address": "127.0.0.1", "pid": 1})
        found = self.arrivals.next(timeout_s=10)
        assert found is not None
        self.launcher: AgentConnection = found
        process = Process("rank 0", 0, ("true",), {}, folder / "rank-0.log", rank=0)
        self.launcher.run(process, addresses={}, needed=[folder / "package"])
        self.request: dict[str, Any] = self.side.receive_plain()

    def ended(self) -> int | None:
        deadline = time.monotonic() + 10
        while self.launcher.code is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.launcher.code

    def give(self, path: str, content: bytes) -> None:
        self.side.send(json.dumps({"exit": 0, "files": [[path, len(content)]]}).encode(), content)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    folder = tmp_path / "launch"
    (folder / "package").mkdir(parents=True)
    (folder / "package" / "code.py").write_text("x = 1")
    (tmp_path / "outside").write_text("private")
    made = Agent(folder)
    yield made
    made.side.close()
    made.launcher.close(1)
    with made.arrivals:
        pass


def test_an_agent_gets_the_files_of_its_launch(agent: Agent) -> None:
    agent.side.send_plain({"missing": [agent.request["folder"]]})
    frames = [agent.side.receive(timeout=5)]
    while frames[-1][0] != b'{"end":true}':
        frames.append(agent.side.receive(timeout=5))
    assert any(b"x = 1" in data for _, data in frames)


@pytest.mark.parametrize("asked", ["/etc/passwd", "{folder}/../outside", "{folder}/package/..", "/", 7, ["/"]])
def test_an_agent_gets_nothing_else(agent: Agent, asked: Any) -> None:
    path = asked.format(folder=agent.request["folder"]) if isinstance(asked, str) else asked
    agent.side.send_plain({"missing": [path]})
    assert agent.ended() == LOST
    with pytest.raises(ConnectionError):
        agent.side.receive(timeout=5)


def test_an_agent_gives_back_the_files_of_its_rank(agent: Agent) -> None:
    agent.give(agent.request["returned"][0], b"line\n")
    assert agent.ended() == 0
    assert Path(agent.request["log"]).read_bytes() == b"line\n"


def test_each_file_gets_its_own_bytes_and_the_launcher_the_exit_code(agent: Agent) -> None:
    parts = [b"log\n", b"", b"events\n"]
    log, journal = agent.request["returned"]
    files = [[path, len(part)] for path, part in zip((log, journal, journal), parts, strict=True)]
    agent.side.send(json.dumps({"exit": 5, "files": files}).encode(), b"".join(parts))
    assert agent.ended() == 5
    assert (Path(log).read_bytes(), Path(journal).read_bytes()) == (b"log\n", b"events\n")


def test_a_host_that_is_lost_is_a_failed_process(agent: Agent) -> None:
    agent.side.close()
    assert agent.ended() == LOST != 0


class Wire:
    """The agent's end of a connection, with what it said."""

    def __init__(self) -> None:
        self.mine, self.theirs = socket.socketpair()
        self.said: list[Any] = []

    def send_plain(self, value: Any) -> None:
        self.said.append(value)

    def fileno(self) -> int:
        return self.mine.fileno()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    with made.mine, made.theirs:
        yield made


def test_a_process_gets_its_own_variables_folder_and_interface(
    wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PYTHONPATH": "/theirs", "KEPT": "yes", "NCCL_SOCKET_IFNAME": "of the host"}.items():
        monkeypatch.setenv(name, value)
    request = {
        "argv": ["sh", "-c", "pwd; env; exit 9"], "env": {"OWN": "1", "GLOO_SOCKET_IFNAME": "asked"},
        "dropped": ["PYTHON"], "folder": str(tmp_path), "log": str(tmp_path / "log"),
    }  # fmt: skip
    assert agent_module.run(wire, request, "127.0.0.1") == 9  # type: ignore[arg-type]
    folder, *lines = (tmp_path / "log").read_text().splitlines()
    assert folder == str(tmp_path)
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    assert "PYTHONPATH" not in env
    assert (env["KEPT"], env["OWN"]) == ("yes", "1")
    assert [env[name] for name in agent_module.INTERFACE_VARIABLES] == ["asked", "lo", "lo"]
    assert list(wire.said[0]) == ["started"]
    assert agent_module.run(wire, {**request, "argv": ["/no/such"]}, "127.0.0.1") == 127  # type: ignore[arg-type]
    assert "cannot start /no/such" in (tmp_path / "log").read_text()
    assert len(wire.said) == 1


def running(pid: int) -> bool:
    """Whether a process still does something: one that was killed may wait for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("program", "hung_up", "code"),
    [("sleep 600 & echo $!", False, 0), ("trap '' TERM; sleep 600 & echo $!; while :; do sleep 1; done", True, -9),
     ("sleep 600 & echo $!; exec sleep 600", True, -15)],
    ids=["ended", "stubborn", "ended by the launcher"],
)  # fmt: skip
def test_an_agent_leaves_no_process_behind(wire: Wire, program: str, hung_up: bool, code: int) -> None:
    with subprocess.Popen(["sh", "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        if hung_up:
            wire.theirs.close()
        assert agent_module.wait(wire, process) == code  # type: ignore[arg-type]
        deadline = time.monotonic() + 10
        while running(child) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not running(child)


@pytest.mark.parametrize(
    ("ssh", "address"),
    [("10.0.0.9 5 10.0.0.7 22", "10.0.0.7"), ("10.0.0.9 5 127.0.0.5 22", "127.0.0.1"),
     ("::1 5 fe80::1 22", "127.0.0.1"), ("", "127.0.0.1"), ("10.0.0.9 5", "127.0.0.1")],
)  # fmt: skip
def test_the_address_is_that_of_ssh_unless_others_cannot_reach_it(
    monkeypatch: pytest.MonkeyPatch, ssh: str, address: str
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", ssh)
    assert agent_module.own_address(["127.0.0.1"]) == address


def test_addresses_of_this_host_begin_with_those_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def at(address: str, family: int = socket.AF_INET) -> Any:
        return SimpleNamespace(address=address, family=family)

    found = {"lo": [at("127.0.0.1"), at("::1", socket.AF_INET6)], "eth0": [at("10.0.0.7")], "eth1": [at("10.1.0.7")]}
    monkeypatch.setattr(remote.psutil, "net_if_addrs", lambda: found)
    assert remote.own_addresses() == ["10.0.0.7", "10.1.0.7", "127.0.0.1"]
    monkeypatch.setattr(remote.psutil, "net_if_addrs", dict)
    assert remote.own_addresses() == ["127.0.0.1"]


def test_each_process_gets_an_agent_of_its_host(tmp_path: Path) -> None:
    def there(host: str, address: str, pid: int) -> Any:
        return SimpleNamespace(host=host, address=address, pid=pid)

    a2, a1, b = there("a.lab", "127.0.0.8", 12), there("a.lab", "127.0.0.8", 11), there("b", "127.0.0.9", 5)
    ranks = [Process(f"rank {n}", n, (), {}, tmp_path / "log", rank=n) for n in range(3)]
    assigned = remote._assign(ranks, ("me@b", "a", "127.0.0.8"), [a2, a1, b])
    assert assigned == {"rank 0": b, "rank 1": a1, "rank 2": a2}
    assert remote._assign(ranks, ("", "", ""), [a2, a1, b]) == {"rank 0": a1, "rank 1": a2, "rank 2": b}
    with pytest.raises(LaunchFailed, match=r"from host 'b' for rank 1; agents connected from a\.lab, b$"):
        remote._assign(ranks, ("b", "b", "a"), [a2, a1, b])


def test_other_processes_are_told_the_address_of_the_first(tmp_path: Path) -> None:
    site = remote.RemoteSite(Rendezvous(remote.PLACEHOLDER, (1,)), Here(carries=False), ("a", "b"))
    ranks = [Process(f"rank {n}", n, (), {}, tmp_path / "log", rank=n) for n in range(2)]
    agents: Any = {f"rank {number}": SimpleNamespace(address=f"10.0.0.{number}") for number in range(2)}
    site._learn(ranks, agents)
    assert site._addresses == {
        remote.PLACEHOLDER: "10.0.0.0", remote._placeholder(0): "10.0.0.0", remote._placeholder(1): "10.0.0.1"
    }  # fmt: skip


def test_an_engine_whose_command_has_ended_well_may_still_start_agents(tmp_path: Path) -> None:
    class Later:
        port = 1

        def __init__(self) -> None:
            self.asked = 0

        def next(self, *, timeout_s: float) -> Any:
            self.asked += 1
            return "agent" if self.asked == 3 else None

    engine, later = SimpleNamespace(poll=lambda: {"sbatch": 0}), Later()
    launch: Any = SimpleNamespace(agents=SimpleNamespace(hosts=("a",)), engine=engine, last_words=str)
    arrivals: Any = later
    assert remote._accept_all(arrivals, launch, timeout_s=60.0) == ["agent"]


def test_an_array_has_one_task_for_each_agent(tmp_path: Path) -> None:
    words = SlurmEngine(kind="array")._array(Agents(("", "", ""), ("python3",), tmp_path))
    assert "--array=0-2" in words


def test_an_engine_that_gives_up_ends_the_launch_at_once_with_its_words(tmp_path: Path) -> None:
    class Failing(Here):
        def submission(self, agents: Agents) -> Submission:
            return Submission({"agent 0": ["sh", "-c", "echo no such partition >&2; exit 3"]})

    process = Process("rank 0", 0, ("true",), {}, tmp_path / "rank-0.log", rank=0)
    began = time.monotonic()
    with (
        RemoteLauncher(Failing(carries=False)) as launcher,
        launcher.open(cluster("local"), 1) as site,
        pytest.raises(LaunchFailed, match="agent 0 gave up: no such partition"),
    ):
        site.start([process])
    assert time.monotonic() - began < Here.timeout_s / 2


@pytest.mark.parametrize(
    "where", ["{folder}/../outside", "{folder}/package/code.py", "{folder}/rank-0.log/../job.json", "{folder}"]
)
def test_an_agent_writes_nothing_else(agent: Agent, tmp_path: Path, where: str) -> None:
    before = sorted(path for path in tmp_path.rglob("*"))
    agent.give(where.format(folder=agent.request["folder"]), b"mine")
    assert agent.ended() == LOST
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "outside").read_text() == "private"


def test_a_file_that_an_agent_may_read_it_may_not_write(tmp_path: Path) -> None:
    code = tmp_path / "module.py"
    code.write_text("code")
    nowhere: Any = None
    made = AgentConnection(nowhere, {"host": "h", "address": "a", "pid": 1})
    made._readable, made._writable = frozenset([str(code)]), frozenset()
    with pytest.raises(ConnectionError, match="none of its rank's files"):
        made._take_files([[str(code), 4]], b"mine")
    assert code.read_text() == "code"


def test_an_agent_does_not_write_through_a_link(agent: Agent, tmp_path: Path) -> None:
    Path(agent.request["log"]).symlink_to(tmp_path / "outside")
    agent.give(agent.request["log"], b"mine")
    assert agent.ended() == LOST
    assert (tmp_path / "outside").read_text() == "private"


@pytest.mark.parametrize("host", ["-oProxyCommand=touch /tmp/x", "-h", "a b", "user@-oX", "a,b", "a\nb", "ä", "a;b"])
def test_what_is_no_host_name_is_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not the name of a host"):
        Agents((host,), ("python3",), tmp_path)


@pytest.mark.parametrize("host", ["n1", "user@n1.example.org", "10.0.0.1", "[::1]", "my_host-2"])
def test_host_names_come_behind_the_options_of_ssh(host: str, tmp_path: Path) -> None:
    (words,) = SshEngine().submission(Agents((host,), ("python3", "-c", "x"), tmp_path)).commands.values()
    assert words[words.index("--") + 1] == host


def test_no_engine_has_the_token_in_an_argument(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("srun", "kubectl", "mpirun", "ray"):
        (tools / name).write_text("#!/bin/sh\necho Open MPI\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    agents = Agents(("a", "b"), ("python3", "-c", "x"), tmp_path, TOKEN)
    kinds = [SlurmEngine(kind=kind) for kind in ("srun", "sbatch", "hetjob")]
    for engine in (SshEngine(), MpiEngine(), *kinds, RayEngine(), KubernetesEngine()):
        words = [word for command in engine.submission(agents).commands.values() for word in command]
        assert not [word for word in words if TOKEN in word], engine.name
    assert variables.AGENT_TOKEN in MpiEngine().submission(agents).commands["mpirun"]
    holders = [path for path in tmp_path.iterdir() if path.is_file() and TOKEN in path.read_text()]
    assert {path.name for path in holders} == {"ray.json", "manifest.json"}
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in holders)


def test_an_agent_runs_nothing_for_a_launcher_without_the_token(tmp_path: Path) -> None:
    """The proof is mutual: who answers in the launcher's place cannot give orders."""
    from paceline.bench.sites.remote import _agent_command

    server = socket.create_server(("127.0.0.1", 0))
    other = Arrivals("another token, which is as long", listens=True)
    received: list[bytes] = []

    def relay() -> None:
        called, _ = server.accept()
        with called, socket.create_connection(("127.0.0.1", other.port)) as onward, contextlib.suppress(OSError):
            called.sendall(onward.recv(1000))
            onward.sendall(called.recv(1000))
            received.append(onward.recv(1000))

    threading.Thread(target=relay, daemon=True).start()
    words = [sys.executable, *_agent_command(["127.0.0.1"], server.getsockname()[1])[1:]]
    env = {**os.environ, variables.AGENT_TOKEN: TOKEN}
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert done.returncode != 0
    assert other.next(timeout_s=0.1) is None
    server.close()
    with other:
        pass


@pytest.mark.parametrize("carries", [False, True], ids=["calls", "carried"])
def test_only_commands_whose_agents_call_back_get_the_token_in_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, carries: bool
) -> None:
    """An agent that is carried gets it inside of its connection; the environment of ssh may be read by others."""
    spawned: list[Any] = []
    monkeypatch.setattr(remote, "spawn", lambda commands, streams: spawned.append(commands))
    arrivals: Any = SimpleNamespace(
        port=None if carries else 4000, streams=lambda commands: contextlib.nullcontext(dict.fromkeys(commands))
    )
    agents = Agents(("a",), ("python3",), tmp_path, TOKEN)
    remote._RemoteLaunch(Submission({"ssh": ["ssh", "a"]}), agents, arrivals)
    ((_, env, _),) = spawned[0].values()
    assert (env.get(variables.AGENT_TOKEN) == TOKEN) == (not carries)


def test_an_engine_is_quoted_by_the_end_of_its_log(tmp_path: Path) -> None:
    launch: Any = object.__new__(remote._RemoteLaunch)
    launch.agents = Agents(("a",), ("python3",), tmp_path, TOKEN)
    launch.agents.log("srun").write_text("warning " * 100 + "error: invalid partition")
    assert launch.last_words(["srun"]).endswith("error: invalid partition")
    assert len(launch.last_words(["srun"])) <= 400


def test_agents_that_came_are_let_go_if_the_others_do_not(tmp_path: Path) -> None:
    did: list[Any] = []
    agent = SimpleNamespace(release=lambda: did.append("release"), close=lambda seconds: did.append(seconds))
    came = iter([agent])
    arrivals: Any = SimpleNamespace(next=lambda timeout_s: next(came, None))
    engine = SimpleNamespace(poll=lambda: {"srun": None})
    launch: Any = SimpleNamespace(agents=SimpleNamespace(hosts=("a", "b")), engine=engine, last_words=lambda names: "")
    with pytest.raises(LaunchFailed, match="only 1 of 2 hosts answered: it said nothing"):
        remote._accept_all(arrivals, launch, timeout_s=0.0)
    assert did == ["release", 0]


def test_the_engine_takes_back_what_it_submitted_when_a_launch_stops(tmp_path: Path) -> None:
    did: list[Any] = []
    launch: Any = object.__new__(remote._RemoteLaunch)
    agent = SimpleNamespace(release=lambda: did.append("release"), close=lambda seconds: did.append("close"))
    launch.connections, launch._cancel = {"rank 0": agent}, lambda: did.append("cancel")
    launch.engine = SimpleNamespace(poll=lambda: {"sbatch": 0}, stop=lambda: did.append("stop"))
    launch.stop()
    assert did == ["release", "close", "cancel", "stop"]
