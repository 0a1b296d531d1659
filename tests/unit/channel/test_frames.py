"""Frames and handshake over real sockets: what is changed, repeated, relayed or reflected ends a connection."""

from __future__ import annotations

import ast
import contextlib
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.channel import frames
from paceline.channel.frames import (
    PeerClosed,
    SecureConnection,
    accept_connection,
    call_connected,
    open_connection,
)
from paceline.channel.handshake import VERSION, Keys, Login, Refused
from paceline.channel.plain import MAX_DEPTH, UnacceptableText, load_plain

SECRET = b"the secret of this job"
CALLER, LISTENER = Login(SECRET, "caller", "me"), Login(SECRET, "listener", "you")


def log_in(caller: Login = CALLER, listener: Login = LISTENER, pair: Any = None) -> tuple[Any, Any]:
    """What the handshake gives each side: a connection, or the error."""
    mine, yours = pair or socket.socketpair()
    found: list[Any] = []

    def accept() -> None:
        try:
            found.append(accept_connection(yours, listener, ("caller",), timeout=5))
        except ConnectionError as error:
            found.append(error)

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        ours: Any = call_connected(mine, caller, listener="listener", timeout=5)
    except ConnectionError as error:
        ours = error
    thread.join(10)
    OPEN.extend(side for side in (ours, found[0]) if isinstance(side, SecureConnection))
    return ours, found[0]


OPEN: list[Any] = []
"""What a test leaves open."""


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.fixture
def pair() -> tuple[SecureConnection, SecureConnection]:
    return log_in()


def test_both_sides_know_each_other_and_exchange_frames(pair: tuple[SecureConnection, SecureConnection]) -> None:
    mine, yours = pair
    assert (mine.peer, yours.peer) == ("you", "me")
    sizes = (0, 1, 100, 1 << 16, (1 << 16) + 1, 3_000_000)
    sent = [(bytes([n]) * 7, os.urandom(size)) for n, size in enumerate(sizes)]
    for text, data in sent:
        mine.send(text, data)
        yours.send(text)
    assert [yours.receive(timeout=5) for _ in sent] == sent
    assert [mine.receive(timeout=5) for _ in sent] == [(text, b"") for text, _ in sent]


@pytest.mark.parametrize(
    ("caller", "listener"),
    [
        (Login(b"a guess at the secret", "caller"), LISTENER),
        (CALLER, Login(b"a guess at the secret", "listener")),
        (Login(SECRET, "other"), LISTENER),
        (CALLER, Login(SECRET, "other")),
        (Login(SECRET, "caller", session="job 2"), LISTENER),
        (CALLER, Login(SECRET, "listener", session="job 2")),
    ],
    ids=[
        "callers-secret",
        "listeners-secret",
        "callers-role",
        "listeners-role",
        "callers-session",
        "listeners-session",
    ],
)
def test_who_is_not_who_it_should_be_is_refused_by_both(caller: Login, listener: Login) -> None:
    for side in log_in(caller, listener):
        assert isinstance(side, ConnectionError)


def test_each_connection_has_keys_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Keys] = []
    real = frames.FrameMacs.__init__
    monkeypatch.setattr(frames.FrameMacs, "__init__", lambda self, key: (seen.append(key), real(self, key))[1])
    for _ in range(2):
        log_in()
    assert len(seen) == 8
    assert len(set(seen)) == 4, "two directions of two connections"


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_another_version_is_refused_and_named(version: int) -> None:
    for act in (
        lambda end: accept_connection(end, LISTENER, ("caller",), timeout=5),
        lambda end: call_connected(end, CALLER, listener="listener", timeout=5),
    ):
        mine, yours = socket.socketpair()
        mine.sendall(b"PACELINE" + version.to_bytes(2, "big") + bytes(32))
        with pytest.raises(Refused, match=f"version {version} of the protocol, this process version {VERSION}"):
            act(yours)
        mine.close()


