"""A connection between two peers of a job: both prove that they hold the secret, then exchange JSON values.

    server -> client   nonce_s
    client -> server   nonce_c, HMAC(secret, "client" nonce_s nonce_c)
    server -> client   HMAC(secret, "server" nonce_c nonce_s)

A frame is its length in four bytes and JSON text; nothing that arrives is ever executed or unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import logging
import secrets
import socket
import struct
import threading
from typing import Any

__all__ = ["Channel", "Refused", "answer", "call"]

Message = dict[str, Any]
MAX_FRAME = 64 << 20
MAX_PAYLOAD = 1 << 34
MAX_GREETING = 1 << 10
GREETING_TIMEOUT = 5.0
log = logging.getLogger("paceline.runtime")


class Refused(ConnectionError):
    """The peer does not hold the secret of this job."""


class Channel:
    """One authenticated connection; any thread may send, one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, message: Message, payload: bytes = b"") -> None:
        """Send one value, and bytes after it; raises ConnectionError if the peer is gone."""
        if payload:
            message = {**message, "payload": len(payload)}
        data = json.dumps(message, separators=(",", ":")).encode()
        try:
            with self._sending:
                self._connection.sendall(struct.pack(">I", len(data)) + data)
                if payload:
                    self._connection.sendall(payload)
        except OSError as error:
            raise ConnectionError(f"peer is gone: {error}") from error

    def receive(self, *, limit: int = MAX_FRAME) -> Message:
        """The next value; raises ConnectionError if the peer is gone or talks nonsense."""
        (size,) = struct.unpack(">I", self._exactly(4))
        if size > limit:
            raise ConnectionError(f"peer announced {size} bytes, at most {limit} are taken")
        try:
            message = json.loads(self._exactly(size))
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise ConnectionError("peer sent what is not JSON") from error
        if not isinstance(message, dict):
            raise ConnectionError("peer sent a value that is no table")
        return message

    def receive_payload(self, message: Message, *, limit: int = MAX_PAYLOAD) -> bytes:
        """The bytes that follow a value which announces them."""
        size = message.get("payload", 0)
        if not isinstance(size, int) or not 0 <= size <= limit:
            raise ConnectionError(f"peer announced {size!r} bytes, at most {limit} are taken")
        return self._exactly(size)

    def settle(self, timeout: float | None) -> None:
        """How long one send or receive may take."""
        self._connection.settimeout(timeout)

    def close(self) -> None:
        """Hang up; a thread that is receiving is woken."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._connection.recv(min(size - len(data), 1 << 20))
            except OSError as error:
                raise ConnectionError(f"peer is gone: {error}") from error
            if not part:
                raise ConnectionError("peer hung up")
            data += part
        return bytes(data)


def call(address: str, port: int, secret: bytes, *, timeout: float) -> Channel:
    """Connect to a peer and prove who we are; it must prove the same."""
    channel = Channel(socket.create_connection((address, port), timeout=timeout))
    try:
        theirs = str(channel.receive(limit=MAX_GREETING)["nonce"])
        ours = secrets.token_hex(16)
        channel.send({"nonce": ours, "proof": _proof(secret, "client", theirs, ours)})
        reply = channel.receive(limit=MAX_GREETING)
        if not _equal(reply.get("proof"), _proof(secret, "server", ours, theirs)):
            raise Refused(f"{address}:{port} does not hold the secret of this job")
    except (KeyError, ConnectionError, OSError):
        channel.close()
        raise
    channel.settle(None)
    return channel


def answer(connection: socket.socket, secret: bytes) -> Channel:
    """Let a caller in if it proves that it holds the secret; otherwise hang up and say so in the log."""
    connection.settimeout(GREETING_TIMEOUT)
    channel, peer = Channel(connection), ("somebody", "gone")
    try:
        peer = connection.getpeername()
        ours = secrets.token_hex(16)
        channel.send({"nonce": ours})
        reply = channel.receive(limit=MAX_GREETING)
        theirs = str(reply.get("nonce"))
        if not _equal(reply.get("proof"), _proof(secret, "client", ours, theirs)):
            raise Refused(f"{peer[0]}:{peer[1]} does not hold the secret of this job")
        channel.send({"proof": _proof(secret, "server", theirs, ours)})
    except OSError as error:
        log.warning("refused a connection from %s:%s: %s", peer[0], peer[1], error)
        channel.close()
        raise
    channel.settle(None)
    return channel


def _proof(secret: bytes, side: str, first: str, second: str) -> str:
    return hmac.new(secret, f"{side} {first} {second}".encode(), hashlib.sha256).hexdigest()


def _equal(given: object, expected: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
