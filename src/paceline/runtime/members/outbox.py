"""What is to be sent over a channel: whoever has something to say never waits for a peer that does not read."""

from __future__ import annotations

import queue
import threading

from paceline.runtime.members.channel import Channel
from paceline.runtime.protocol.messages import Message

__all__ = ["Outbox"]

LONGEST = 10_000
"""Messages that wait: a peer that reads so little is gone."""
LAST_WORD = 0.2
"""Seconds for the last message to leave before the channel is closed."""


class Outbox:
    """Sends messages in order from a thread of its own; one that cannot be sent closes the channel."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.closed = False
        """Whether this side ended the connection."""
        self._waiting: queue.Queue[Message | None] = queue.Queue(LONGEST)
        self._busy = False
        self._thread = threading.Thread(target=self._run, daemon=True, name="paceline-outbox")
        self._thread.start()

    def put(self, message: Message) -> None:
        """Send a message when those before it are sent."""
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self.channel.close()

    def beat(self, message: Message) -> None:
        """Send a heartbeat, unless something else is under way, which shows as much that this process is alive."""
        if self._waiting.empty() and not self._busy:
            self.put(message)

    def close(self, last: Message | None = None) -> None:
        """Close the channel after what waits and a last message, or after a moment."""
        self.closed = True
        for item in (*([last] if last is not None else []), None):
            try:
                self._waiting.put_nowait(item)
            except queue.Full:
                self.channel.close()
        threading.Thread(target=self._end, daemon=True, name="paceline-outbox-end").start()

    def _end(self) -> None:
        self._thread.join(LAST_WORD)
        self.channel.close()

    def _run(self) -> None:
        while (message := self._waiting.get()) is not None:
            self._busy = True
            try:
                self.channel.send(message)
            except ConnectionError:
                break
            finally:
                self._busy = False
        self.channel.close()
