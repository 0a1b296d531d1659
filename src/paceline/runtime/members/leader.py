"""The threads and connections of a leader; its decisions are in `protocol/leading.py`.

All decisions are made in one thread, from a queue of events, so that every decision sees a consistent state.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable

from paceline.runtime.members.channel import Channel, Endpoint, in_background
from paceline.runtime.members.link import MemberLink, SilentConnection
from paceline.runtime.members.view import MOST_VIEWS, Peer, Timeouts, View
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import ProtocolError, accepted_by
from paceline.runtime.protocol.leading import Action, Drop, Formed, Leading, Probe, Send
from paceline.runtime.protocol.quorum import Memory
from paceline.runtime.protocol.states import Event

__all__ = ["Leader"]

TICK = 0.05
"""Polling interval in seconds without events: well below the shortest timeout, `Timeouts.settle`."""
MOST_AHEAD = 1 << 32
"""Largest difference between the newest view of a member and of its leader: more than a group forms during a
partition."""
log = logging.getLogger("paceline.runtime")


class Leader:
    """A leader, from construction until it resigns or leaves."""

    def __init__(
        self,
        peer: Peer,
        timeouts: Timeouts,
        *,
        first: int | None,
        memory: Memory,
        formed: Callable[[View], None] = lambda view: None,
        is_dead: Callable[[Peer], bool] = lambda peer: False,
    ) -> None:
        """`first`: number of members for which the first view waits; None if there were views before."""
        self._core = Leading(peer.id, timeouts, first=first, now=time.monotonic(), memory=memory)
        self._own, self._formed, self._is_dead = peer.id, formed, is_dead
        # Threads of connections and probes put events into this queue. Only the leader's thread reads it and decides,
        # so no lock is needed.
        self._events: queue.Queue[Callable[[], list[Action]]] = queue.Queue()
        self._links: dict[str, MemberLink] = {}
        self._left = False
        in_background("leader", self._run, failed=self.resign)

    @property
    def leading(self) -> bool:
        """Whether this leader has not resigned."""
        return not self._core.machine.ended

    @property
    def size(self) -> tuple[bool, int]:
        """Whether its members may train without others, and the number of members."""
        return self._core.size

    def follows(self, endpoint: Endpoint) -> bool:
        """Whether the peer at this endpoint follows this leader."""
        return any(follower.peer.endpoint == endpoint for follower in list(self._core.followers.values()))

    def admit(self, hello: messages.Hello, channel: Channel) -> None:
        """Accept an authenticated caller as a follower."""
        # Numbers of views continue from the highest one reported; the bound keeps a false report from exhausting them.
        most = min(MOST_VIEWS, self._core.number + MOST_AHEAD)
        newest = max(hello.view, *(ballot.number for ballot in hello.ballots), 0)
        if hello.view < 0 or newest > most:
            raise ProtocolError(f"{hello.peer.id} was in view {str(newest)[:40]}, expected 0 to {most}")
        link = MemberLink(channel)
        # The join is queued before the receiving thread starts, so that it precedes all messages of the follower.
        self._events.put(lambda: self._join(hello, link))
        threading.Thread(target=self._listen, args=(hello.peer, link), daemon=True, name="paceline-follower").start()

    def hold(self, channel: Channel) -> None:
        """Keep the second connection of a follower that was already welcomed."""
        lifeline, link = SilentConnection(channel), self._links.get(channel.peer)
        link.hold(lifeline) if link is not None else lifeline.close()

    def resign(self) -> None:
        """Resign in favour of another leader; the followers search for that leader."""
        self._core.machine.on(Event.RESIGNED)

    def leave(self) -> None:
        """End with this process; followers get no message and may continue at once."""
        self._left = True
        self.resign()
        for link in list(self._links.values()):
            link.close()
        self._links.clear()

    def _join(self, hello: messages.Hello, link: MemberLink) -> list[Action]:
        old = self._links.pop(hello.peer.id, None)
        if old is not None:
            old.close()
        self._links[hello.peer.id] = link
        return self._core.join(hello.peer, hello, time.monotonic())

    def _listen(self, peer: Peer, link: MemberLink) -> None:
        expected = accepted_by(messages.Role.LEADER, sender=messages.Role.MEMBER)
        farewell = False
        try:
            while not farewell:
                message = link.receive(*expected)
                farewell = isinstance(message, messages.Farewell)
                self._events.put(lambda message=message: self._hear(peer, link, message))  # type: ignore[misc]
        except ConnectionError as error:
            farewell = not link.ended(error)
            log.debug("%s: %s", peer.id, error)
        self._events.put(lambda: self._lose(peer, link, farewell=farewell or link.closed))
        if not self.leading:  # no thread reads the events any more
            link.close()

    def _hear(self, peer: Peer, link: MemberLink, message: messages.Message) -> list[Action]:
        if self._links.get(peer.id) is not link:  # the peer has joined again meanwhile
            return []
        try:
            return self._core.hear(peer.id, message, time.monotonic())
        except Exception as error:  # noqa: BLE001 - an invalid message may end only the connection to its follower
            log.warning("%s sent a %r that cannot be followed: %s", peer.id, message.kind, error)
            return self._lose(peer, link, farewell=True)

    def _lose(self, peer: Peer, link: MemberLink, *, farewell: bool) -> list[Action]:
        link.close()
        if self._links.get(peer.id) is not link:
            return []
        del self._links[peer.id]
        return self._core.lose(peer.id, time.monotonic(), farewell=farewell) if peer.id in self._core.followers else []

    def _run(self) -> None:
        while self.leading:
            with contextlib.suppress(queue.Empty):
                self._do(self._events.get(timeout=TICK)())
            self._do(self._core.tick(time.monotonic()))
        if not self._left:
            self._do(self._core.resign())

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Drop):
                link = self._links.pop(action.to, None)
                if link is not None:
                    link.close()
            elif isinstance(action, Probe):
                threading.Thread(target=self._probe, args=(action.peer,), daemon=True, name="paceline-probe").start()
            elif isinstance(action, Formed):
                # The roster is written before the view is sent: members may fail after the view, and a restarted
                # one needs the roster.
                self._formed(action.view)

    def _send(self, action: Send) -> None:
        link = self._links.get(action.to)
        if link is not None:
            link.send(action.message)

    def _probe(self, peer: Peer) -> None:
        dead = self._is_dead(peer)
        self._events.put(lambda: self._core.judged(peer.id, dead=dead))
