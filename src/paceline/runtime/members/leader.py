"""The leader: hears who comes, goes or falls silent, and forms one view of the group after another.

It decides in one thread, from a queue of events, so that every decision sees a settled state. It holds nothing that
its successor would need: followers report again to whoever leads next.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.runtime.members.background import in_background
from paceline.runtime.members.channel import Channel, Message
from paceline.runtime.members.view import Patience, Peer, View

__all__ = ["Leader"]

TICK = 0.05
PROBE = 0.5
"""Seconds after which a lost peer is tried again."""
log = logging.getLogger("paceline.runtime")


@dataclass
class _Follower:
    peer: Peer
    channel: Channel
    heard: float = field(default_factory=time.monotonic)
    report: dict[str, Any] | None = None
    """Set while it is ready for the next view."""
    finished: bool = False
    seen: int = 0
    """Number of the last view it was in, under whatever leader."""


class Leader:
    """Leads from construction until it is asleep for too long or everybody has finished."""

    def __init__(
        self,
        id: str,  # noqa: A002
        patience: Patience,
        *,
        first: int | None,
        last: View | None = None,
        formed: Callable[[View], None] = lambda view: None,
        may_be_alive: Callable[[Peer], bool] = lambda peer: False,
    ) -> None:
        """`first`: how many the first view waits for; None if views before, up to `last`, had another leader."""
        self._id, self._patience, self._first, self._number = id, patience, first, last.number if last else 0
        self._formed, self._may_be_alive = formed, may_be_alive
        self._last: tuple[Peer, ...] = last.peers if last else ()
        self._probed: dict[str, tuple[float, bool | None]] = {}
        """When each lost peer was tried, and whether it may be alive; None while that is being found out."""
        self._waits = False
        self._events: queue.Queue[tuple[str, str, Any]] = queue.Queue()
        self._followers: dict[str, _Follower] = {}
        self._members: set[str] = set()
        self._halted = True
        self._changed_at = time.monotonic()
        self._board: dict[str, str] = {}
        self.leading = True
        in_background("leader", self._run, failed=self.resign)

    def admit(self, peer: Peer, channel: Channel, *, seen: int = 0) -> None:
        """Take in an authenticated caller; views go on counting from the last one it has seen."""
        self._events.put(("join", peer.id, _Follower(peer, channel, seen=seen)))
        threading.Thread(target=self._listen, args=(peer.id, channel), daemon=True, name="paceline-hear").start()

    def _listen(self, id: str, channel: Channel) -> None:  # noqa: A002
        with contextlib.suppress(ConnectionError):
            while True:
                self._events.put(("say", id, (channel, channel.receive())))
        self._events.put(("lost", id, channel))
        if not self.leading:  # nobody reads the events any more
            channel.close()

    def _run(self) -> None:
        last_tick = last_beat = time.monotonic()
        while self.leading:
            try:
                kind, id, content = self._events.get(timeout=TICK)  # noqa: A001
                self._hear(kind, id, content)
            except queue.Empty:
                pass
            now = time.monotonic()
            if now - last_tick > self._patience.silence:
                self._step_down()
                return
            last_tick = now
            if now - last_beat >= self._patience.beat:
                last_beat = now
                self._beat(now)
            self._form_if_ready(now)

    def _hear(self, kind: str, id: str, content: Any) -> None:  # noqa: A002
        if kind == "join":
            self._join(id, content)
        elif kind == "say":
            self._say(id, content)
        elif kind == "probed":
            self._probed[id] = (time.monotonic(), content)
        else:
            self._lose(id, content)

    def _join(self, id: str, follower: _Follower) -> None:  # noqa: A002
        old = self._followers.get(id)
        if old is not None:
            old.channel.close()
        self._followers[id] = follower
        self._tell(follower, {"kind": "welcome", "view": self._number})
        self._halt(f"{id} joined")
        self._number = max(self._number, follower.seen)

    def _say(self, id: str, content: tuple[Channel, Message]) -> None:  # noqa: A002
        channel, message = content
        follower = self._followers.get(id)
        if follower is None or follower.channel is not channel:
            return
        follower.heard = time.monotonic()
        kind = message.get("kind")
        if kind == "ready":
            follower.report, follower.finished = dict(message["report"]), bool(message.get("finished"))
            self._end_if_finished()
        elif kind == "again":
            follower.report, follower.finished = None, False
        elif kind == "trouble" and message["view"] == self._number:
            self._halt(f"{id} has trouble: {message.get('why', '')}")
        elif kind == "put" and message["view"] == self._number:
            self._board[message["key"]] = message["value"]
            self._tell_all({"kind": "board", "view": self._number, "key": message["key"], "value": message["value"]})

    def _lose(self, id: str, channel: Channel) -> None:  # noqa: A002
        follower = self._followers.get(id)
        if follower is None or follower.channel is not channel:
            return
        del self._followers[id]
        channel.close()
        if id in self._members:
            self._halt(f"{id} is gone")
        self._end_if_finished()

    def _beat(self, now: float) -> None:
        for follower in list(self._followers.values()):
            if now - follower.heard > self._patience.silence:
                log.warning("%s was silent for %.1f s and is taken for dead", follower.peer.id, now - follower.heard)
                self._lose(follower.peer.id, follower.channel)
            else:
                self._tell(follower, {"kind": "beat"})

    def _halt(self, why: str) -> None:
        """Everybody stops stepping and reports for the next view."""
        self._changed_at = time.monotonic()
        if not self._halted:
            log.info("view %d ends: %s", self._number, why)
            self._halted = True
            self._tell_all({"kind": "halt", "view": self._number, "why": why})

    def _form_if_ready(self, now: float) -> None:
        followers = list(self._followers.values())
        if not self._halted or not followers or any(f.report is None for f in followers):
            return
        if self._first is not None:
            if len(followers) < self._first and now - self._changed_at < self._patience.join:
                return
        elif now - self._changed_at < self._patience.linger:
            return
        self._waits = not self._may_go_on(now)
        if self._waits:
            return
        self._first = None
        self._form(sorted(followers, key=lambda follower: (follower.peer.rank, follower.peer.id)))

    def _may_go_on(self, now: float) -> bool:
        """Of a group that was cut apart one part goes on: the larger one, or of two halves the one with the first rank.

        Who is known to be dead or stopped is in no part. A part that must wait does so for a limited time only, since
        the others may have lost their power and not their link.
        """
        lost = [peer for peer in self._last if peer.id not in self._followers]
        stayed = len(self._last) - len(lost)
        if stayed > len(lost) or not lost or now - self._changed_at > self._patience.apart:
            return True
        self._probe(lost, now)
        verdicts = [self._probed[peer.id][1] for peer in lost]
        if None in verdicts:
            return False
        apart = sum(verdict is True for verdict in verdicts)
        return stayed > apart or apart == 0 or (stayed == apart and self._last[0].id in self._followers)

    def _probe(self, lost: list[Peer], now: float) -> None:
        """Find out in the background who may be alive; what is known is found out again after a while."""
        for peer in lost:
            at, verdict = self._probed.get(peer.id, (0.0, True))
            if verdict is not None and now - at > PROBE:
                self._probed[peer.id] = (now, None)
                threading.Thread(target=self._try, args=(peer,), daemon=True, name="paceline-probe").start()

    def _try(self, peer: Peer) -> None:
        self._events.put(("probed", peer.id, self._may_be_alive(peer)))

    def _form(self, followers: list[_Follower]) -> None:
        self._number += 1
        self._halted, self._board = False, {}
        self._members = {follower.peer.id for follower in followers}
        peers = tuple(follower.peer for follower in followers)
        view = View(self._number, peers, tuple(dict(follower.report or {}) for follower in followers), self._id)
        for follower in followers:
            follower.report = None
            follower.finished = False
        log.info("view %d: %s", view.number, ", ".join(peer.id for peer in peers))
        self._last, self._probed = peers, {}
        self._formed(view)
        self._tell_all({"kind": "view", "view": view.plain()})

    def _end_if_finished(self) -> None:
        """When all who are left have finished, they may go."""
        if self._followers and all(follower.finished for follower in self._followers.values()):
            steps = {(follower.report or {}).get("step") for follower in self._followers.values()}
            if len(steps) == 1:
                self._tell_all({"kind": "over"})

    @property
    def size(self) -> int:
        """How many it leads; none while it may be the smaller part of what was cut apart."""
        return 0 if self._waits else len(self._followers)

    def follows(self, id: str) -> bool:  # noqa: A002
        """Whether a peer follows this leader now."""
        return id in self._followers

    def _step_down(self) -> None:
        """We slept so long that others may lead by now: let everybody go, ourselves too."""
        log.warning("this leader was asleep for too long and steps down")
        self.resign()

    def resign(self) -> None:
        """Lead no more; the followers turn to the next."""
        self.leading = False
        for follower in list(self._followers.values()):
            follower.channel.close()

    def _tell_all(self, message: Message) -> None:
        for follower in list(self._followers.values()):
            self._tell(follower, message)

    def _tell(self, follower: _Follower, message: Message) -> None:
        try:
            follower.channel.send(message)
        except ConnectionError:
            self._events.put(("lost", follower.peer.id, follower.channel))
