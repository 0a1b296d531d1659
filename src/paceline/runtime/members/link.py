"""The connection between a member and its leader, as one of them holds it.

A path may pass short packets and drop whole ones: a wrong MTU, a middlebox. Logins and heartbeats would pass it, while
an exchange of gradients would wait for ever. So some heartbeats are as long as a packet. A connection delivers in
order: one that is dropped holds up all that follow, and the peer is taken for silent, which it is.
"""

from __future__ import annotations

import contextlib

from paceline.runtime.members.channel import Channel, M
from paceline.runtime.protocol.messages import Heartbeat, LeaderHeartbeat, Message, Welcome

__all__ = ["MemberLink"]

FILLED = 4
"""One heartbeat in this number is filled: three in a heartbeat timeout, and two kilobytes a second."""


class MemberLink:
    """Sends without waiting; the receiving thread detects a disconnected peer."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._beats = channel, 0
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

    def close(self, last: Message | None = None) -> None:
        """End the connection, after a last message."""
        self.closed = True
        if last is not None:
            self.send(last)
        self._channel.close()