def test_a_proof_that_is_relayed_to_another_listener_is_refused() -> None:
    """Finding 1: who listens on a dead rank's port passes the caller's proof on to a living listener."""
    dead, alive = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    refusals: list[Exception] = []

    def listen() -> None:
        connection, _ = alive.accept()
        try:
            accept_connection(connection, LISTENER, ("caller",), timeout=5)
        except ConnectionError as error:
            refusals.append(error)

    def relay() -> None:
        called, _ = dead.accept()
        with called, socket.create_connection(alive.getsockname()) as onward, contextlib.suppress(OSError):
            called.sendall(onward.recv(4096))
            onward.sendall(called.recv(4096))
            called.sendall(onward.recv(4096))

    threads = [threading.Thread(target=work, daemon=True) for work in (listen, relay)]
    for thread in threads:
        thread.start()
    with pytest.raises(ConnectionError):
        open_connection(*dead.getsockname(), CALLER, listener="listener", timeout=5)
    for thread in threads:
        thread.join(10)
    assert "called 'listener'" in str(refusals[0])
    for server in (dead, alive):
        server.close()


def test_a_proof_that_is_reflected_is_refused() -> None:
    """The caller's own proof, or nothing but its greeting sent back, does not pass for the listener's."""
    for answer in (lambda claim: b"\x00\x00" + claim[-32:], lambda claim: claim):
        mine, attacker = socket.socketpair()
        attacker.sendall(b"PACELINE" + VERSION.to_bytes(2, "big") + bytes(32))

        def reflect(attacker: socket.socket = attacker, answer: Callable[[bytes], bytes] = answer) -> None:
            attacker.sendall(answer(attacker.recv(4096)))

        thread = threading.Thread(target=reflect)
        thread.start()
        with pytest.raises(ConnectionError):
            call_connected(mine, CALLER, listener="listener", timeout=5)
        thread.join(5)
        attacker.close()


