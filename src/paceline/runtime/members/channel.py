"""Messages of a training job over the secure channel; every received message is validated."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from typing import TypeVar

from paceline.channel.frames import GREETING_TIMEOUT, IDLE_TIMEOUT, SecureConnection, open_connection
from paceline.channel.handshake import Login, Refused
from paceline.channel.listener import SecureListener
from paceline.runtime.protocol.codec import ProtocolError, decode_message, encode_message
from paceline.runtime.protocol.messages import Message, Role

__all__ = [
    "GREETING_TIMEOUT",
    "MAX_TEXT",
    "Channel",
    "Endpoint",
    "Login",
    "Refused",
    "in_background",
    "login_of",
    "message_listener",
    "open_channel",
]

M = TypeVar("M", bound=Message)
MAX_TEXT = 8 << 20
"""Bytes of the text of a message: eight views of 10,000 ranks. A process stands still while it parses one."""
FULL_PACKET = 2048
"""Bytes of a message that fills a packet on an Ethernet link."""
Endpoint = tuple[str, int]
"""Address and port at which a process listens."""
log = logging.getLogger("paceline.runtime")


class Channel:
    """One authenticated connection; any thread may send, one thread receives."""

    def __init__(self, connection: SecureConnection) -> None:
        self._connection = connection
        self._timeout = IDLE_TIMEOUT

    @property
    def peer(self) -> str:
        """The name with which the peer logged in."""
        return self._connection.peer

    def send(self, message: Message, *, filled: bool = False, hold: Callable[[], None] | None = None) -> None:
        """Send one message without waiting for the peer; raises ConnectionError if the connection is closed.

        A `filled` message is padded to a whole packet, so that it arrives only if large messages do. The last part of
        the message is sent when `hold` has returned.
        """
        text, data = encode_message(message)
        self._connection.send(text.ljust(FULL_PACKET) if filled else text, data, hold=hold)

    def receive(self, *expected: type[M]) -> M:
        """The next message; raises ConnectionError if the connection is closed or the message is not an expected
        one."""
        content = self._connection.receive(timeout=self._timeout, max_text=MAX_TEXT)
        try:
            message = decode_message(*content)
        except ProtocolError:
            raise
        except Exception as error:  # invalid data ends only the connection to this peer
            raise ProtocolError(f"the peer's message cannot be read: {error}") from error
        if not isinstance(message, expected):
            raise ProtocolError(f"the peer sent {message.kind!r}, expected {' or '.join(e.kind for e in expected)}")
        return message

    def answer(self, question: Message, reply: Message, *, hold: Callable[[], None] | None = None) -> None:
        """Send the answer to a message; the protocol must list it as an answer of that message."""
        assert reply.kind in question.answers, f"{reply.kind!r} does not answer {question.kind!r}"
        self.send(reply, hold=hold)

    def set_timeout(self, timeout: float | None) -> None:
        """Set how long `receive` waits for a message to begin; None for the idle timeout of the connection."""
        self._timeout = IDLE_TIMEOUT if timeout is None else timeout

    def detach(self) -> socket.socket:
        """The authenticated socket, for use without messages."""
        return self._connection.detach()

    def close(self) -> None:
        """Close the connection; a receiving thread returns with an error."""
        self._connection.close()


def login_of(secret: bytes, role: Role, name: str, *, session: str = "") -> Login:
    """The login of a process of a job."""
    return Login(secret, role.value, name, session)


def open_channel(address: str, port: int, login: Login, *, listener: Role = Role.MEMBER, timeout: float) -> Channel:
    """Connect to a process with this role; both sides prove that they have the secret of the job.

    The timeout covers the connection and the proof.
    """
    return Channel(open_connection(address, port, login, listener=listener.value, timeout=timeout))


def message_listener(
    server: socket.socket, login: Login, serve: Callable[[Channel], object], *, caller: Role
) -> SecureListener:
    """A listener for callers with one role; `serve` runs in a thread for each authenticated connection."""
    return SecureListener(server, login, lambda connection: serve(Channel(connection)), callers=(caller.value,))


def in_background(name: str, work: Callable[[], None], *, failed: Callable[[], None]) -> None:
    """Run `work` in a thread; if it raises, log the error and call `failed`, so that no thread ends unnoticed."""

    def run() -> None:
        try:
            work()
        except BaseException:
            log.exception("the thread %s failed", name)
            failed()

    threading.Thread(target=run, daemon=True, name=f"paceline-{name}").start()
