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
from typing import Any

import pytest

from paceline import variables
from paceline.bench.sites.arrivals import LOST, AgentConnection, Arrivals
from paceline.bench.sites.engines import Agents, MpiEngine, RayEngine, SshEngine, Submission
from paceline.bench.sites.remote import RemoteLauncher
from paceline.bench.sites.schedulers import KubernetesEngine, SlurmEngine
from paceline.bench.sites.site import Process
from paceline.catalog import cluster
from paceline.channel.frames import SecureConnection, open_connection
from paceline.channel.handshake import Login
from paceline.errors import InputError
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


@pytest.mark.parametrize(
    "where", ["{folder}/../outside", "{folder}/package/code.py", "{folder}/rank-0.log/../job.json"]
)
def test_an_agent_writes_nothing_else(agent: Agent, tmp_path: Path, where: str) -> None:
    before = sorted(path for path in tmp_path.rglob("*"))
    agent.give(where.format(folder=agent.request["folder"]), b"mine")
    assert agent.ended() == LOST
    assert sorted(path for path in tmp_path.rglob("*")) == before
    assert (tmp_path / "outside").read_text() == "private"


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
