"""Every listener of the product is attacked in the same ways: each attack is refused, and legitimate peers still work.

Findings 1, 3, 5, 10, 16 and 26 of the robustness review. A new listener gets a class here and its line in `SUBJECTS`.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from paceline.bench.frameworks.rendezvous import FIRST, RANK, join_ranks
from paceline.bench.sites.arrivals import Arrivals
from paceline.bench.sites.local import free_ports
from paceline.channel.frames import SecureConnection, open_connection
from paceline.channel.handshake import VERSION, Login
from paceline.runtime.members.channel import Channel
from paceline.runtime.members.member import Member
from paceline.runtime.members.view import Peer, Timeouts
from paceline.runtime.protocol import messages

SECRET = "0123456789abcdef" * 4
WEIGHTS = struct.pack("<4f", 1.0, 2.0, 3.0, 4.0)
M = TypeVar("M", bound=messages.Message)


class Subject:
    """A listener under attack."""

    port: int
    caller: Login
    role: str

    def call(self, **changes: Any) -> SecureConnection:
        """Log in as a legitimate peer does, or with something changed."""
        login = Login(**{**vars(self.caller), **changes})
        return open_connection("127.0.0.1", self.port, login, listener=self.role, timeout=5)

    def check(self) -> None:
        """A legitimate peer gets what it should."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def _await(subject: Subject) -> None:
    """Until it listens."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            subject.call().close()
        except OSError:
            time.sleep(0.02)
        else:
            return


class OfMember(Subject):
    """A member of a training job, which leads."""

    def __init__(self, folder: Path) -> None:
        server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port, self.role = server.getsockname()[1], "member"
        self.caller = Login(SECRET.encode(), "member", "rank1-b")
        peer = Peer("rank0-a", 0, "127.0.0.1", self.port)
        timeouts = Timeouts(heartbeat_interval=0.25, heartbeat_timeout=30.0, join=60.0)
        self.member = Member(server, SECRET.encode(), peer=peer, timeouts=timeouts)
        self.member.start(peer.endpoint, first=1)

    def check(self) -> None:
        channel = Channel(self.call())
        channel.set_timeout(10)
        channel.send(messages.LeadershipQuery(Peer("rank1-b", 1, "127.0.0.1", 1)))
        assert channel.receive(messages.LeadershipReply).id == "rank0-a"
        channel.close()

    def close(self) -> None:
        self.member.leave()


class OfShard(Subject):
    """A shard of the syncer, as a process of its own."""

    def __init__(self, folder: Path) -> None:
        (self.port,), self.role = free_ports(1), "shard"
        self.caller = Login(SECRET.encode(), "group", "a")
        settings = {"index": 0, "folder": str(folder), "address": "127.0.0.1", "port": self.port}
        (folder / "shard.json").write_text(json.dumps({**settings, "groups": 1, "quorum": 1}))
        argv = [sys.executable, "-m", "paceline.runtime.syncer.shard", str(folder / "shard.json")]
        with (folder / "shard.log").open("wb") as log:
            self.process = subprocess.Popen(argv, env={**os.environ, "PACELINE_SECRET": SECRET}, stdout=log, stderr=log)
        _await(self)
        self._ask(messages.StartGroup("a", 7, (("w", 4),), 100, 1, (0, 0), None, None, WEIGHTS), messages.Parameters)

    def _ask(self, question: messages.Message, expected: type[M]) -> M:
        channel = Channel(self.call())
        channel.set_timeout(10)
        channel.send(question)
        reply = channel.receive(expected)
        channel.close()
        return reply

    def check(self) -> None:
        self._ask(messages.GroupHeartbeat("a", True), messages.HeartbeatReply)
        held = self._ask(messages.FetchParameters("a"), messages.Parameters)
        assert (held.version, bytes(held.data)) == (0, WEIGHTS), "nobody has changed the parameters"
        assert self._ask(messages.FactsQuery("a"), messages.Facts).groups == 1, "the group still takes part"
        assert self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class OfLaunch(Subject):
    """Rank 0 of a measured launch, which waits for rank 1."""

    def __init__(self, folder: Path) -> None:
        (self.port,), self.role = free_ports(1), FIRST
        self.caller = Login(SECRET.encode(), RANK, "not a rank")
        self.found: list[Any] = []
        self.over = False
        self._begin()

    def _begin(self) -> None:
        self.thread = threading.Thread(target=self._first, daemon=True)
        self.thread.start()
        _await(self)

    def _first(self) -> None:
        channel = join_ranks(0, 2, address="127.0.0.1", port=self.port, token=SECRET, timeout=120)
        self.found.append(channel.gather("zero"))
        channel.close()

    def check(self) -> None:
        channel = join_ranks(1, 2, address="127.0.0.1", port=self.port, token=SECRET, timeout=20)
        assert channel.gather("one") is None
        channel.close()
        self.thread.join(20)
        assert self.found.pop() == ["zero", "one"]
        if not self.over:
            self._begin()

    def close(self) -> None:
        self.over = True
        self.check()


class OfAgents(Subject):
    """A launcher that waits for agents of other hosts."""

    def __init__(self, folder: Path) -> None:
        self.arrivals = Arrivals(SECRET, listens=True)
        assert self.arrivals.port is not None
        self.port, self.role, self.caller = self.arrivals.port, "launcher", Login(SECRET.encode(), "agent")

    def check(self) -> None:
        pid = secrets.randbelow(1 << 30)
        connection = self.call()
        connection.send_plain({"host": "h", "address": "127.0.0.1", "pid": pid})
        agent = self.arrivals.next(timeout_s=20)
        assert agent is not None
        assert agent.pid == pid, "only legitimate agents arrive"
        connection.close()
        agent.close(0)

    def close(self) -> None:
        with self.arrivals:
            pass


SUBJECTS = {"member": OfMember, "shard": OfShard, "launch": OfLaunch, "agents": OfAgents}


@pytest.fixture(scope="module", params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    made = SUBJECTS[request.param](tmp_path_factory.mktemp(request.param))
    yield made
    made.close()


def refused(stranger: socket.socket) -> None:
    """The listener says no more than its greeting, and hangs up."""
    stranger.settimeout(20)
    said = b""
    with contextlib.suppress(ConnectionError):
        while data := stranger.recv(4096):
            said += data
    assert len(said) <= 42, said


HEAD = b"PACELINE" + struct.pack(">H", VERSION)
SENT = {
    "noise": os.urandom(5000),
    "http": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "list": b"\x00\x00\x00\x02[]\n",
    "open lists": struct.pack(">I", 1024) + b"[" * 1024 + b"\n",
    "surrogate": b'\x00\x00\x00\x20{"nonce":"\\ud800","proof":"\\ud800"}\n',
    "other token": json.dumps({"rank": 1, "token": "schlüssel"}, ensure_ascii=False).encode() + b"\n",
    "huge": b"\xff" * 64,
    "huge fields": HEAD + bytes(32) + b"\xff\xff" + bytes(60000),
    "no proof": HEAD + bytes(32) + b"\x00\x00" + bytes(32),
    "cut fields": HEAD + bytes(32) + b"\x00\x0a" + b"\x00\xc8" * 5 + bytes(32),
    "older version": b"PACELINE" + struct.pack(">H", VERSION - 1) + bytes(200),
    "newer version": b"PACELINE" + struct.pack(">H", VERSION + 1) + bytes(200),
}


@pytest.mark.parametrize("name", SENT)
def test_what_is_no_login_is_refused(subject: Subject, name: str) -> None:
    with socket.create_connection(("127.0.0.1", subject.port), timeout=5) as stranger:
        with contextlib.suppress(OSError):
            stranger.sendall(SENT[name])
            stranger.shutdown(socket.SHUT_WR)
        with contextlib.suppress(OSError):
            refused(stranger)
    subject.check()


CHANGED: dict[str, dict[str, Any]] = {
    "secret": {"secret": b"a guess at the secret"},
    "role": {"role": "guest"},
    "session": {"session": "another job"},
}


@pytest.mark.parametrize("name", CHANGED)
def test_another_login_is_refused(subject: Subject, name: str) -> None:
    with pytest.raises(ConnectionError):
        subject.call(**CHANGED[name])
    subject.check()


def test_hanging_up_at_once(subject: Subject) -> None:
    for _ in range(20):
        connection = socket.create_connection(("127.0.0.1", subject.port), timeout=5)
        # A reset in place of an orderly end: the next thing that the listener does fails.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    subject.check()


def test_silence_and_dripping_do_not_hold_up_others(subject: Subject) -> None:
    address = ("127.0.0.1", subject.port)
    with socket.create_connection(address, timeout=5) as silent, socket.create_connection(address) as stranger:
        subject.check()
        ended = False
        for number in range(200):
            try:
                stranger.sendall((HEAD + bytes(32) + b"\x00\xff" + bytes(400))[number : number + 1])
            except OSError:
                ended = True
                break
            time.sleep(0.1)
        assert ended, "the whole handshake has a deadline, not each byte"
        refused(silent)  # within the seconds of a handshake
    subject.check()


def test_two_hundred_connections_at_once(subject: Subject) -> None:
    crowd = [socket.create_connection(("127.0.0.1", subject.port), timeout=20) for _ in range(200)]
    subject.check()
    for connection in crowd:
        connection.close()
    subject.check()


def relayed(subject: Subject, change: Callable[[bytes], bytes] = bytes) -> tuple[list[bytes], list[bytes]]:
    """A legitimate peer calls a port on which somebody passes everything on to the listener: what each side said."""
    server = socket.create_server(("127.0.0.1", 0))
    called, answered = [], []

    def carry() -> None:
        caller, _ = server.accept()
        onward = socket.create_connection(("127.0.0.1", subject.port), timeout=5)
        with caller, onward, contextlib.suppress(OSError):
            caller.settimeout(5)
            caller.sendall(onward.recv(4096))
            called.append(caller.recv(4096))
            onward.sendall(change(called[0]))
            answered.append(onward.recv(4096))
            caller.sendall(answered[0])

    thread = threading.Thread(target=carry, daemon=True)
    thread.start()
    with server, pytest.raises(ConnectionError):
        open_connection("127.0.0.1", server.getsockname()[1], subject.caller, listener=subject.role, timeout=5)
    thread.join(10)
    return called, answered


def test_a_relayed_proof_is_refused(subject: Subject) -> None:
    called, answered = relayed(subject)
    assert len(called[0]) > 80, "the caller did prove itself to whom it called"
    assert answered in ([], [b""]), "the listener proved nothing"
    subject.check()


def test_a_replayed_proof_is_refused(subject: Subject) -> None:
    (claim,), _ = relayed(subject)
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", subject.port), timeout=5) as stranger:
            stranger.sendall(claim)
            refused(stranger)
    subject.check()


def test_a_reflected_greeting_is_refused(subject: Subject) -> None:
    with socket.create_connection(("127.0.0.1", subject.port), timeout=5) as stranger:
        greeting = stranger.recv(42)
        stranger.sendall(greeting + b"\x00\x00" + bytes(32))
        refused(stranger)
    subject.check()


def sealed(connection: SecureConnection, text: bytes) -> bytes:
    return b"".join(connection._sealed(text, b""))


def flip(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


def announced(connection: SecureConnection, text: int, data: int) -> bytes:
    """The head of a frame of these sizes, with the MAC of one who may send it."""
    assert connection._keys is not None
    return connection._keys[0].seal_head(struct.pack(">IQ", text, data))[0]


AFTER: dict[str, Callable[[SecureConnection], bytes]] = {
    "flipped bit in the size": lambda own: flip(sealed(own, b"{}"), 3),
    "flipped bit in the text": lambda own: flip(sealed(own, b'{"kind":"x"}'), 30),
    "flipped bit in the end": lambda own: flip(sealed(own, b"{}"), -1),
    "cut": lambda own: sealed(own, b"{}")[:-5],
    "out of order": lambda own: (sealed(own, b"{}"), sealed(own, b"{}"))[1],
    "in plain": lambda own: b'\x00\x00\x00\x02{}{"kind":"leadership-query"}',
    "list": lambda own: sealed(own, b"[]"),
    "open lists": lambda own: sealed(own, b"[" * 1024),
    "deep": lambda own: sealed(own, b'{"kind":' * 900 + b"1" + b"}" * 900),
    "surrogate": lambda own: sealed(own, b'{"kind":"\\ud800","host":"\\ud800"}'),
    "number": lambda own: sealed(own, b"7"),
    "no text": lambda own: sealed(own, b"\xff\xfe"),
    "empty": lambda own: sealed(own, b""),
    "huge text": lambda own: announced(own, 2**32 - 1, 0),
    "huge data": lambda own: announced(own, 2, 2**63),
    "long number": lambda own: sealed(own, b'{"kind":"hello","view":' + b"9" * 10_000 + b"}"),
    "no number": lambda own: sealed(own, b'{"kind":"heartbeat","step":NaN,"seconds":Infinity}'),
    **{
        f"kind {kind}": lambda own, kind=kind: sealed(own, json.dumps({"kind": kind}).encode())
        for kind in messages.KINDS
    },
}


@pytest.mark.parametrize("name", AFTER)
def test_after_the_login_only_that_connection_ends(subject: Subject, name: str) -> None:
    own = subject.call()
    with contextlib.suppress(OSError):
        own._connection.send(AFTER[name](own))
        own.end_sending()
    subject.check()
    own.close()


def test_silence_and_half_a_frame_after_the_login_do_not_hold_up_others(subject: Subject) -> None:
    callers = [subject.call() for _ in range(20)]
    for own in callers[::2]:
        own._connection.send(sealed(own, b'{"kind":"x"}')[:30])
    subject.check()
    for own in callers:
        own.close()
    subject.check()


@pytest.mark.parametrize("pid", ["Infinity", "1e999", "NaN", "[]", '"x"', "9" * 5000])
def test_an_agent_whose_number_is_none_is_refused(pid: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agents = OfAgents(tmp_path)
    own = agents.call()
    own.send(f'{{"host":"h","address":"a","pid":{pid}}}'.encode())
    with pytest.raises(ConnectionError):
        own.receive(timeout=20)
    own.close()
    agents.check()
    agents.close()
    assert "OverflowError" not in caplog.text, "only connections' own errors are expected"


PEER = {"id": "rank1-b", "rank": 1, "address": "127.0.0.1", "port": 1}
HELLO = {"kind": "hello", "peer": PEER, "view": 0, "ballots": []}
BALLOT = {"number": 1, "leader": "rank0-a", "size": 2, "peers": [], "established": True, "fresh": True}
PUSH = {"kind": "push", "group": "a", "session": 7, "sequence": 1, "base": 0, "samples": 10, "packing": "none",
        "data": 16, "wanted": 0, "status": None}  # fmt: skip
LEASE = {"kind": "lease-request", "group": "a", "session": 7, "sequence": 1, "size": 10, "status": None}
RETUNE = {"kind": "retune", "group": "a", "local_steps": 4, "quorum": 1, "merge_at": None}
HOSTILE: dict[str, dict[str, Any]] = {
    "a version that no float holds": {**PUSH, "base": -(10**400)},
    "a version before the first": {**PUSH, "base": -1},
    "a version after the newest": {**PUSH, "base": 1},
    "samples that no float holds": {**PUSH, "samples": 10**400},
    "fewer samples than one": {**PUSH, "samples": 0},
    "an exchange before the first": {**PUSH, "sequence": 0},
    "fewer numbers": {**PUSH, "data": 12},
    "half numbers": {**PUSH, "data": 15},
    "another type of numbers": {**PUSH, "packing": "half"},
    "numbers that say how many they are": {**PUSH, "packing": "int8"},
    "samples in another group's name": {**LEASE, "group": "b"},
    "an end in another group's name": {"kind": "leave", "group": "b"},
    "a beat in another group's name": {"kind": "group-heartbeat", "group": "b", "busy": True},
    "the last of all leases": {**LEASE, "sequence": 2**60},
    "no samples": {**LEASE, "size": -3},
    "rounds of nobody": {**RETUNE, "quorum": 0},
    "no steps": {**RETUNE, "local_steps": -1},
    "a view of nobody": {**HELLO, "ballots": [BALLOT]},
    "more peers than ranks": {**HELLO, "ballots": [{**BALLOT, "size": 1, "peers": [PEER, PEER]}]},
    "the last of all views": {**HELLO, "view": 2**60},
    "the last view that has a number": {**HELLO, "view": 2**48},
    "a vote in the last view that has a number": {**HELLO, "ballots": [{**BALLOT, "number": 2**48, "peers": [PEER]}]},
    "a view of 4,300 digits": {**HELLO, "view": 10**4299},
    "another's name": {**HELLO, "peer": {**PEER, "id": "rank0-a"}},
    "an unknown field": {**HELLO, "peer": {**PEER, "Rank": 1}},
    "a list for a table": {**HELLO, "peer": list(PEER.values())},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_honest_peer_says_ends_its_connection_and_changes_nothing(subject: Subject, name: str) -> None:
    content = HOSTILE[name]
    own = subject.call()
    own.send(json.dumps(content).encode(), bytes(content.get("data", 0)))
    with pytest.raises(ConnectionError):
        own.receive(timeout=20)
    own.close()
    subject.check()
