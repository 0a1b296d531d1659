"""The connection between a member and its leader, on either side.

Some network paths deliver short packets and drop full ones, because of a wrong MTU or a middlebox. Logins and short
heartbeats would pass, while an exchange of gradients would wait for ever. Therefore some heartbeats fill a packet. TCP
delivers in order, so a dropped heartbeat delays all that follow, and the heartbeat timeout passes.

A reset of the connection has two possible causes: a firewall, or the kernel of a killed process that had unread data. A
second connection without messages distinguishes them: it has no unread data, so the kernel of a killed process ends it
with FIN.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct

from paceline.channel.frames import PeerClosed
from paceline.runtime.members.channel import Channel, M
from paceline.runtime.protocol.messages import Heartbeat, LeaderHeartbeat, Message, Welcome

__all__ = ["MemberLink", "SilentConnection"]

FILLED = 4
"""One in this many heartbeats fills a packet: three per heartbeat timeout, two kilobytes per second."""


FIN_TIMEOUT = 0.5
"""Seconds to wait for FIN on the second connection after a reset. It must be below the heartbeat timeout, because the
group waits meanwhile."""


class SilentConnection:
    """A connection without messages; a live process always resets it, so FIN means that the process has ended."""

    def __init__(self, channel: Channel) -> None:
        self._socket = channel.detach()

    def ends(self, timeout: float) -> bool:
        """Whether FIN arrives within the timeout, which means that the peer's process has ended."""
        waiter = select.poll()
        with contextlib.suppress(OSError, ValueError):
            waiter.register(self._socket, select.POLLIN)
            return bool(waiter.poll(timeout * 1000)) and not self._socket.recv(1, socket.MSG_PEEK)
        return False

    def close(self) -> None:
        """Reset the connection."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


class MemberLink:
    """A link that sends without waiting; the receiving thread detects a closed connection."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._beats = channel, 0
        self._lifeline: SilentConnection | None = None
        self.closed = False
        """Whether this side closed the connection."""

    def send(self, message: Message) -> None:
        """Send a message; an error is ignored, because the receiving thread detects it."""
        beats = isinstance(message, Heartbeat | LeaderHeartbeat)
        filled = isinstance(message, Welcome) or (beats and self._beats % FILLED == 0)
        self._beats += beats
        with contextlib.suppress(ConnectionError):
            self._channel.send(message, filled=filled)

    def receive(self, *expected: type[M]) -> M:
        """The next message; raises ConnectionError when the connection is closed."""
        return self._channel.receive(*expected)

    def hold(self, lifeline: SilentConnection | None) -> None:
        """Keep a silent connection open for as long as this link."""
        old, self._lifeline = self._lifeline, lifeline
        if old is not None:
            old.close()
        if self.closed and lifeline is not None:
            lifeline.close()

    def ended(self, error: ConnectionError) -> bool:
        """Whether the peer's process has ended, after `receive` raised this error."""
        if self.closed or isinstance(error, PeerClosed):
            return not self.closed
        return self._lifeline is not None and self._lifeline.ends(FIN_TIMEOUT)

    def close(self, last: Message | None = None) -> None:
        """Close the connection after an optional last message."""
        self.closed = True
        if last is not None:
            self.send(last)
        self._channel.close()
        if self._lifeline is not None:
            self._lifeline.close()
