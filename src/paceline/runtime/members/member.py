"""One process's membership: it follows the leader, leads when it is its turn, and tells the training loop of changes.

If the leader fails, the members that are left turn to the first of them in the order of the last view; that one leads.
Whoever was declared failed and wakes up finds the present leader and joins again. Its states are `MemberState`.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

from paceline.channel.handshake import Login
from paceline.errors import TrainingLost, TrainingOver
from paceline.runtime.members import peers
from paceline.runtime.members.channel import GREETING_TIMEOUT, Channel, Endpoint, in_background, message_listener
from paceline.runtime.members.leader import Leader
from paceline.runtime.members.view import Peer, Timeouts, View, close_roster, is_closed, read_roster, write_roster
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.states import MEMBER_TABLE, Event, MemberState, StateMachine

__all__ = ["Member"]

RETRY = 0.05
"""Seconds between two questions who leads: survivors of a failure should agree within tenths of a second."""
LAST_MESSAGE = 0.1
"""Seconds that a leader waits before it leaves, so that `training-done` arrives before the connection ends."""
LOOK_AROUND = 1.0
"""Seconds between two rounds of questions to lost peers; each costs a connection, and a mended link can wait for it."""
NOTICE_TIMEOUT = 2.0
"""Seconds beyond two heartbeat timeouts: by then a live member has noticed that its leader is gone."""
log = logging.getLogger("paceline.runtime")


class Member:
    """Takes part from construction until `leave`."""

    def __init__(
        self, server: socket.socket, secret: bytes, *, peer: Peer, timeouts: Timeouts, session: str = ""
    ) -> None:
        self.peer, self.secret, self.session, self._timeouts = peer, secret, session, timeouts
        self._login = Login(secret, messages.Role.MEMBER.value, peer.id, session)
        self._listener = message_listener(server, self._login, self._answer, caller=messages.Role.MEMBER)
        self.roster: Path | None = None
        """Where this member writes the endpoints of a view when it leads."""
        self.interrupted = threading.Event()
        """Set while the view that the training loop works in is over."""
        self.noticed: list[float] = []
        """Each moment at which that became known, by time.monotonic()."""
        # One lock for view, board, state and sleep: the training loop waits on it for any of them to change, while the
        # threads that follow, send heartbeats and answer callers change them.
        self._changed = threading.Condition()
        self._machine = StateMachine(MEMBER_TABLE, MemberState.SEARCHING)
        self._lost: TrainingLost | None = None
        self._view: View | None = None
        self._taken = 0
        """Number of the view that the training loop works in."""
        self._board: dict[str, bytes] = {}
        self._leader: Leader | None = None
        self._channel: Channel | None = None
        self._ready: messages.Ready | None = None
        """The last report, while no view has answered it: whoever leads next has to hear it again."""
        self._last_heard = time.monotonic()
        self._ticked, self._slept = time.monotonic(), False
        self._known: dict[str, Peer] = {}
        """Everybody who was in a view with us and may still live."""
        self._turn_to: Endpoint | None = None
        """A leader that we resigned for."""
        self._successor: str | None = None
        """Who we expect to lead next, while we follow nobody."""
        in_background("listener", self._listener.run, failed=self._fail)

    def start(self, meet: Endpoint, *, first: int | None, roster: Path | None = None) -> None:
        """Join the job that meets there; with `first`, lead it from its beginning unless it runs already."""
        self.roster = roster
        known = [endpoint for endpoint in read_roster(roster) if endpoint != self.peer.endpoint]
        if first is not None and not any(peers.answers(endpoint, self._login) for endpoint in known):
            self._lead(first=first)
            known, meet = [], self.peer.endpoint
        # Following begins after leading: the first thing the follower does is to call our own listener.
        in_background("follow", lambda: self._follow([*known, meet]), failed=self._fail)
        in_background("heartbeat", self._send_heartbeats, failed=self._fail)
        in_background("look-around", self._look_around, failed=self._fail)

    def next_view(self, report: dict[str, Any]) -> View:
        """Report for the next view and wait for it, in pieces of a second, so that Ctrl-C is not held up."""
        self._say_ready(report, finished=False)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_fresh() or self._machine.ended, timeout=1.0)
                if self._lost:
                    raise self._lost
                if self._is_fresh():
                    return self._take()
                if self._machine.state is MemberState.MISSED:
                    log.warning("training was over before this process could take part in it")
                    raise TrainingOver

    def go_on(self) -> None:
        """There is more to train, even if all had finished before."""
        if self._machine.state is MemberState.DONE:
            self._machine.on(Event.RESUMED)
            self._send(messages.Resume())

    def finish(self, report: dict[str, Any]) -> View | None:
        """Wait until all have finished; a view if the group changes before, None if it is over."""
        self._say_ready(report, finished=True)
        ends = (MemberState.DONE, MemberState.LOST)
        with self._changed:
            self._changed.wait_for(lambda: self._is_fresh() or self._machine.state in ends)
            return None if self._machine.state in ends else self._take()

    def report_failure(self, view: View, why: str) -> None:
        """Tell the leader that this view cannot go on."""
        self._send(messages.ViewFailed(view.number, why[:200]))

    def put(self, view: int, key: str, value: bytes) -> None:
        """Write on a view's board."""
        self._send(messages.BoardPut(view, key, value))

    def read(self, view: int, key: str) -> bytes | None:
        """What a view's board says under a key; waits for it until the view ends."""
        with self._changed:  # no timeout: the failure of whoever should write the key ends the view
            self._changed.wait_for(lambda: key in self._board or self._has_ended(view))
            return None if self._has_ended(view) else self._board[key]

    def has(self, view: int, key: str) -> bool:
        """Whether a view's board has a key already."""
        return not self._has_ended(view) and key in self._board

    def leave(self) -> None:
        """Take part no more; a leader gives its last message time to arrive, then the others find another leader."""
        done = self._machine.state is MemberState.DONE
        # The state first, so that no thread takes the closed listener and connections below for a failure.
        self._machine.on(Event.LEFT)
        self._listener.close()
        leader = self._leader
        if leader is not None and leader.leading:
            time.sleep(LAST_MESSAGE if done else 0.0)
            leader.resign()
            if done:
                close_roster(self.roster)
        if (channel := self._channel) is not None:
            channel.close()

    @property
    def doubtful(self) -> bool:
        """Whether the others may have gone on without this process: what it has just received must not count."""
        return self.interrupted.is_set() or self._was_asleep()

    @property
    def leads(self) -> bool:
        """Whether this process leads now."""
        leader = self._leader
        return leader is not None and leader.leading

    def _has_ended(self, view: int) -> bool:
        return self.interrupted.is_set() or self._view is None or self._view.number != view

    def _is_fresh(self) -> bool:
        return self._view is not None and self._view.number > self._taken

    def _take(self) -> View:
        assert self._view is not None
        self._taken = self._view.number
        self._ready = None
        return self._view

    def _say_ready(self, report: dict[str, Any], *, finished: bool) -> None:
        # Kept before it is sent: if the leader fails in between, the thread that follows sends it to the next.
        self._ready = messages.Ready(report, finished)
        self._send(self._ready)

    def _send(self, message: messages.Message) -> None:
        """To the leader; if it is gone, whoever leads next asks anew."""
        if (channel := self._channel) is not None:
            with contextlib.suppress(ConnectionError):
                channel.send(message)

    def _send_heartbeats(self) -> None:
        while not self._machine.ended:
            # The check before the tick: the tick would hide that this thread did not run for long.
            self._was_asleep()
            self._ticked = time.monotonic()
            self._send(messages.Heartbeat())
            channel, silent = self._channel, time.monotonic() - self._last_heard
            if channel is not None and silent > self._timeouts.heartbeat_timeout:
                log.warning("the leader sent no heartbeat for %.1f s", silent)
                channel.close()
            time.sleep(self._timeouts.heartbeat_interval)

    def _was_asleep(self) -> bool:
        """Whether it was this process that was suspended: then the others have a leader, most likely the same."""
        with self._changed:
            self._slept = self._slept or time.monotonic() - self._ticked > self._timeouts.heartbeat_timeout
            return self._slept

    def _follow(self, endpoints: list[Endpoint]) -> None:
        """Find the leader, follow it until it is gone, and again."""
        deadline = time.monotonic() + self._timeouts.join
        while not self._machine.ended:
            if self._machine.state is MemberState.DONE:  # there is nobody to look for, unless training is resumed
                deadline = time.monotonic() + self._timeouts.join
                time.sleep(RETRY)
                continue
            if self._machine.state is MemberState.FOLLOWING:  # training was resumed after the leader had left
                self._machine.on(Event.DISCONNECTED)
            channel = self._find(endpoints)
            if channel is None:
                if is_closed(self.roster):
                    self._give_up(Event.ROSTER_CLOSED, None)
                elif time.monotonic() > deadline:
                    why = f"nobody who leads this job answered for {self._timeouts.join:.0f} s"
                    hint = "does the job still run, and is the secret the same?"
                    self._give_up(Event.NO_LEADER, TrainingLost(why, hint=hint))
                time.sleep(RETRY)
                continue
            self._begin_to_follow(channel)
            if not self.leads:
                # Having resigned once must not change the order of succession, which all members have to share.
                self._leader = None
            if self._ready is not None:
                self._send(self._ready)
            self._obey(channel)
            self._channel = None
            endpoints = self._successors()
            deadline = time.monotonic() + self._timeouts.join

    def _begin_to_follow(self, channel: Channel) -> None:
        """From now on we follow; having slept before must not change the order of the next succession."""
        with self._changed:
            self._machine.on(messages.Welcome)
            self._last_heard = self._ticked = time.monotonic()
            self._channel, self._slept, self._successor = channel, False, None

    def _obey(self, channel: Channel) -> None:
        expected = messages.accepted_by(messages.Role.MEMBER, sender=messages.Role.LEADER)
        try:
            while True:
                message = channel.receive(*expected)
                self._last_heard = time.monotonic()
                self._on_message(message)
        except ConnectionError as error:
            log.debug("the connection to the leader ended: %s", error)
        channel.close()
        with self._changed:
            self._machine.on(Event.DISCONNECTED)
            self._interrupt()
            self._changed.notify_all()

    def _interrupt(self) -> None:
        if not self.interrupted.is_set():
            self.noticed.append(time.monotonic())
            self.interrupted.set()

    def _on_message(self, message: messages.Message) -> None:
        with self._changed:
            self._machine.on(type(message))
            if isinstance(message, messages.ViewFormed):
                self._view, self._board = message.view, {}
                # Whoever slept is in the group again, even if nobody had noticed and there was no leader to find anew.
                self._ticked, self._slept = time.monotonic(), False
                self._known |= {peer.id: peer for peer in self._view.peers if peer.id != self.peer.id}
                # After the view is there: the training loop that sees the event cleared must find the new view.
                self.interrupted.clear()
            elif isinstance(message, messages.Halt):
                self._interrupt()
            elif (
                isinstance(message, messages.BoardEntry)
                and self._view is not None
                and message.view == self._view.number
            ):
                self._board[message.key] = message.value
            self._changed.notify_all()

    def _successors(self) -> list[Endpoint]:
        """Where the next leader may be."""
        if self._view is None:
            return [*read_roster(self.roster)]
        resigned = self._leader is not None and not self._leader.leading
        order = self._view.succession(self.peer.id, absent=resigned or self._was_asleep())
        self._successor = order[0].id
        first, self._turn_to = self._turn_to, None
        return [*([first] if first else []), *(peer.endpoint for peer in order)]

    def _find(self, endpoints: list[Endpoint]) -> Channel | None:
        """The first endpoint that leads, or where it points to; this process leads if all before it do not answer."""
        for endpoint in endpoints:
            if endpoint == self.peer.endpoint and not self.leads:
                self._lead(first=None)
            channel = self._ask(endpoint)
            if channel is not None:
                return channel
        return None

    def _ask(self, endpoint: Endpoint) -> Channel | None:
        """Follow the leader that this endpoint names; None if it does not answer."""
        # A live member that has not noticed yet that its leader is gone is asked again until it knows: who turned to
        # the next endpoint now would lead a second group.
        deadline = time.monotonic() + 2 * self._timeouts.heartbeat_timeout + NOTICE_TIMEOUT
        asked = endpoint
        while time.monotonic() < deadline and not self._machine.ended:
            reply, channel = self._greet(asked)
            if channel is not None:
                return channel
            if reply is None and asked == endpoint:
                return None
            if isinstance(reply, messages.WaitForSuccessor) and reply.successor == self.peer.id and not self.leads:
                # It lost its leader too and waits for us: waiting for each other would be a hang.
                self._lead(first=None)
                return self._greet(self.peer.endpoint)[1]
            pointed = (reply.address, reply.port) if isinstance(reply, messages.Redirect) else endpoint
            # A member that points to the leader that we lost has not noticed yet; if we slept, we have lost nobody.
            lost = self._view.leading_peer.endpoint if self._view is not None and not self._was_asleep() else None
            asked = pointed if pointed != lost else endpoint
            time.sleep(RETRY)
        return None

    def _greet(self, endpoint: Endpoint) -> tuple[messages.Message | None, Channel | None]:
        seen = self._view.number if self._view else 0
        reply, channel = peers.ask_to_follow(endpoint, self._login, self.peer, seen=seen)
        if reply is not None and channel is None:
            self._machine.on(type(reply))
        return reply, channel

    def _lead(self, *, first: int | None) -> None:
        log.info("%s leads after %s", self.peer.id, f"view {self._view.number}" if self._view else "no view")
        self._leader = Leader(
            self.peer.id, self._timeouts, first=first, last=self._view,
            formed=lambda view: write_roster(self.roster, view),
            may_be_alive=lambda peer: peers.may_be_alive(peer, self._login),
        )  # fmt: skip

    def _answer(self, channel: Channel) -> None:
        try:
            channel.set_timeout(GREETING_TIMEOUT)
            message = channel.receive(messages.Hello, messages.LeadershipQuery)
            channel.set_timeout(None)
            leader = self._leader
            if isinstance(message, messages.Hello) and message.peer.id != channel.peer:
                raise ConnectionError(f"{channel.peer!r} logged in and says that it is {message.peer.id!r}")
            if isinstance(message, messages.Hello) and leader is not None and leader.leading:
                leader.admit(message.peer, channel, seen=message.view)
                return
            reply = self._direction() if isinstance(message, messages.Hello) else self._leadership()
            channel.answer(message, reply)
        except OSError as error:
            log.debug("a caller is gone: %s", error)
        channel.close()

    def _direction(self) -> messages.Redirect | messages.WaitForSuccessor:
        """Where the leader is, as far as we know."""
        view = self._view
        if self._channel is None or view is None:
            return messages.WaitForSuccessor(self._successor)
        return messages.Redirect(*view.leading_peer.endpoint)

    def _leadership(self) -> messages.LeadershipReply:
        leader = self._leader
        led = leader.size if leader is not None and leader.leading else 0
        return messages.LeadershipReply(self.leads and not self._was_asleep(), self.peer.id, led)

    def _look_around(self) -> None:
        """While we lead, ask those we lost whether they lead too: of two parts of a group, one gives way."""
        while not self._machine.ended:
            time.sleep(LOOK_AROUND)
            for peer in list(self._known.values()):
                leader = self._leader
                if leader is None or not leader.leading or self._machine.state is MemberState.DONE:
                    break
                if not leader.follows(peer.id) and self._is_outranked(leader, peer):
                    log.warning("%s leads another part of this job; this one gives way", peer.id)
                    # Before resigning: the thread that follows looks for the next leader as soon as we resign.
                    self._turn_to = peer.endpoint
                    leader.resign()

    def _is_outranked(self, leader: Leader, peer: Peer) -> bool:
        """Whether a lost peer leads a larger group, or one as large and has the higher id."""
        try:
            return peers.ask_leadership(peer, self._login) > (leader.size, self.peer.id)
        except ConnectionRefusedError:
            self._known.pop(peer.id, None)
            return False

    def _fail(self) -> None:
        """Half alive, this member would hold up the others."""
        why = TrainingLost("a thread of this process failed", hint="its log says how; please report it")
        self._give_up(Event.THREAD_FAILED, why)

    def _give_up(self, cause: Event, lost: TrainingLost | None) -> None:
        """Training fails on this process for a reason, or it is over if there is none."""
        with self._changed:
            self._lost = lost
            self._machine.on(cause)
            self.interrupted.set()
            self._changed.notify_all()
