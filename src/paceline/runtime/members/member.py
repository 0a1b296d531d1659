"""The membership of one process: it follows a leader, or leads, and notifies the training loop of changes.

If the leader fails, the first remaining member in the order of the last view becomes leader. A member that was declared
failed and resumes searches for the present leader and rejoins. Decisions are in `protocol/following.py`; states are in
`MemberState`.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from pathlib import Path

from paceline.channel.handshake import Login
from paceline.errors import TrainingLost, TrainingOver
from paceline.runtime.members import peers
from paceline.runtime.members import view as views
from paceline.runtime.members.channel import GREETING_TIMEOUT, Channel, Endpoint, in_background, message_listener
from paceline.runtime.members.leader import Leader
from paceline.runtime.members.link import MemberLink, SilentConnection
from paceline.runtime.members.view import Peer, Report, Timeouts, View, read_roster
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import accepted_by
from paceline.runtime.protocol.following import Ask, Following
from paceline.runtime.protocol.states import Event, MemberState

__all__ = ["Member"]

RETRY = 0.05
"""Seconds between two searches for the leader: survivors of a failure should agree within tenths of a second."""
LAST_MESSAGE = 0.1
"""Seconds for which a leader waits before it leaves, so that `training-done` arrives before the connection closes."""
LOOK_AROUND = 1.0
"""Interval of queries to lost peers, in seconds; each query costs a connection."""
log = logging.getLogger("paceline.runtime")


class Member:
    """A member of a group, from construction until `leave`."""

    def __init__(
        self, server: socket.socket, secret: bytes, *, peer: Peer, timeouts: Timeouts, session: str = ""
    ) -> None:
        self.peer, self.secret, self.session, self._timeouts = peer, secret, session, timeouts
        self._login = Login(secret, messages.Role.MEMBER.value, peer.id, session)
        self._listener = message_listener(server, self._login, self._answer, caller=messages.Role.MEMBER)
        self.roster: Path | None = None
        """The file to which this member writes the endpoints of a view while it leads."""
        self.interrupted = threading.Event()
        """Set while the view of the training loop has ended."""
        self.noticed: list[float] = []
        """time.monotonic() of each such end."""
        self.rank = 0
        """Rank of this process in the view of the training loop."""
        # One lock for decisions and board. The training loop waits on it for changes, which the threads that follow,
        # send heartbeats and answer callers make. No thread sends while it holds the lock.
        self._changed = threading.Condition(threading.RLock())
        self._core = Following(peer, timeouts, time.monotonic())
        self.machine = self._core.machine
        self._lost: TrainingLost | None = None
        self._taken = 0
        """Number of the view of the training loop."""
        self._work: tuple[int, float | None] = (0, None)
        """The step, and the time since which the user's code has control; None while this process waits for others."""
        self._board: dict[str, bytes] = {}
        self._leader: Leader | None = None
        self._link: MemberLink | None = None
        """The link to the leader."""
        in_background("listener", self._listener.run, failed=self._fail)

    def start(self, meet: Endpoint, *, first: int | None, roster: Path | None = None) -> None:
        """Join the job at this rendezvous; with `first`, lead it from the start, unless it is already running."""
        self.roster = roster
        known = [endpoint for endpoint in read_roster(roster) if endpoint != self.peer.endpoint]
        if first is not None and not any(peers.answers(endpoint, self._login) for endpoint in known):
            self._core.first = first
            self._lead()
            meet = self.peer.endpoint
        # The leader starts before the follower, which connects to the listener of this process first.
        in_background("follow", lambda: self._follow(meet), failed=self._fail)
        in_background("heartbeat", self._send_heartbeats, failed=self._fail)
        in_background("look-around", self._look_around, failed=self._fail)

    def next_view(self, report: Report) -> View:
        """Report for the next view and wait for it; the wait is divided into seconds, so that Ctrl-C works."""
        self._say_ready(report, finished=False)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_fresh() or self.machine.ended, timeout=1.0)
                if self._lost:
                    raise self._lost
                if self._is_fresh():
                    return self._take()
                if self.machine.state is MemberState.MISSED:
                    log.warning("training was over before this process could take part in it")
                    raise TrainingOver
                if self.machine.state is MemberState.LEFT:
                    raise TrainingLost("this process has left the job", hint="join again to take part in it")

    def go_on(self) -> None:
        """Continue to train, even if all members had finished."""
        with self._changed:
            resumed = self._core.resume()
            if resumed and self._is_fresh():  # others left or joined in between
                self.interrupted.set()
        if resumed:
            self._send(messages.Resume())

    def finish(self, report: Report) -> View | None:
        """Wait until all members have finished: None if they have, or a view if the group changed before that."""
        self._say_ready(report, finished=True)
        with self._changed:
            self._changed.wait_for(lambda: self._is_fresh() or self.machine.ended or self._is_done())
            if self._lost:
                raise self._lost
            return None if self._is_done() else self._take() if self._is_fresh() else None

    def working(self, step: int) -> None:
        """Note that the user's code has control."""
        self._work = (step, time.monotonic())

    def waiting(self) -> None:
        """Note that this process waits for others."""
        self._work = (self._work[0], None)

    def establish(self, view: View) -> None:
        """Note that all members of this view have received it."""
        with self._changed:
            self._core.establish(view.number)

    def report_failure(self, view: View, why: str) -> None:
        """Report to the leader that this view has failed."""
        self._send(messages.ViewFailed(view.number, why[:200]))

    def put(self, view: int, key: str, value: bytes) -> None:
        """Write an entry to the board of a view."""
        self._send(messages.BoardPut(view, key, value))

    def read(self, view: int, key: str) -> bytes | None:
        """The entry of a view's board; waits for the entry, and returns None if the view ends."""
        with self._changed:  # no timeout: the failure of the writing member ends the view
            self._changed.wait_for(lambda: key in self._board or self._has_ended(view))
            return None if self._has_ended(view) else self._board[key]

    def has(self, view: int, key: str) -> bool:
        """Whether a view's board has an entry."""
        return not self._has_ended(view) and key in self._board

    def leave(self) -> None:
        """Leave the group; a leader waits until its last message is sent."""
        done = self.machine.state is MemberState.DONE
        # The state changes first, so that no thread treats the closed listener and connections below as a failure.
        self.machine.on(Event.LEFT)
        self._listener.close()
        leader = self._leader
        if leader is not None and leader.leading:
            time.sleep(LAST_MESSAGE if done else 0.0)
            leader.leave()
            if done:
                views.close_roster(self.roster)
        if (link := self._link) is not None:
            link.close()

    @property
    def doubtful(self) -> bool:
        """Whether the others may have continued without this process, so that data just received must not be used."""
        return self.interrupted.is_set() or self._was_asleep()

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return (leader := self._leader) is not None and leader.leading

    def _has_ended(self, view: int) -> bool:
        return self.interrupted.is_set() or self._core.seen != view

    def _is_fresh(self) -> bool:
        return self._core.seen > self._taken and self._core.ready is None

    def _is_done(self) -> bool:
        return self.machine.state is MemberState.DONE

    def _take(self) -> View:
        assert self._core.view is not None
        self._taken, self.rank = self._core.seen, self._core.rank
        if not self._core.interrupted:
            self.interrupted.clear()
        return self._core.view

    def _say_ready(self, report: Report, *, finished: bool) -> None:
        # Stored before it is sent: if the leader fails in between, the following thread sends it to the next leader.
        with self._changed:
            self.waiting()
            message = self._core.report(report, finished=finished) if not self._is_fresh() else None
        if message is not None:
            self._send(message)

    def _send(self, message: messages.Message) -> None:
        """Send to the leader; if the leader has failed, the next leader asks again."""
        if (link := self._link) is not None:
            link.send(message)

    def _send_heartbeats(self) -> None:
        while not self.machine.ended:
            now, (step, since), link = time.monotonic(), self._work, self._link
            # Checked before the tick, which would hide that this thread was suspended.
            self._was_asleep()
            self._core.ticked = now
            if link is not None:
                link.send(messages.Heartbeat(step, now - since if since is not None else 0.0))
                silent = now - self._core.last_heard
                if silent > self._timeouts.heartbeat_timeout and not link.closed:
                    log.warning("the leader sent no heartbeat for %.1f s", silent)
                    link.close(messages.Farewell())
            time.sleep(self._timeouts.heartbeat_interval)

    def _was_asleep(self) -> bool:
        with self._changed:
            return self._core.asleep(time.monotonic())

    def _follow(self, meet: Endpoint) -> None:
        """Find the leader, follow it until the connection ends, and repeat."""
        deadline = time.monotonic() + self._timeouts.join
        while not self.machine.ended:
            if self._is_done():  # no leader is needed, unless training is resumed
                deadline = time.monotonic() + self._timeouts.join
                time.sleep(RETRY)
                continue
            if self.machine.state is MemberState.FOLLOWING:  # training was resumed after the leader had left
                self.machine.on(Event.DISCONNECTED)
            found = self._find([*read_roster(self.roster), meet])
            if found is None:
                if views.is_closed(self.roster):
                    self._give_up(Event.ROSTER_CLOSED, None)
                elif time.monotonic() > deadline:
                    why = f"no leader of this job answered for {self._timeouts.join:.0f} s"
                    hint = "does the job still run, and is the secret the same?"
                    self._give_up(Event.NO_LEADER, TrainingLost(why, hint=hint))
                time.sleep(RETRY)
                continue
            self._follow_messages(self._begin_to_follow(*found))
            deadline = time.monotonic() + self._timeouts.join

    def _begin_to_follow(self, endpoint: Endpoint, channel: Channel) -> MemberLink:
        with self._changed:
            self._core.welcomed((channel.peer, *endpoint), time.monotonic())
            link = self._link = MemberLink(channel)
            if self._core.ready is not None:
                link.send(self._core.ready)
        self._leader = self._leader if self.leads else None
        link.hold(peers.open_lifeline(endpoint, self._login))
        return link

    def _follow_messages(self, link: MemberLink) -> None:
        expected, silent = accepted_by(messages.Role.MEMBER, sender=messages.Role.LEADER), False
        try:
            while not self._core.dismissed:
                self._on_message(link.receive(*expected))
        except ConnectionError as error:
            silent = not link.ended(error) or link.closed
            log.debug("the connection to the leader ended: %s", error)
        if not link.closed:
            link.close(messages.Farewell())
        with self._changed:
            self._link = None
            lost = self._core.lost(silent=silent)
            self._interrupt()
            self._changed.notify_all()
        if lost is not None and lost.id != self.peer.id:
            in_background("probe", lambda: self._judge(lost), failed=self._fail)

    def _judge(self, lost: Peer) -> None:
        """Probe a lost leader at once: only now does a refused connection show that it died in its last view."""
        dead = self._is_dead(lost)
        with self._changed:
            ready = self._core.judged(lost.id, dead=dead)
        if ready is not None:
            self._send(ready)

    def _is_dead(self, peer: Peer) -> bool:
        self._core.known.add(peer.endpoint)  # if it is alive, it is asked for its leader
        return peers.is_dead(peer, self._login)

    def _interrupt(self) -> None:
        if not self.interrupted.is_set():
            self.noticed.append(time.monotonic())
            self.interrupted.set()

    def _on_message(self, message: messages.Message) -> None:
        with self._changed:
            before = self._core.seen
            self._core.hear(message, time.monotonic())
            view = self._core.view
            if view is not None and view.number > before:
                self._board = {}
                # Cleared after the view is stored: a training loop that sees it cleared must find the new view.
                self.interrupted.clear()
            elif isinstance(message, messages.BoardEntry) and message.view == before:
                self._board[message.key] = message.value
            elif self._core.interrupted:
                self._interrupt()
            self._changed.notify_all()

    def _find(self, known: list[Endpoint]) -> tuple[Endpoint, Channel] | None:
        """Ask the known endpoints for the leader, one after the other; lead if it is this process's turn."""
        with self._changed:
            search = self._core.search(known, time.monotonic(), leads=self.leads)
        while not self.machine.ended and (step := search.next(leads=self.leads)) is not None:
            if not isinstance(step, Ask):
                self._lead()
                continue
            with self._changed:
                hello = self._core.hello()
            reply, channel = peers.ask_to_follow(step.endpoint, self._login, hello)
            if channel is not None:
                leader = self._leader
                if step.endpoint != self.peer.endpoint and leader is not None:
                    leader.resign()  # a member votes for one leader at a time
                return step.endpoint, channel
            search.answered(reply, time.monotonic(), leads=self.leads)
            if reply is not None:
                self.machine.on(type(reply))
                time.sleep(RETRY)
        return None

    def _lead(self) -> None:
        self._core.memory.formed = max(self._core.memory.formed, self._core.seen)  # numbers of views continue from here
        log.info("%s leads after %s", self.peer.id, f"view {self._core.seen}" if self._core.view else "no view")
        self._leader = Leader(
            self.peer, self._timeouts, memory=self._core.memory, is_dead=self._is_dead,
            first=None if self._core.view else self._core.first, formed=lambda it: views.write_roster(self.roster, it),
        )  # fmt: skip

    def _answer(self, channel: Channel) -> None:
        try:
            channel.set_timeout(GREETING_TIMEOUT)
            message = channel.receive(messages.Hello, messages.LeadershipQuery, messages.Lifeline)
            channel.set_timeout(None)
            leader = self._leader
            if isinstance(message, messages.Lifeline):
                return leader.hold(channel) if leader is not None else SilentConnection(channel).close()
            assert isinstance(message, messages.Hello | messages.LeadershipQuery)
            if message.peer.id != channel.peer:
                raise ConnectionError(f"{channel.peer!r} logged in and says that it is {message.peer.id!r}")
            if isinstance(message, messages.LeadershipQuery):
                channel.answer(message, self._leadership(message.peer))
            elif leader is not None and leader.leading:
                return leader.admit(message, channel)
            else:
                channel.answer(message, self._core.direction(follows=self._link is not None))
        except OSError as error:
            log.debug("a caller is gone: %s", error)
        return channel.close()

    def _leadership(self, asking: Peer) -> messages.LeadershipReply:
        leader = self._leader
        led = leader.size if leader is not None and leader.leading else None
        with self._changed:
            self._core.known.add(asking.endpoint)
            return self._core.leadership(led, time.monotonic(), follows=self._link is not None)

    def _look_around(self) -> None:
        """While this process leads, ask lost peers for their leader: of two parts of a group, one gives way."""
        while not self.machine.ended:
            time.sleep(LOOK_AROUND)
            # The roster as well: it may list peers that were never in a view with this process.
            for endpoint in {*self._core.known, *read_roster(self.roster)} - {self.peer.endpoint}:
                leader = self._leader
                if leader is None or not leader.leading or self._is_done():
                    break
                if not leader.follows(endpoint) and self._gives_way(leader, endpoint):
                    leader.resign()

    def _gives_way(self, leader: Leader, endpoint: Endpoint) -> bool:
        """Whether the leader that a lost peer names leads a larger group, or one as large and has the higher id."""
        try:
            reply = peers.ask_leadership(endpoint, self._login, self.peer)
        except ConnectionRefusedError:
            self._core.known.discard(endpoint)
            return False
        with self._changed:
            if reply is None or not self._core.gives_way(reply, leader.size):
                return False
        log.warning("%s leads another part of this job; this one gives way", reply.id)
        return True

    def _fail(self) -> None:
        """Stop this process, because without the failed thread it would block the others."""
        why = TrainingLost("a thread of this process failed", hint="its log says how; please report it")
        self._give_up(Event.THREAD_FAILED, why)

    def _give_up(self, cause: Event, lost: TrainingLost | None) -> None:
        """Training fails on this process with an error, or has ended if there is no error."""
        with self._changed:
            self._lost = lost
            self.machine.on(cause)
            self.interrupted.set()
            self._changed.notify_all()
