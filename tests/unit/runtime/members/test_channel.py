"""Authentication and framing over real sockets."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from paceline.runtime.members.channel import Channel, Refused, accept_channel, open_channel
from paceline.runtime.protocol.codec import ProtocolError
from paceline.runtime.protocol.messages import Accepted, Challenge, Heartbeat, LeadershipQuery, Push, Response

SECRET = b"the secret of this job"


class Listener:
    """A server that answers one caller at a time."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.let_in: list[Channel] = []
        self.turned_away: list[Exception] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            try:
                self.let_in.append(accept_channel(connection, SECRET))
            except ConnectionError as error:
                self.turned_away.append(error)

    def wait_until_turned_away(self) -> None:
        deadline = time.monotonic() + 5
        while not self.turned_away and time.monotonic() < deadline:
            time.sleep(0.01)

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        for channel in self.let_in:
            channel.close()
        self._thread.join(5)


@pytest.fixture
def listener() -> Iterator[Listener]:
    opened = Listener()
    yield opened
    opened.close()


def test_peers_with_the_secret_exchange_values_and_bytes(listener: Listener) -> None:
    mine = open_channel("127.0.0.1", listener.port, SECRET, timeout=5)
    sent = Push("a", sequence=3, base=2, samples=10, packing="none", data=b"\x00\x01" * 1000)
    mine.send(sent)
    while not listener.let_in:
        time.sleep(0.01)
    assert listener.let_in[0].receive(Push) == sent
    mine.close()


def test_another_secret_is_refused_and_logged(listener: Listener, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="paceline.runtime"):
        with pytest.raises(ConnectionError):
            open_channel("127.0.0.1", listener.port, b"a guess", timeout=5)
        listener.wait_until_turned_away()
    assert isinstance(listener.turned_away[0], Refused)
    assert "refused a connection from 127.0.0.1" in caplog.text


def test_a_server_without_the_secret_is_refused() -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def pretend() -> None:
        connection, _ = server.accept()
        with connection:
            channel = Channel(connection)
            channel.send(Challenge("00"))
            channel.receive(Response)
            channel.send(Accepted("0" * 64))

    thread = threading.Thread(target=pretend, daemon=True)
    thread.start()
    with pytest.raises(Refused, match="does not hold the secret"):
        open_channel("127.0.0.1", server.getsockname()[1], SECRET, timeout=5)
    thread.join(5)
    server.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        struct.pack(">I", 2**31),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 3) + b"\xff{}",
    ],
    ids=["http", "huge", "no-table", "no-text"],
)
def test_garbage_is_turned_away(listener: Listener, garbage: bytes) -> None:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", listener.port), timeout=5) as stranger,
    ):
        stranger.sendall(garbage)
        stranger.shutdown(socket.SHUT_WR)
        while stranger.recv(1000):
            pass
    listener.wait_until_turned_away()
    assert listener.turned_away
    assert not listener.let_in


@pytest.mark.parametrize(
    "text",
    ['{"kind":"no-such-kind"}', '{"kind":"leadership-query","more":1}', '{"kind":"heartbeat"}', "[]"],
    ids=["unknown", "wrong-field", "unexpected", "no-object"],
)
def test_a_wrong_message_of_an_authenticated_peer_ends_its_connection_only(listener: Listener, text: str) -> None:
    wrong, right = (open_channel("127.0.0.1", listener.port, SECRET, timeout=5) for _ in range(2))
    while len(listener.let_in) < 2:
        time.sleep(0.01)
    wrong._connection.sendall(struct.pack(">I", len(text)) + text.encode())
    right.send(LeadershipQuery())
    with pytest.raises(ProtocolError):
        listener.let_in[0].receive(LeadershipQuery)
    assert listener.let_in[1].receive(LeadershipQuery) == LeadershipQuery()
    for channel in (wrong, right):
        channel.close()


def test_an_answer_that_the_protocol_does_not_name_is_not_sent(listener: Listener) -> None:
    channel = open_channel("127.0.0.1", listener.port, SECRET, timeout=5)
    with pytest.raises(AssertionError, match="does not answer"):
        channel.answer(LeadershipQuery(), Heartbeat())
    channel.close()


@pytest.mark.parametrize("size", [-1, 1 << 40], ids=["negative", "too-large"])
def test_a_payload_of_an_impossible_size_is_refused(listener: Listener, size: int) -> None:
    channel = open_channel("127.0.0.1", listener.port, SECRET, timeout=5)
    while not listener.let_in:
        time.sleep(0.01)
    fields = {"group": "a", "sequence": 1, "base": 0, "samples": 1, "packing": "none", "data": size}
    text = json.dumps({"kind": "push", **fields}).encode()
    channel._connection.sendall(struct.pack(">I", len(text)) + text)
    with pytest.raises(ProtocolError, match="payload"):
        listener.let_in[0].receive(Push)
    channel.close()
