"""Decisions of a member, without sockets, threads or clock: the leader that it follows, its view, and its votes.

`members/member.py` runs it in a process; `benchmarks/lib/membership.py` runs many of them in a simulated network. Its
states are `MemberState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.runtime.members.view import HELD, Ballot, Peer, Report, Timeouts, View
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.quorum import Memory
from paceline.runtime.protocol.states import MEMBER_TABLE, Event, MemberState, StateMachine

__all__ = ["NOTICE_TIMEOUT", "Ask", "Following", "Lead", "Search", "outranks"]

NOTICE_TIMEOUT = 2.0
"""Seconds beyond two heartbeat timeouts: by then a live member has noticed that its leader is gone."""
Endpoint = tuple[str, int]


@dataclass(frozen=True)
class Ask:
    """Ask this endpoint to be followed."""

    endpoint: Endpoint


@dataclass(frozen=True)
class Lead:
    """Begin to lead."""


class Search:
    """Whom to ask for the leader, one after the other; this process leads if all before it do not answer."""

    def __init__(
        self, order: Sequence[Endpoint], own: Peer, *, lost: Endpoint | None, may_lead: bool, until: tuple[float, float]
    ) -> None:
        """`lost`: where the leader was that this process lost; a member that points there has not noticed yet.

        `until`: the time, and for how many seconds a member is asked that has not noticed.
        """
        self._order, self._own, self._lost, self._may_lead = list(order), own, lost, may_lead
        self._index, self._patience, self._deadline = 0, until[1], sum(until)
        self._asked = self._order[0] if self._order else own.endpoint
        self._awaited = False
        """Whether somebody waits for this process to lead: waiting for each other would be a hang."""

    def next(self, *, leads: bool) -> Ask | Lead | None:
        """What to do now; None when all were asked."""
        while self._index < len(self._order):
            if self._awaited and not leads:
                return Lead()
            if self._awaited or self._order[self._index] != self._own.endpoint or leads:
                return Ask(self._own.endpoint if self._awaited else self._asked)
            if self._may_lead:
                return Lead()
            self._advance(self._deadline)
        return None

    def answered(self, reply: messages.Message | None, now: float, *, leads: bool) -> None:
        """Take in an answer that is no welcome, or that there was none."""
        endpoint = self._order[self._index]
        pointed = (reply.address, reply.port) if isinstance(reply, messages.Redirect) else None
        if pointed is not None and pointed == self._lost and now > self._deadline:
            # A member that had the time to notice follows that leader still: the leader lives, and only we lost it.
            self._lost, self._asked, self._deadline = None, pointed, now + self._patience
        elif self._awaited or (reply is None and self._asked == endpoint) or now > self._deadline:
            self._awaited = False
            self._advance(now)
        elif isinstance(reply, messages.WaitForSuccessor) and reply.successor == self._own.id and not leads:
            self._awaited = self._may_lead
        else:
            self._asked = pointed if pointed is not None and pointed != self._lost else endpoint

    def _advance(self, now: float) -> None:
        self._index += 1
        self._deadline = now + self._patience
        if self._index < len(self._order):
            self._asked = self._order[self._index]


class Following:
    """What one member knows and decides."""

    def __init__(self, peer: Peer, timeouts: Timeouts, now: float) -> None:
        self.peer, self._timeouts = peer, timeouts
        self.machine = StateMachine(MEMBER_TABLE, MemberState.SEARCHING)
        self.memory = Memory()
        self.followed: tuple[str, str, int] | None = None
        """Id and endpoint of the leader that this member follows, or followed last."""
        self.known: set[Endpoint] = set()
        """Where those listen that this member has heard of and that may still live."""
        self.view: View | None = None
        self.rank = 0
        """In the view."""
        self.ballots: tuple[Ballot, ...] = ()
        self._since: int | None = None
        """The first view of those that this member was in without a gap since it follows its leader."""
        self.ready: messages.Ready | None = None
        """The last report, until a view answers it: it is sent again to the next leader."""
        self.interrupted = False
        """Whether the view that the training loop works in is over."""
        self.last_heard = self.ticked = now
        self._slept = False
        self.dismissed = False
        """Whether the leader said that it leads this member no more, so that it is alive."""
        self.successor: str | None = None
        """Who is expected to lead next, while this member follows nobody."""
        self.resigned_for: Endpoint | None = None
        """A leader that this process gave way to."""
        self.resigned = False
        self.first: int | None = None
        """How many the first view of the job waits for, on the process that leads from the beginning."""

    def hello(self) -> messages.Hello:
        """To a possible leader; the first ranks list the members with a vote, the others only their own vote."""
        held = (
            self.ballots if self.rank < HELD else tuple(replace(item, peers=item.peers[:HELD]) for item in self.ballots)
        )
        return messages.Hello(self.peer, self.seen, held)

    @property
    def seen(self) -> int:
        """Number of the last view that the member knows."""
        return self.view.number if self.view is not None else 0

    def report(self, report: Report, *, finished: bool) -> messages.Ready:
        """Ready for the next view; kept until a view answers it."""
        established = next((item.number for item in self.ballots if item.established), 0)
        self.ready = messages.Ready(self.seen, established, report, finished, self.memory.deaths)
        return self.ready

    def judged(self, id: str, *, dead: bool) -> messages.Ready | None:  # noqa: A002
        """A lost peer was called; if it died, what to tell the leader, which may not have seen it."""
        self.memory.judged(id, dead=dead)
        if not dead or self.ready is None:
            return None
        self.ready = replace(self.ready, deaths=self.memory.deaths)
        return self.ready

    def welcomed(self, leader: tuple[str, str, int], now: float) -> None:
        """From now on this member follows; having slept before must not change the order of the next succession."""
        self.machine.on(messages.Welcome)
        self.followed = leader
        if self.ready is not None:
            self.ready = replace(self.ready, deaths=self.memory.deaths)
        self.last_heard = self.ticked = now
        self._slept, self.successor, self.dismissed, self.resigned = False, None, False, False
        self._since = None

    def hear(self, message: messages.Message, now: float) -> None:
        """The leader sent a message."""
        self.last_heard = now
        if isinstance(message, messages.TrainingDone) and not self._finished_at(message.step):
            return  # it ends a loop before this one
        self.machine.on(type(message))
        if isinstance(message, messages.ViewFormed) and message.view.number > self.seen:
            self._enter(message.view, message.rank, now)
        elif isinstance(message, messages.Halt):
            self.interrupted = True
        elif isinstance(message, messages.Dismissal):
            self.dismissed = True

    def resume(self) -> bool:
        """There is more to train; False if training has not ended."""
        if self.machine.state is not MemberState.DONE:
            return False
        # Forgotten first: a leader may repeat that all have finished, which would end the loop that begins now.
        self.ready = None
        self.machine.on(Event.RESUMED)
        return True

    def establish(self, number: int) -> None:
        """All members of this view were heard of in it: what was formed before has no say any more."""
        ballot = next((item for item in self.ballots if item.number == number), None)
        if ballot is not None:
            later = tuple(item for item in self.ballots if item.number > number)
            self.ballots = (replace(ballot, established=True), *later)

    def lost(self, *, silent: bool) -> Peer | None:
        """The connection to the leader ended, or this process ended it; the leader, if it may have died."""
        self.machine.on(Event.DISCONNECTED)
        self.interrupted = True
        # A leader that died before it formed a view with this member may have gone on without it.
        if self.view is None or self._since is None or self.dismissed or silent:
            return None
        self.memory.lost(self.view.leader.id, self._since)
        return self.view.leader

    def asleep(self, now: float) -> bool:
        """Whether it was this process that was suspended: then the others have a leader, most likely the same."""
        self._slept = self._slept or now - self.ticked > self._timeouts.heartbeat_timeout
        return self._slept

    def direction(self, *, follows: bool) -> messages.Redirect | messages.WaitForSuccessor:
        """The answer to a member that looks for the leader."""
        if not follows or self.followed is None:
            return messages.WaitForSuccessor(self.successor)
        return messages.Redirect(*self.followed[1:])

    def leadership(self, led: tuple[bool, int] | None, now: float, *, follows: bool) -> messages.LeadershipReply:
        """Which leader this member knows of: itself with what it leads, or the one that it follows.

        How many follow a leader that has not formed a view yet, only that leader can say.
        """
        leader, (active, members) = (self.peer.id, *self.peer.endpoint), led or (False, 0)
        if led is None and follows and self.followed is not None:
            leader = self.followed
            if self.view is not None and self.machine.state is MemberState.IN_VIEW:
                active, members = True, self.view.size
        if self.asleep(now):
            active, members = False, 0
        return messages.LeadershipReply(*leader, not active, members)

    def gives_way(self, reply: messages.LeadershipReply, size: tuple[bool, int]) -> bool:
        """Whether this leader resigns for the one that a lost peer named; that one is asked from now on, too."""
        leader = (reply.address, reply.port)
        self.known.add(leader)
        if not outranks(reply, size, self.peer.id):
            return False
        # Before it resigns: followers search for the next leader at once.
        self.resigned_for, self.resigned = leader, True
        return True

    def search(self, known: Sequence[Endpoint], now: float, *, leads: bool) -> Search:
        """Where the next leader may be; a process that was in no view leads only if it did from the beginning."""
        patience = 2 * self._timeouts.heartbeat_timeout + NOTICE_TIMEOUT
        if leads:
            known = [self.peer.endpoint]
        if self.view is None or leads:
            # A member that was in no view asks the peers that asked it: they had it in a view that it did not receive.
            known = known if leads else [*known, *sorted(self.known - set(known))]
            return Search(known, self.peer, lost=None, may_lead=self.first is not None, until=(now, patience))
        asleep = self.asleep(now)
        order = self.view.succession(self.peer.id, absent=self.resigned or asleep)
        self.successor = order[0].id
        first, self.resigned_for = self.resigned_for, None
        endpoints = [*([first] if first else []), *(peer.endpoint for peer in order)]
        lost = None if asleep or self.followed is None else self.followed[1:]
        return Search(endpoints, self.peer, lost=lost, may_lead=True, until=(now, patience))

    def _enter(self, view: View, rank: int, now: float) -> None:
        # A suspended member is in the group again, even if no peer noticed and the leader did not change.
        self.ticked, self._slept = now, False
        ballot = Ballot(view.number, view.leader.id, view.size, view.peers, fresh=view.fresh)
        if self._since is None or view.number > self.seen + 1:  # between them the leader may have left this member out
            self._since = view.number
        if self._is_asked_twice(ballot):
            self.ballots = self.ballots[:-1]
        self.view, self.rank, self.ready, self.interrupted = view, rank, None, False
        self.ballots = (*self.ballots, ballot)
        self.known |= {peer.endpoint for peer in view.peers}

    def _is_asked_twice(self, ballot: Ballot) -> bool:
        """Whether the last attempt asks for no other votes than this one, or than the one before it.

        The same members are asked. After a gap the older attempt asks for more: who died since may have gone on before.
        """
        alike = [
            (item.size, item.peers, item.fresh, item.established) == (ballot.size, ballot.peers, ballot.fresh, False)
            for item in self.ballots[-2:]
        ]
        if not ballot.complete or not any(alike[-1:]):
            return False
        without_gap = self._since is not None and self._since <= self.ballots[-1].number
        return without_gap or alike == [True, True]

    def _finished_at(self, step: int) -> bool:
        return self.ready is not None and self.ready.finished and self.ready.report.step == step


def outranks(reply: messages.LeadershipReply, size: tuple[bool, int], own: str) -> bool:
    """Whether members of another leader train and ours wait, or are more, or as many and its id is the higher."""
    return reply.id != own and reply.members > 0 and (not reply.waits, reply.members, reply.id) > (*size, own)
