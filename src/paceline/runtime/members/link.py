"""The connection between a member and its leader, as one of them holds it.

A path may pass short packets and drop whole ones: a wrong MTU, a middlebox. Logins and heartbeats would pass it, while
an exchange of gradients would wait for ever. So some heartbeats are as long as a packet. A connection delivers in
order: one that is dropped holds up all that follow, and the peer is taken for silent, which it is.

A firewall resets connections, and so does the kernel of a process that was killed before it had read everything. A
second connection, on which nothing is said, tells the two apart: there the kernel has nothing unread, and says FIN.
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
"""One heartbeat in this number is filled: three in a heartbeat timeout, and two kilobytes a second."""


LAST_WORD = 0.5
"""Seconds between a reset of the connection and the end of the silent one, which the peer's kernel closes next. Below
the heartbeat timeout, as the group waits meanwhile."""


class SilentConnection:
    """A connection on which nothing is said; a process that lives never ends it in order, but resets it."""

    def __init__(self, channel: Channel) -> None:
        self._socket = channel.detach()

    def ends(self, timeout: float) -> bool:
        """Whether the peer's kernel ends it in order within the timeout: then the process is dead."""
        waiter = select.poll()
        with contextlib.suppress(OSError, ValueError):
            waiter.register(self._socket, select.POLLIN)
            return bool(waiter.poll(timeout * 1000)) and not self._socket.recv(1, socket.MSG_PEEK)
        return False

    def close(self) -> None:
        """Reset it."""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()


class MemberLink:
    """Sends without waiting; the receiving thread detects a disconnected peer."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._beats = channel, 0
        self._lifeline: SilentConnection | None = None
        self.closed = False
        """Whether this side ended the connection."""

    def send(self, message: Message) -> None:
        """Send a message, if the peer is there."""
        beats = isinstance(message, Heartbeat | LeaderHeartbeat)
        filled = isinstance(message, Welcome) or (beats and self._beats % FILLED == 0)
        self._beats += beats
        with contextlib.suppress(ConnectionError):
            self._channel.send(message, filled=filled)

    def receive(self, *expected: type[M]) -> M:
        """The next message; raises ConnectionError if there is none any more."""
        return self._channel.receive(*expected)

    def hold(self, lifeline: SilentConnection | None) -> None:
        """Keep the silent connection for as long as this one."""
        old, self._lifeline = self._lifeline, lifeline
        if old is not None:
            old.close()
        if self.closed and lifeline is not None:
            lifeline.close()

    def ended(self, error: ConnectionError) -> bool:
        """Whether the peer's process ended, after `receive` raised this."""
        if self.closed or isinstance(error, PeerClosed):
            return not self.closed
        return self._lifeline is not None and self._lifeline.ends(LAST_WORD)

    def close(self, last: Message | None = None) -> None:
        """End the connection, after a last message."""
        self.closed = True
        if last is not None:
            self.send(last)
        self._channel.close()
        if self._lifeline is not None:
            self._lifeline.close()
