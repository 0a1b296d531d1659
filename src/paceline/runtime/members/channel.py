"""An authenticated connection between two processes of a job.

    listener -> caller     challenge    nonce_l
    caller   -> listener   response     nonce_c, HMAC(secret, "client" nonce_l nonce_c)
    listener -> caller     accepted     HMAC(secret, "server" nonce_c nonce_l)

A frame is the length of a JSON text in four bytes, the text, and the payload if the message has one. Framing and proof
are in this module only.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import secrets
import socket
import struct
import threading
from collections.abc import Callable
from typing import TypeVar

from paceline.runtime.protocol.codec import ProtocolError, decode_message, encode_message
from paceline.runtime.protocol.messages import Accepted, Challenge, Message, Response

__all__ = [
    "GREETING_TIMEOUT",
    "Channel",
    "Endpoint",
    "Refused",
    "accept_channel",
    "in_background",
    "open_channel",
    "serve_callers",
]

M = TypeVar("M", bound=Message)
Endpoint = tuple[str, int]
"""Address and port at which a process listens."""
MAX_TEXT = 64 << 20
"""Bytes of JSON text: the structure of a model's state, which a report holds, is far below."""
MAX_PAYLOAD = 1 << 34
MAX_GREETING = 1 << 10
"""Bytes of JSON text before the peer has proven anything: an unauthenticated peer cannot make this process allocate."""
GREETING_TIMEOUT = 5.0
"""Seconds for the handshake, and for the first message to a member, so that a peer that says nothing holds a thread for
this long only. Two round trips and two hashes take milliseconds; the rest is for a host that is busy."""
log = logging.getLogger("paceline.runtime")


class Refused(ConnectionError):
    """The peer does not hold the secret of this job."""


class Channel:
    """One authenticated connection; any thread may send, one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        # Messages are small and answered at once: Nagle's algorithm would hold each back for a round trip.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        # Heartbeats and the training loop send from different threads; the lock keeps the bytes of a frame together.
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message; raises ConnectionError if the peer is gone."""
        text, payload = encode_message(message)
        try:
            with self._sending:
                self._connection.sendall(struct.pack(">I", len(text)) + text)
                if payload:
                    self._connection.sendall(payload)
        except OSError as error:
            raise ConnectionError(f"peer is gone: {error}") from error

    def receive(self, *expected: type[M], limit: int = MAX_TEXT) -> M:
        """The next message; raises ConnectionError if the peer is gone or sends what was not expected."""
        (size,) = struct.unpack(">I", self._exactly(4))
        if size > limit:
            raise ProtocolError(f"the peer announced {size} bytes, at most {limit} are accepted")
        message = decode_message(self._exactly(size), self._payload)
        if not isinstance(message, expected):
            raise ProtocolError(f"the peer sent {message.kind!r}, expected {' or '.join(e.kind for e in expected)}")
        return message

    def answer(self, question: Message, reply: Message) -> None:
        """Send the answer to a message; it must be one that the protocol names for it."""
        assert reply.kind in question.answers, f"{reply.kind!r} does not answer {question.kind!r}"
        self.send(reply)

    def set_timeout(self, timeout: float | None) -> None:
        """How long one send or receive may take."""
        self._connection.settimeout(timeout)

    def close(self) -> None:
        """Close the connection; a thread that is receiving is woken."""
        # `close` alone does not wake a thread that is in `recv`; `shutdown` does.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _payload(self, size: int) -> bytes:
        if not 0 <= size <= MAX_PAYLOAD:
            raise ProtocolError(f"the peer announced a payload of {size} bytes, at most {MAX_PAYLOAD} are accepted")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._connection.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                raise ConnectionError(f"peer is gone: {error}") from error
            if not part:
                raise ConnectionError("peer closed the connection")
            data += part
        return bytes(data)


def open_channel(address: str, port: int, secret: bytes, *, timeout: float) -> Channel:
    """Connect to a peer; both sides prove that they hold the secret. The timeout holds for each part of that."""
    channel = Channel(socket.create_connection((address, port), timeout=timeout))
    try:
        theirs = channel.receive(Challenge, limit=MAX_GREETING).nonce
        ours = secrets.token_hex(16)
        channel.send(Response(ours, _proof(secret, "client", theirs, ours)))
        reply = channel.receive(Accepted, limit=MAX_GREETING)
        if not _equal(reply.proof, _proof(secret, "server", ours, theirs)):
            raise Refused(f"{address}:{port} does not hold the secret of this job")
    except OSError:
        channel.close()
        raise
    channel.set_timeout(None)
    return channel


def accept_channel(connection: socket.socket, secret: bytes) -> Channel:
    """Accept a caller that proves that it holds the secret; otherwise close the connection and say so in the log."""
    connection.settimeout(GREETING_TIMEOUT)
    channel, peer = Channel(connection), ("unknown", 0)
    try:
        peer = connection.getpeername()
        ours = secrets.token_hex(16)
        channel.send(Challenge(ours))
        reply = channel.receive(Response, limit=MAX_GREETING)
        # The caller proves first: a listener that proved first would sign nonces for unauthenticated peers.
        if not _equal(reply.proof, _proof(secret, "client", ours, reply.nonce)):
            raise Refused(f"{peer[0]}:{peer[1]} does not hold the secret of this job")
        channel.send(Accepted(_proof(secret, "server", reply.nonce, ours)))
    except OSError as error:
        log.warning("refused a connection from %s:%s: %s", peer[0], peer[1], error)
        channel.close()
        raise
    channel.set_timeout(None)
    return channel


def serve_callers(
    server: socket.socket, secret: bytes, serve: Callable[[Channel], object], running: Callable[[], bool]
) -> None:
    """Accept callers until the listener is closed; `serve` has each authenticated one for itself."""

    def greet(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it was refused, or its connection ended
            serve(accept_channel(connection, secret))

    with contextlib.suppress(OSError):
        while running():
            connection, _ = server.accept()
            # A thread for each caller: one that says nothing must not keep the others waiting.
            threading.Thread(target=greet, args=(connection,), daemon=True, name="paceline-caller").start()


def in_background(name: str, work: Callable[[], None], *, failed: Callable[[], None]) -> None:
    """Run it in a thread; if it raises, that is logged and `failed` is called, so that no thread ends unnoticed."""

    def run() -> None:
        try:
            work()
        except BaseException:
            log.exception("the thread %s failed", name)
            failed()

    threading.Thread(target=run, daemon=True, name=f"paceline-{name}").start()


def _proof(secret: bytes, side: str, first: str, second: str) -> str:
    return hmac.new(secret, f"{side} {first} {second}".encode(), hashlib.sha256).hexdigest()


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode(), expected.encode())
