"""The leader: tracks its followers, declares members without heartbeats failed, and forms the views of the group.

It decides in one thread, from a queue of events, so that every decision sees a settled state. It holds nothing that
its successor would need: followers report again to whoever leads next. Its states are `LeaderState`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.runtime.members.channel import Channel, in_background
from paceline.runtime.members.view import Peer, Timeouts, View
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.states import LEADER_TABLE, Event, LeaderState, StateMachine

__all__ = ["Leader"]

TICK = 0.05
"""Polling interval in seconds without events: well below the shortest timeout, `Timeouts.settle`."""
PROBE_INTERVAL = 0.5
"""Seconds after which a lost peer is probed again: a link that is mended should not have to wait for a timeout."""
log = logging.getLogger("paceline.runtime")


@dataclass
class _Follower:
    peer: Peer
    channel: Channel
    last_heard: float = field(default_factory=time.monotonic)
    report: dict[str, Any] | None = None
    """Set while the follower is ready for the next view."""
    finished: bool = False
    seen: int = 0
    """Number of the last view it was in, under whatever leader."""


class Leader:
    """Leads from construction until it resigns."""

    def __init__(
        self,
        id: str,  # noqa: A002
        timeouts: Timeouts,
        *,
        first: int | None,
        last: View | None = None,
        formed: Callable[[View], None] = lambda view: None,
        may_be_alive: Callable[[Peer], bool] = lambda peer: False,
    ) -> None:
        """`first`: how many the first view waits for; None if views before, up to `last`, had another leader."""
        self._id, self._timeouts, self._first, self._number = id, timeouts, first, last.number if last else 0
        self._formed, self._may_be_alive = formed, may_be_alive
        self._last: tuple[Peer, ...] = last.peers if last else ()
        self._probed: dict[str, tuple[float, bool | None]] = {}
        """When each lost peer was probed, and whether it may be alive; None while the probe is under way."""
        # All that threads of connections and probes learn goes through this queue: only the leader's thread reads it
        # and changes followers and views, so neither needs a lock.
        self._events: queue.Queue[Callable[[], None]] = queue.Queue()
        self._followers: dict[str, _Follower] = {}
        self._members: set[str] = set()
        self._machine = StateMachine(LEADER_TABLE, LeaderState.COLLECTING)
        self._changed_at = time.monotonic()
        in_background("leader", self._run, failed=self.resign)

    @property
    def leading(self) -> bool:
        """Whether it has not resigned."""
        return not self._machine.ended

    @property
    def size(self) -> int:
        """How many it leads; none while it may lead the smaller part of a partitioned group."""
        return 0 if self._machine.state is LeaderState.PARTITIONED else len(self._followers)

    def follows(self, id: str) -> bool:  # noqa: A002
        """Whether a peer follows this leader now."""
        return id in self._followers

    def admit(self, peer: Peer, channel: Channel, *, seen: int = 0) -> None:
        """Take in an authenticated caller; views go on counting from the last one it has seen."""
        follower = _Follower(peer, channel, seen=seen)
        # The join is queued before the thread that listens starts: what the follower says comes after it.
        self._events.put(lambda: self._join(follower))
        threading.Thread(target=self._listen, args=(follower,), daemon=True, name="paceline-follower").start()

    def resign(self) -> None:
        """Resign; the followers turn to the next leader."""
        # The state first: followers that lose their connection ask who leads, and must not be sent back here.
        self._machine.on(Event.RESIGNED)
        for follower in list(self._followers.values()):
            follower.channel.close()

    def _listen(self, follower: _Follower) -> None:
        expected = messages.accepted_by(messages.Role.LEADER, sender=messages.Role.MEMBER)
        try:
            while True:
                message = follower.channel.receive(*expected)
                self._events.put(functools.partial(self._hear, follower, message))
        except ConnectionError as error:
            log.debug("%s: %s", follower.peer.id, error)
        self._events.put(lambda: self._lose(follower))
        if not self.leading:  # nobody reads the events any more
            follower.channel.close()

    def _run(self) -> None:
        last_tick = last_beat = time.monotonic()
        while self.leading:
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=TICK)()
            now = time.monotonic()
            # The clock is read after an event was handled and before anybody is judged by it: a process that was
            # suspended finds out here that the others may have another leader, and declares none of them failed.
            if now - last_tick > self._timeouts.heartbeat_timeout:
                log.warning("this leader was suspended for too long and resigns")
                self.resign()
                return
            last_tick = now
            if now - last_beat >= self._timeouts.heartbeat_interval:
                last_beat = now
                self._send_heartbeats(now)
            self._form_if_ready(now)

    def _join(self, follower: _Follower) -> None:
        peer = follower.peer
        old = self._followers.get(peer.id)
        if old is not None:
            old.channel.close()
        self._followers[peer.id] = follower
        # `welcome` before `halt`: a member that is not welcome yet does not expect anything else.
        self._send(follower, messages.Welcome(self._number))
        self._end_view(messages.Hello, f"{peer.id} joined")
        self._number = max(self._number, follower.seen)

    def _hear(self, follower: _Follower, message: messages.Message) -> None:
        """Whatever a follower says may end the connection to that follower only."""
        try:
            self._on_message(follower, message)
        except Exception as error:  # noqa: BLE001
            log.warning("%s sent a %r that cannot be followed: %s", follower.peer.id, message.kind, error)
            self._lose(follower)

    def _on_message(self, follower: _Follower, message: messages.Message) -> None:
        if self._followers.get(follower.peer.id) is not follower:  # it has joined again meanwhile
            return
        follower.last_heard = time.monotonic()
        if isinstance(message, messages.ViewFailed):
            # messages.Trouble of a view before this one is history: ending this view for it would never come to an end.
            if message.view == self._number:
                self._end_view(messages.ViewFailed, f"{follower.peer.id} has trouble: {message.why}")
            return
        self._machine.on(type(message))
        if isinstance(message, messages.Ready):
            follower.report, follower.finished = message.report, message.finished
            self._end_if_finished()
        elif isinstance(message, messages.Resume):
            follower.report, follower.finished = None, False
        elif isinstance(message, messages.BoardPut) and message.view == self._number:
            self._send_all(messages.BoardEntry(message.view, message.key, message.value))

    def _lose(self, follower: _Follower) -> None:
        if self._followers.get(follower.peer.id) is not follower:
            return
        del self._followers[follower.peer.id]
        follower.channel.close()
        if follower.peer.id in self._members:
            self._end_view(Event.MEMBER_FAILED, f"{follower.peer.id} is gone")
        self._end_if_finished()

    def _send_heartbeats(self, now: float) -> None:
        for follower in list(self._followers.values()):
            silent = now - follower.last_heard
            if silent > self._timeouts.heartbeat_timeout:
                log.warning("%s sent no heartbeat for %.1f s and is declared failed", follower.peer.id, silent)
                self._lose(follower)
            else:
                self._send(follower, messages.LeaderHeartbeat())

    def _end_view(self, cause: Event | type[messages.Message], why: str) -> None:
        """Halt all followers; they report for the next view."""
        self._changed_at = time.monotonic()
        was_active = self._machine.state is LeaderState.VIEW_ACTIVE
        self._machine.on(cause)
        if was_active:
            log.info("view %d ends: %s", self._number, why)
            self._send_all(messages.Halt(self._number, why))

    def _form_if_ready(self, now: float) -> None:
        followers = list(self._followers.values())
        active = self._machine.state not in (LeaderState.COLLECTING, LeaderState.PARTITIONED)
        if active or not followers or any(follower.report is None for follower in followers):
            return
        if self._first is not None:
            if len(followers) < self._first and now - self._changed_at < self._timeouts.join:
                return
        elif now - self._changed_at < self._timeouts.settle:
            return
        if not self._may_go_on(now):
            self._machine.on(Event.MINORITY)
            return
        self._first = None
        self._form(sorted(followers, key=lambda follower: (follower.peer.rank, follower.peer.id)))

    def _may_go_on(self, now: float) -> bool:
        """Of a partitioned group one part goes on: the larger one, or of two halves the one with the first rank.

        Who is known to be dead or suspended is in no part. A part that must wait does so for a limited time only,
        since the others may have lost their power and not their link.
        """
        lost = [peer for peer in self._last if peer.id not in self._followers]
        stayed = len(self._last) - len(lost)
        if stayed > len(lost) or not lost or now - self._changed_at > self._timeouts.partition:
            return True
        self._probe(lost, now)
        verdicts = [self._probed[peer.id][1] for peer in lost]
        if None in verdicts:
            return False
        apart = sum(verdict is True for verdict in verdicts)
        return stayed > apart or apart == 0 or (stayed == apart and self._last[0].id in self._followers)

    def _probe(self, lost: list[Peer], now: float) -> None:
        """Probe in the background who may be alive, and again after a while."""
        for peer in lost:
            at, verdict = self._probed.get(peer.id, (0.0, True))
            if verdict is not None and now - at > PROBE_INTERVAL:
                self._probed[peer.id] = (now, None)
                threading.Thread(target=self._probe_one, args=(peer,), daemon=True, name="paceline-probe").start()

    def _probe_one(self, peer: Peer) -> None:
        verdict = self._may_be_alive(peer)
        self._events.put(lambda: self._probed.__setitem__(peer.id, (time.monotonic(), verdict)))

    def _form(self, followers: list[_Follower]) -> None:
        self._number += 1
        self._machine.on(Event.FORMED)
        peers = tuple(follower.peer for follower in followers)
        self._members = {peer.id for peer in peers}
        view = View(self._number, peers, tuple(dict(follower.report or {}) for follower in followers), self._id)
        for follower in followers:
            follower.report, follower.finished = None, False
        log.info("view %d: %s", view.number, ", ".join(peer.id for peer in peers))
        self._last, self._probed = peers, {}
        # The roster before the view: a member that acts on the view may fail, and who follows it needs the roster.
        self._formed(view)
        self._send_all(messages.ViewFormed(view))

    def _end_if_finished(self) -> None:
        """When all who are left have finished at the same step, they may go."""
        if self._followers and all(follower.finished for follower in self._followers.values()):
            steps = {(follower.report or {}).get("step") for follower in self._followers.values()}
            if len(steps) == 1:
                self._send_all(messages.TrainingDone())

    def _send_all(self, message: messages.Message) -> None:
        for follower in list(self._followers.values()):
            self._send(follower, message)

    def _send(self, follower: _Follower, message: messages.Message) -> None:
        try:
            follower.channel.send(message)
        except ConnectionError:
            # Not at once: the caller may be in the middle of going through the followers.
            self._events.put(lambda: self._lose(follower))
