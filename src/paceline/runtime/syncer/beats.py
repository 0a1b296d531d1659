"""Signs of life between a group and the shards, apart from the exchanges: who is silent is gone, who is slow is not."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

from paceline.runtime.members.channel import Channel, call

__all__ = ["Beats"]

EVERY = 0.1
"""Seconds between two signs of life."""
ANSWER = 2.0
"""Seconds within which a shard answers one."""
DOUBT = 0.3
"""Seconds without an answer after which a group asks whether it still counts."""
UNHEARD = 20.0
"""Seconds after which a shard that does not answer is cut off: what was asked of it has to be asked again."""


class Beats:
    """Beats to every shard from construction until `stop`."""

    def __init__(
        self, places: Sequence[tuple[str, int]], secret: bytes, *, group: str, cut_off: Callable[[int], None]
    ) -> None:
        """`cut_off` is told the number of a shard that does not answer any more."""
        self._places, self._secret, self._group, self._cut_off = places, secret, group, cut_off
        self.busy = True
        """Whether the group takes part in rounds; one that waits aside does not."""
        self.doubtful = True
        """Whether this group may have been taken for dead since this was last set to False."""
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(index,), daemon=True, name="paceline-beats")
            for index in range(len(places))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No further sign of life."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(EVERY + ANSWER)

    def _run(self, index: int) -> None:
        channel: Channel | None = None
        answered = time.monotonic()
        while not self._stopped.wait(EVERY):
            if time.monotonic() - answered > DOUBT:
                self.doubtful = True
            channel = self._beat(index, channel)
            now = time.monotonic()
            if channel is not None:
                answered = now
            elif now - answered > UNHEARD:
                self._cut_off(index)
                answered = now
        if channel is not None:
            channel.close()

    def _beat(self, index: int, channel: Channel | None) -> Channel | None:
        """One sign of life; the channel for the next one, None if there was no answer."""
        try:
            if channel is None:
                channel = call(*self._places[index], self._secret, timeout=ANSWER)
                channel.settle(ANSWER)
            channel.send({"kind": "beat", "group": self._group, "busy": self.busy})
            channel.receive()
            return channel
        except (OSError, KeyError):
            if channel is not None:
                with contextlib.suppress(OSError):
                    channel.close()
            return None
