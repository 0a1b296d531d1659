"""The connection between a member and its leader, as one of them holds it."""

from __future__ import annotations

import contextlib

from paceline.runtime.members.channel import Channel, M
from paceline.runtime.protocol.messages import Message

__all__ = ["MemberLink"]


class MemberLink:
    """Sends without waiting; a peer that is gone is noticed by whoever receives."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.closed = False
        """Whether this side ended the connection."""

    def send(self, message: Message) -> None:
        """Send a message, if the peer is there."""
        with contextlib.suppress(ConnectionError):
            self._channel.send(message)

    def receive(self, *expected: type[M]) -> M:
        """The next message; raises ConnectionError if there is none any more."""
        return self._channel.receive(*expected)

    def close(self, last: Message | None = None) -> None:
        """End the connection, after a last message."""
        self.closed = True
        if last is not None:
            self.send(last)
        self._channel.close()
