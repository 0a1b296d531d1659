"""Decisions of a leader: a function from events and time to actions. No sockets, threads or clock.

`members/leader.py` runs this in a process; `benchmarks/lib/membership.py` runs many leaders in a simulated network. A
leader has no state that its successor needs, because followers report again to the next leader. The states are in
`LeaderState`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from paceline.runtime.members.view import HELD, Ballot, Peer, Report, Timeouts, View
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.quorum import Memory, absent_peers, may_go_on
from paceline.runtime.protocol.states import LEADER_TABLE, Event, LeaderState, StateMachine

__all__ = ["Action", "Drop", "Follower", "Formed", "Leading", "Probe", "Rule", "Send"]

PROBE_INTERVAL = 0.5
"""Interval of probes of an absent peer in seconds; short, so that a repaired link is detected soon."""
PROBED = 64
"""Largest number of peers that are probed at a time."""
Rule = Callable[[Mapping[str, Sequence[Ballot]], Memory], bool]
log = logging.getLogger("paceline.runtime")


@dataclass(frozen=True)
class Send:
    """Send a message to a follower."""

    to: str
    message: messages.Message


@dataclass(frozen=True)
class Drop:
    """Close the connection to a follower after all sent messages."""

    to: str


@dataclass(frozen=True)
class Probe:
    """Probe a peer, and report whether it is dead."""

    peer: Peer


@dataclass(frozen=True)
class Formed:
    """A view was formed; followers receive it after this action."""

    view: View


Action = Send | Drop | Probe | Formed


@dataclass
class Follower:
    """A follower, as its leader sees it."""

    peer: Peer
    ballots: tuple[Ballot, ...]
    seen: int
    """Number of the last view that the follower knows."""
    last_heard: float
    since: int | None = None
    """The first of its consecutive views since it follows this leader."""
    report: Report | None = None
    """Its report, while it is ready for the next view."""
    finished: bool = False
    deaths: tuple[tuple[str, int], ...] = ()
    """Members whose death it observed."""
    step: int = 0
    busy: float = 0.0
    """Seconds for which its user code has had control, according to its last heartbeat."""
    warned: float = 0.0


class Leading:
    """A leader's decisions, until it resigns. Methods take the time and return actions."""

    def __init__(
        self, own: str, timeouts: Timeouts, *, first: int | None, now: float, memory: Memory, rule: Rule = may_go_on
    ) -> None:
        """`first`: number of members for which the first view waits; None if there were views before."""
        self._own, self._timeouts, self._first, self._memory, self._rule = own, timeouts, first, memory, rule
        self.number = memory.formed
        """Number of the newest view that any follower knows."""
        self.followers: dict[str, Follower] = {}
        self.machine = StateMachine(LEADER_TABLE, LeaderState.COLLECTING)
        self._members: set[str] = set()
        self._unready = 0
        self._changed_at = self._last_tick = self._last_beat = now
        self._warned_at = now
        self._moved_at, self._stalled = now, 0.0
        """When a follower last computed or changed its step, and the length of the last stall that was logged."""
        self._probed: dict[str, float] = {}
        self._out: list[Action] = []

    @property
    def size(self) -> tuple[bool, int]:
        """Whether its members may train without others, and the number of members."""
        return self.machine.state is not LeaderState.PARTITIONED, len(self.followers)

    def join(self, peer: Peer, hello: messages.Hello, now: float) -> list[Action]:
        """Add a follower; numbers of views continue from the last one that it knows."""
        if peer.id in self.followers:
            self._forget(peer.id)
        self.followers[peer.id] = Follower(peer, hello.ballots, hello.view, now)
        self._unready += 1
        self._memory.back(peer.id)
        # `welcome` is sent before `halt`, because a member accepts no other message before `welcome`.
        self._send(peer.id, messages.Welcome(self.number))
        self._end_view(messages.Hello, f"{peer.id} joined", now)
        self.number = max(self.number, hello.view, *(ballot.number for ballot in hello.ballots), 0)
        return self._done()

    def hear(self, id: str, message: messages.Message, now: float) -> list[Action]:  # noqa: A002
        """Process a message of a follower."""
        follower = self.followers[id]
        follower.last_heard = now
        if isinstance(message, messages.ViewFailed):
            # A failure of an earlier view is ignored: otherwise views would end one after the other without end.
            if message.view == self.number:
                self._end_view(messages.ViewFailed, f"{id} has trouble: {message.why}", now)
            return self._done()
        self.machine.on(type(message))
        if isinstance(message, messages.Ready):
            self._on_ready(follower, message, now)
        elif isinstance(message, messages.Resume):
            self._is_ready(follower, None)
        elif isinstance(message, messages.Heartbeat):
            if message.seconds or message.step != follower.step:
                self._moved_at, self._stalled = now, 0.0
            follower.step, follower.busy = message.step, message.seconds
            follower.warned = 0.0 if message.seconds == 0.0 else follower.warned
        elif isinstance(message, messages.BoardPut) and message.view == self.number:
            self._send_all(messages.BoardEntry(message.view, message.key, message.value), self._members)
        return self._done()

    def lose(self, id: str, now: float, *, farewell: bool) -> list[Action]:  # noqa: A002
        """The connection to a follower ended. After a farewell or a heartbeat timeout the follower may be alive."""
        self._lose(id, now, farewell=farewell)
        return self._done()

    def judged(self, id: str, *, dead: bool) -> list[Action]:  # noqa: A002
        """Process the result of a probe."""
        if id not in self.followers:
            self._memory.judged(id, dead=dead)
        return []

    def tick(self, now: float) -> list[Action]:
        """Do what is due: heartbeats, the next view, or resignation after a suspension."""
        # Checked before any heartbeat timeout: a leader that was suspended must not declare followers failed, because
        # they may have another leader by now.
        if now - self._last_tick > self._timeouts.heartbeat_timeout:
            return self.resign()
        self._last_tick = now
        if now - self._last_beat >= self._timeouts.heartbeat_interval:
            self._last_beat = now
            self._beat(now)
        self._form_if_ready(now)
        return self._done()

    def resign(self) -> list[Action]:
        """Stop leading; followers search for the next leader."""
        # The state changes first: followers that lose their connection ask for the leader, and must not be sent back.
        self.machine.on(Event.RESIGNED)
        for id in list(self.followers):  # noqa: A001
            self._dismiss(id)
        self.followers.clear()
        return self._done()

    def _done(self) -> list[Action]:
        out, self._out = self._out, []
        return out

    def _on_ready(self, follower: Follower, message: messages.Ready, now: float) -> None:
        if message.view != follower.seen:  # sent before it received the newest view
            return
        established = next((item for item in follower.ballots if item.number == message.established), None)
        if established is not None:
            later = (item for item in follower.ballots if item.number > message.established)
            follower.ballots = (replace(established, established=True), *later)
        follower.deaths = message.deaths
        self._is_ready(follower, message.report, finished=message.finished)
        if follower.peer.id not in self._members and self.machine.state is LeaderState.VIEW_ACTIVE:
            self._end_view(messages.Hello, f"{follower.peer.id} is back", now)
        self._end_if_finished()

    def _is_ready(self, follower: Follower, report: Report | None, *, finished: bool = False) -> None:
        self._unready += (report is None) - (follower.report is None)
        follower.report, follower.finished = report, finished

    def _forget(self, id: str) -> Follower:  # noqa: A002
        follower = self.followers.pop(id)
        self._unready -= follower.report is None
        return follower

    def _lose(self, id: str, now: float, *, farewell: bool) -> None:  # noqa: A002
        follower = self._forget(id)
        if not farewell:
            self._memory.lost(id, follower.since)
            self._out.append(Probe(follower.peer))
        if id in self._members:
            self._end_view(Event.MEMBER_FAILED, f"{id} is gone", now)
        self._end_if_finished()

    def _dismiss(self, id: str) -> None:  # noqa: A002
        self._send(id, messages.Dismissal())
        self._out.append(Drop(id))

    def _beat(self, now: float) -> None:
        for id, follower in list(self.followers.items()):  # noqa: A001
            silent = now - follower.last_heard
            if silent > self._timeouts.heartbeat_timeout:
                log.warning("%s sent no heartbeat for %.1f s and is declared failed", id, silent)
                self._dismiss(id)
                self._lose(id, now, farewell=True)
            else:
                self._send(id, messages.LeaderHeartbeat())
        self._name_stall(now)
        self._name_hanging(now)

    def _name_stall(self, now: float) -> None:
        """Log that all members wait and none computes, at doubling intervals."""
        stall = now - self._moved_at
        active = self.machine.state is LeaderState.VIEW_ACTIVE and not any(f.finished for f in self.followers.values())
        if active and stall > max(self._timeouts.hang, 2 * self._stalled):
            self._stalled = stall
            step = max(follower.step for follower in self.followers.values())
            why = "for each other or for the syncer: do whole packets pass between all of their hosts?"
            log.warning("all %d ranks have waited for %.0f s in step %d, %s", len(self._members), stall, step, why)

    def _name_hanging(self, now: float) -> None:
        """Log which member keeps the others waiting, at doubling intervals; beyond `Timeouts.step` the others
        continue."""
        if all(follower.busy > 0.0 for follower in self.followers.values()):
            return
        for id, follower in self.followers.items():  # noqa: A001
            if follower.busy > max(self._timeouts.hang, 2 * follower.warned):
                follower.warned = follower.busy
                log.warning(
                    "%s has been in its own code for %.0f s in step %d; others wait", id, follower.busy, follower.step
                )
            if self._hangs(follower) and id in self._members:
                self._members.discard(id)
                self._end_view(Event.MEMBER_HANGS, f"{id} hangs in step {follower.step} for {follower.busy:.0f} s", now)

    def _hangs(self, follower: Follower) -> bool:
        return self._timeouts.step is not None and follower.busy > self._timeouts.step

    def _end_view(self, cause: Event | type[messages.Message], why: str, now: float) -> None:
        """Halt all followers, which then report for the next view."""
        self._changed_at = now
        was_active = self.machine.state is LeaderState.VIEW_ACTIVE
        self.machine.on(cause)
        if was_active:
            log.info("view %d ends: %s", self.number, why)
            self._send_all(messages.Halt(self.number, why), self.followers)

    def _form_if_ready(self, now: float) -> None:
        if (
            self.machine.state not in (LeaderState.COLLECTING, LeaderState.PARTITIONED)
            or self._own not in self.followers
        ):
            return
        if self._unready and any(f.report is None and not self._hangs(f) for f in self.followers.values()):
            return
        if self._first is not None:
            if len(self.followers) < self._first and now - self._changed_at < self._timeouts.join:
                return
        elif now - self._changed_at < self._timeouts.settle:
            return
        ready = [follower for follower in self.followers.values() if follower.report is not None]
        if ready and self._allowed(ready, now):
            self._first = None
            self._form(sorted(ready, key=lambda follower: (follower.peer.rank, follower.peer.id)))

    def _allowed(self, ready: list[Follower], now: float) -> bool:
        ballots = {follower.peer.id: follower.ballots for follower in ready}
        memory = self._memory.told(death for follower in ready for death in follower.deaths)
        if self._rule(ballots, memory) or (self._first is not None and not any(ballots.values())):
            return True
        if self.machine.state is LeaderState.COLLECTING:
            self._warned_at = now - self._timeouts.partition
        self.machine.on(Event.MINORITY)
        absent = absent_peers(ballots)
        if now - self._warned_at >= self._timeouts.partition:
            self._warned_at = now
            names = ", ".join(peer.id for peer in absent[:8]) or "members of the last view"
            log.warning("waiting, because other members may train without this part: no message from %s", names)
        self._probe(absent, now)
        return False

    def _probe(self, absent: list[Peer], now: float) -> None:
        due = [peer for peer in absent if now - self._probed.get(peer.id, float("-inf")) > PROBE_INTERVAL]
        for peer in due[:PROBED]:
            self._probed[peer.id] = now
            self._out.append(Probe(peer))

    def _form(self, ready: list[Follower]) -> None:
        self.number = self._memory.formed = self.number + 1
        self.machine.on(Event.FORMED)
        self._moved_at, self._stalled = self._last_tick, 0.0
        peers = tuple(follower.peer for follower in ready)
        self._members, self._probed = {peer.id for peer in peers}, {}
        for follower in self.followers.values():
            follower.since = (follower.since or self.number) if follower.peer.id in self._members else None
        fresh = not any(follower.ballots for follower in ready)
        view = View(self.number, self.followers[self._own].peer, len(peers), peers, *_most_advanced(ready), fresh)
        brief = replace(view, peers=peers[:HELD])
        log.info(
            "view %d: %s%s", view.number, ", ".join(peer.id for peer in peers[:HELD]), " ..." * (len(peers) > HELD)
        )
        self._out.append(Formed(view))
        ballot = Ballot(view.number, self._own, len(peers), peers, fresh=fresh)
        for rank, follower in enumerate(ready):
            follower.ballots = (*follower.ballots, ballot)
            follower.seen = view.number
            self._is_ready(follower, None)
            self._send(follower.peer.id, messages.ViewFormed(view if rank < HELD else brief, rank))

    def _end_if_finished(self) -> None:
        """End training when all followers have finished at the same step."""
        if self.followers and not self._unready and all(follower.finished for follower in self.followers.values()):
            steps = {follower.report.step for follower in self.followers.values() if follower.report is not None}
            if len(steps) == 1:
                self._send_all(messages.TrainingDone(steps.pop()), self.followers)

    def _send_all(self, message: messages.Message, to: Iterable[str]) -> None:
        for id in list(to):  # noqa: A001
            if id in self.followers:
                self._send(id, message)

    def _send(self, id: str, message: messages.Message) -> None:  # noqa: A002
        self._out.append(Send(id, message))


def _most_advanced(ready: Sequence[Follower]) -> tuple[int, bool]:
    """The rank with the newest state, and whether all ranks hold this state; a later view counts before more steps."""
    reports = [follower.report for follower in ready if follower.report is not None]
    order = [(report.view, report.step, -rank) for rank, report in enumerate(reports)]
    return -max(order)[2], len({report.mark for report in reports}) == 1