class Tap:
    """Stands between two connections and may change what passes."""

    def __init__(self, change: Callable[[int, bytes], list[bytes]]) -> None:
        left, mine = socket.socketpair()
        yours, right = socket.socketpair()
        self.ends = left, right
        OPEN.extend((mine, yours))
        self._ways = [(mine, yours), (yours, mine)]
        self.armed = threading.Event()

        def carry(number: int, source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    for part in change(number, data) if self.armed.is_set() else [data]:
                        target.sendall(part)
                target.shutdown(socket.SHUT_RDWR)

        for number, way in enumerate(self._ways):
            threading.Thread(target=carry, args=(number, *way), daemon=True).start()


def flipped(at: int) -> Callable[[int, bytes], list[bytes]]:
    def change(way: int, data: bytes) -> list[bytes]:
        changed = bytearray(data)
        changed[at] ^= 1
        return [bytes(changed)]

    return change


TAPPED = {
    "flipped-size": flipped(2),
    "flipped-mac-of-head": flipped(14),
    "flipped-text": flipped(30),
    "flipped-mac": flipped(-1),
    "repeated": lambda way, data: [data, data],
    "left-out": lambda way, data: [],
    "cut": lambda way, data: [data[:-3]],
    "injected": lambda way, data: [b"\x00" * 60, data],
}


@pytest.mark.parametrize("name", TAPPED)
@pytest.mark.parametrize("back", [False, True], ids=["forth", "back"])
def test_what_is_changed_on_its_way_ends_the_connection(name: str, back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 5: integrity after the handshake, in both directions."""
    monkeypatch.setattr(frames, "FRAME_TIMEOUT", 0.5)
    tap = Tap(TAPPED[name])
    mine, yours = log_in(pair=tap.ends)
    sender, receiver = (yours, mine) if back else (mine, yours)
    sender.send(b'{"kind":"before"}')
    assert receiver.receive(timeout=5)[0] == b'{"kind":"before"}'
    tap.armed.set()
    sender.send(b'{"kind":"one"}')
    time.sleep(0.1)
    tap.armed.clear()
    sender.send(b'{"kind":"two"}')
    if name == "repeated":
        assert receiver.receive(timeout=1)[0] == b'{"kind":"one"}'
    with pytest.raises(ConnectionError):
        receiver.receive(timeout=1)
    with pytest.raises(ConnectionError):
        receiver.send(b"")


def test_a_frame_sent_back_is_refused() -> None:
    mine, yours = log_in()
    sealed = b"".join(mine._sealed(b"text", b""))
    yours._connection.send(sealed)
    with pytest.raises(ConnectionError, match="changed, repeated or left out"):
        mine.receive(timeout=5)


@pytest.mark.parametrize("sends", [False, True])
@pytest.mark.parametrize(
    ("address", "resets", "ended"),
    [("127.0.0.1", False, True), ("127.0.0.1", True, True), ("127.0.0.2", False, True), ("127.0.0.2", True, False)],
)
def test_a_reset_of_the_network_is_no_end_of_the_peer(address: str, resets: bool, ended: bool, sends: bool) -> None:
    """A firewall that rejects packets resets connections of processes that live: both parts would go on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = socket.create_connection(server.getsockname(), source_address=(address, 0))
        yours = server.accept()[0]
    _, listener = log_in(pair=(mine, yours))
    if resets:
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    mine.close()
    if sends:
        with contextlib.suppress(ConnectionError):
            for _ in range(10):
                listener.send(b"heartbeat")
                time.sleep(0.01)
    with pytest.raises(ConnectionError) as error:
        listener.receive(timeout=5)
    assert isinstance(error.value, PeerClosed) is ended


def test_sending_never_waits_for_a_peer_that_reads_nothing(pair: tuple[SecureConnection, SecureConnection]) -> None:
    """Finding 7: a large report to a cut link must not hold up heartbeats, which use the same connection."""
    mine, yours = pair
    mine.send(b"report", bytes(50_000_000))
    for _ in range(100):
        mine.send(b"heartbeat")
    assert not mine.wait_sent(0.1)
    assert len(yours.receive(timeout=60)[1]) == 50_000_000, "nothing was read before all was sent: it did not wait"
    assert {yours.receive(timeout=60)[0] for _ in range(100)} == {b"heartbeat"}
    assert mine.wait_sent(5)


@pytest.mark.parametrize("size", [0, 100, 1 << 16, 300_000])
def test_a_frame_on_hold_is_none_until_it_may_be_told(
    pair: tuple[SecureConnection, SecureConnection], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    mine, yours = pair
    held: list[int] = []
    mine.send(b"text", bytes(size), hold=lambda: held.append(size))
    assert held == [size]
    assert yours.receive(timeout=5) == (b"text", bytes(size))
    monkeypatch.setattr(frames, "_allowed", lambda size: 0.1)

    def hold() -> None:
        with pytest.raises(ConnectionError, match="sent nothing, or too little"):
            yours.receive(timeout=0.1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mine.send(b"text", bytes(size), hold=hold)
    assert mine.closed, "what comes next would be taken for the rest of that frame"


def test_a_peer_that_takes_nothing_for_too_long_ends_the_connection(
    pair: tuple[SecureConnection, SecureConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "FRAME_TIMEOUT", 0.2)
    monkeypatch.setattr(frames, "SLOWEST_RATE", 1 << 40)
    mine, _ = pair
    with contextlib.suppress(ConnectionError):  # on a busy machine it is over before all is sealed
        mine.send(b"report", bytes(50_000_000))
    deadline = time.monotonic() + 10
    while not mine.closed and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(ConnectionError, match="takes too little"):
        mine.send(b"heartbeat")


def test_what_is_sent_later_does_not_prolong_the_patience_with_a_peer_that_takes_nothing(
    pair: tuple[SecureConnection, SecureConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, _ = pair
    given_up: list[bool] = []

    def wait(event: int, deadline: float) -> bool:
        given_up.append(mine.closed)
        mine._queue.clear()
        return True

    monkeypatch.setattr(mine, "_drain", lambda: not mine._queue)
    monkeypatch.setattr(mine, "_poll", wait)
    now = time.monotonic()
    mine._queue.extend([(memoryview(b"report"), now - 1.0), (memoryview(b"heartbeat"), now + 3600.0)])
    mine._write_all()
    assert given_up == [True]


def test_a_frame_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_TIMEOUT", 0.3)
    mine, yours = log_in()
    sealed = b"".join(mine._sealed(b"text" * 100, b""))

    def drip() -> None:
        with contextlib.suppress(OSError):
            for number in range(len(sealed)):
                mine._connection.send(sealed[number : number + 1])
                time.sleep(0.05)

    threading.Thread(target=drip, daemon=True).start()
    with pytest.raises(ConnectionError, match="too little"):
        yours.receive(timeout=5)
    mine.close()


def test_silence_and_size_are_bounded(pair: tuple[SecureConnection, SecureConnection]) -> None:
    mine, yours = pair
    mine.send(b"x" * 100)
    with pytest.raises(ConnectionError, match="too much"):
        yours.receive(timeout=5, max_text=99)
    with pytest.raises(ConnectionError):
        mine.receive(timeout=5)
    for text, data, bounds in ((b"", bytes(100), {"max_data": 99}), (b"x", b"", {"max_text": 0})):
        mine, yours = log_in()
        mine.send(text, data)
        with pytest.raises(ConnectionError, match="too much"):
            yours.receive(timeout=5, **bounds)
    mine, yours = log_in()
    mine.send(b"x" * 99, bytes(100))
    assert yours.receive(timeout=5, max_text=99, max_data=100) == (b"x" * 99, bytes(100))
    mine.send(b"1", b"data")
    with pytest.raises(ConnectionError, match="too much"):  # plain values carry no data
        yours.receive_plain(timeout=5)
    silent, _ = log_in()
    with pytest.raises(ConnectionError, match="before the deadline"):
        silent.receive(timeout=0.05)


def test_closing_wakes_who_receives_and_frees_the_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    mine, yours = log_in()
    woken: list[Exception] = []

    def receive() -> None:
        try:
            mine.receive(timeout=60)
        except ConnectionError as error:
            woken.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    time.sleep(0.1)
    mine.close()
    thread.join(5)
    yours.close()
    assert woken
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 1024,
        b"[" * 100_000,
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b'"\\ud800"',
        b'{"\\udfff":1}',
        b'"\xed\xa0\x80"',
        "[1]".encode("utf-16"),
        b"\xff",
        b"",
    ],
)
def test_json_that_no_honest_peer_sends(text: bytes) -> None:
    with pytest.raises(UnacceptableText):
        load_plain(text)


def test_json_within_the_bounds() -> None:
    deepest = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert load_plain(deepest) is not None
    assert load_plain('{"a": ["\\ud83d\\ude00", "ä", 1.5, null]}'.encode()) == {"a": ["😀", "ä", 1.5, None]}


@pytest.mark.parametrize("secret", [SECRET, b"another secret"])
def test_proofs_and_frames_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, secret: bytes) -> None:
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or compare(a, b))
    ours, theirs = log_in(Login(secret, "caller", "me"))
    if secret != SECRET:
        assert compared == [(32, 32)], "the caller's proof, and nothing is signed for a stranger"
        return
    assert compared == [(32, 32), (32, 32)], "the caller's proof, then the listener's"
    ours.send(b'{"a":1}', b"data")
    theirs.receive(timeout=5)
    assert compared[2:] == [(16, 16), (16, 16)], "the head of a frame, then its body"


def test_the_channel_evaluates_no_union_of_types() -> None:
    """Measured processes and agents run it under Python 3.9, where `A | B` of two types raises."""
    folder = Path(frames.__file__).parent
    for path in [*folder.glob("*.py"), *(folder.parent / "bench" / "frameworks").glob("rendezvous.py")]:
        calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
        tests = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id.startswith("is")]
        unions = [node.lineno for node in tests for given in node.args if isinstance(given, ast.BinOp)]
        assert not unions, f"{path}: lines {unions}"


def test_what_waits_is_counted_by_the_byte(pair: tuple[SecureConnection, SecureConnection]) -> None:
    pair[0].send(b"", bytes(8_000_000))
    with pair[0]._lock:
        waiting = sum(len(part) for part, _ in pair[0]._queue)
        assert 0 < waiting < 8_000_000
        assert pair[0]._queued == waiting


def test_frames_of_two_threads_arrive_whole(pair: tuple[SecureConnection, SecureConnection]) -> None:
    holds = [threading.Event(), threading.Event()]
    senders = [threading.Thread(target=pair[0].send, args=(name, b""), kwargs={"hold": hold.wait})
               for name, hold in zip((b"one", b"two"), holds, strict=True)]  # fmt: skip
    for sender in senders:
        sender.start()
        time.sleep(0.1)
    holds[1].set()
    time.sleep(0.1)
    holds[0].set()
    assert [pair[1].receive()[0] for _ in senders] == [b"one", b"two"], "the second frame waits for the first"
    for sender in senders:
        sender.join()


def test_more_than_a_slow_peer_may_leave_waiting_ends_the_connection(
    pair: tuple[SecureConnection, SecureConnection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_QUEUED", 10_000_000)
    pair[0].send(b"", bytes(8_000_000))
    with pytest.raises(ConnectionError, match="reads nothing: "):
        pair[0].send(b"", bytes(8_000_000))
    assert pair[0].closed
