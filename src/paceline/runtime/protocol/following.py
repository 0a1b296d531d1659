"""Decisions of a member: the leader that it follows, its view, and its votes. No sockets, threads or clock.

`members/member.py` runs this in a process; `benchmarks/lib/membership.py` runs many members in a simulated network. The
states are in `MemberState`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.runtime.members.view import HELD, Ballot, Peer, Report, Timeouts, View
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import ProtocolError
from paceline.runtime.protocol.quorum import Memory
from paceline.runtime.protocol.states import MEMBER_TABLE, Event, MemberState, StateMachine

__all__ = ["NOTICE_TIMEOUT", "Ask", "Following", "Lead", "Search", "outranks"]

NOTICE_TIMEOUT = 2.0
"""Seconds, in addition to two heartbeat timeouts, within which a live member has detected that its leader failed."""
Endpoint = tuple[str, int]


@dataclass(frozen=True)
class Ask:
    """Ask the process at this endpoint to be followed."""

    endpoint: Endpoint


@dataclass(frozen=True)
class Lead:
    """Start to lead."""


class Search:
    """A search for the leader: which endpoint to ask next. This process leads if all before it do not answer."""

    def __init__(
        self, order: Sequence[Endpoint], own: Peer, *, lost: Endpoint | None, may_lead: bool, until: tuple[float, float]
    ) -> None:
        """`lost`: endpoint of the leader that this process lost; a member that names it has not detected the failure.

        `until`: the present time, and for how many seconds to ask a member that has not detected the failure.
        """
        self._order, self._own, self._lost, self._may_lead = list(order), own, lost, may_lead
        self._index, self._patience, self._deadline = 0, until[1], sum(until)
        self._asked = self._order[0] if self._order else own.endpoint
        self._awaited = False
        """Whether a peer waits for this process to lead; waiting for that peer would be a deadlock."""

    def next(self, *, leads: bool) -> Ask | Lead | None:
        """The next action; None when all endpoints were asked."""
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
        """Process an answer other than a welcome, or a missing answer."""
        endpoint = self._order[self._index]
        pointed = (reply.address, reply.port) if isinstance(reply, messages.Redirect) else None
        if pointed is not None and pointed == self._lost and now > self._deadline:
            # A member that had time to detect a failure still follows this leader: only this process lost it.
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
    """The knowledge and the decisions of one member."""

    def __init__(self, peer: Peer, timeouts: Timeouts, now: float) -> None:
        self.peer, self._timeouts = peer, timeouts
        self.machine = StateMachine(MEMBER_TABLE, MemberState.SEARCHING)
        self.memory = Memory()
        self.followed: tuple[str, str, int] | None = None
        """Id and endpoint of the leader that this member follows, or that it followed last."""
        self.known: set[Endpoint] = set()
        """Endpoints of known peers that may be alive."""
        self.view: View | None = None
        self.rank = 0
        """Rank in the view."""
        self.ballots: tuple[Ballot, ...] = ()
        self._since: int | None = None
        """The first of the consecutive views of this member since it follows its leader."""
        self.ready: messages.Ready | None = None
        """The last report, until a view answers it; a new leader receives it again."""
        self.interrupted = False
        """Whether the view of the training loop has ended."""
        self.last_heard = self.ticked = now
        self._slept = False
        self.dismissed = False
        """Whether the leader dismissed this member, which shows that the leader is alive."""
        self.successor: str | None = None
        """Id of the expected next leader, while this member follows no leader."""
        self.resigned_for: Endpoint | None = None
        """Endpoint of the leader in whose favour this process resigned."""
        self.resigned = False
        self.first: int | None = None
        """On the first leader of the job: the number of members for which the first view waits."""

    def hello(self) -> messages.Hello:
        """The request to a possible leader; the first ranks list all members with a vote, others only their own
        vote."""
        held = (
            self.ballots if self.rank < HELD else tuple(replace(item, peers=item.peers[:HELD]) for item in self.ballots)
        )
        return messages.Hello(self.peer, self.seen, held)

    @property
    def seen(self) -> int:
        """Number of the last view that this member knows."""
        return self.view.number if self.view is not None else 0

    def report(self, report: Report, *, finished: bool) -> messages.Ready:
        """The report for the next view; kept until a view answers it."""
        established = next((item.number for item in self.ballots if item.established), 0)
        self.ready = messages.Ready(self.seen, established, report, finished, self.memory.deaths)
        return self.ready

    def judged(self, id: str, *, dead: bool) -> messages.Ready | None:  # noqa: A002
        """Note the result of a probe of a lost peer; if it died, return a report to the leader, which may not know."""
        self.memory.judged(id, dead=dead)
        if not dead or self.ready is None:
            return None
        self.ready = replace(self.ready, deaths=self.memory.deaths)
        return self.ready

    def welcomed(self, leader: tuple[str, str, int], now: float) -> None:
        """Follow this leader. An earlier suspension must not change the order of the next succession."""
        self.machine.on(messages.Welcome)
        self.followed = leader
        if self.ready is not None:
            self.ready = replace(self.ready, deaths=self.memory.deaths)
        self.last_heard = self.ticked = now
        self._slept, self.successor, self.dismissed, self.resigned = False, None, False, False
        self._since = None

    def hear(self, message: messages.Message, now: float) -> None:
        """Process a message of the leader."""
        self.last_heard = now
        if isinstance(message, messages.TrainingDone) and not self._finished_at(message.step):
            return  # it belongs to an earlier training loop
        if isinstance(message, messages.ViewFormed):
            self._check_place(message.view, message.rank)
        self.machine.on(type(message))
        if isinstance(message, messages.ViewFormed) and message.view.number > self.seen:
            self._enter(message.view, message.rank, now)
        elif isinstance(message, messages.Halt):
            self.interrupted = True
        elif isinstance(message, messages.Dismissal):
            self.dismissed = True

    def resume(self) -> bool:
        """Continue to train after the end; False if training has not ended."""
        if self.machine.state is not MemberState.DONE:
            return False
        # Cleared first: a leader may repeat that all have finished, which would end the training loop that starts now.
        self.ready = None
        self.machine.on(Event.RESUMED)
        return True

    def establish(self, number: int) -> None:
        """Note that all members have received this view: earlier views no longer count for votes."""
        ballot = next((item for item in self.ballots if item.number == number), None)
        if ballot is not None:
            later = tuple(item for item in self.ballots if item.number > number)
            self.ballots = (replace(ballot, established=True), *later)

    def lost(self, *, silent: bool) -> Peer | None:
        """Note that the connection to the leader ended, on either side; return the leader if it may have died."""
        self.machine.on(Event.DISCONNECTED)
        self.interrupted = True
        # A leader that died before it formed a view with this member may have continued without it.
        if self.view is None or self._since is None or self.dismissed or silent:
            return None
        self.memory.lost(self.view.leader.id, self._since)
        return self.view.leader

    def asleep(self, now: float) -> bool:
        """Whether this process was suspended: then the others have a leader, probably the same one."""
        self._slept = self._slept or now - self.ticked > self._timeouts.heartbeat_timeout
        return self._slept

    def direction(self, *, follows: bool) -> messages.Redirect | messages.WaitForSuccessor:
        """The answer to a member that searches for the leader."""
        if not follows or self.followed is None:
            return messages.WaitForSuccessor(self.successor)
        return messages.Redirect(*self.followed[1:])

    def leadership(self, led: tuple[bool, int] | None, now: float, *, follows: bool) -> messages.LeadershipReply:
        """The leader that this member knows: itself with the size of its group, or the leader that it follows.

        Only a leader knows how many members follow it before it has formed a view.
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
        """Whether this leader resigns in favour of the leader that a lost peer named, which becomes a known
        endpoint."""
        leader = (reply.address, reply.port)
        self.known.add(leader)
        if not outranks(reply, size, self.peer.id):
            return False
        # Set before it resigns, because followers search for the next leader at once.
        self.resigned_for, self.resigned = leader, True
        return True

    def search(self, known: Sequence[Endpoint], now: float, *, leads: bool) -> Search:
        """A search for the next leader; a process that was in no view may lead only if it led from the start."""
        patience = 2 * self._timeouts.heartbeat_timeout + NOTICE_TIMEOUT
        if leads:
            known = [self.peer.endpoint]
        if self.view is None or leads:
            # A member that was in no view asks the peers that asked it: their view listed it, but it did not receive
            # it.
            known = known if leads else [*known, *sorted(self.known - set(known))]
            return Search(known, self.peer, lost=None, may_lead=self.first is not None, until=(now, patience))
        asleep = self.asleep(now)
        order = self.view.succession(self.peer.id, absent=self.resigned or asleep)
        self.successor = order[0].id
        first, self.resigned_for = self.resigned_for, None
        endpoints = [*([first] if first else []), *(peer.endpoint for peer in order)]
        lost = None if asleep or self.followed is None else self.followed[1:]
        return Search(endpoints, self.peer, lost=lost, may_lead=True, until=(now, patience))

    def _check_place(self, view: View, rank: int) -> None:
        """Refuse a view in which this member does not have this rank: it would end the training loop."""
        complete = 0 <= rank < view.size and len(view.peers) == (view.size if rank < HELD else HELD)
        if not complete or (rank < HELD and view.peers[rank].id != self.peer.id):
            raise ProtocolError(f"{self.peer.id} cannot be rank {rank} of a view of {view.size} ranks")

    def _enter(self, view: View, rank: int, now: float) -> None:
        # A member that was suspended is in the group again, even if no peer detected it and the leader is the same.
        self.ticked, self._slept = now, False
        ballot = Ballot(view.number, view.leader.id, view.size, view.peers, fresh=view.fresh)
        if self._since is None or view.number > self.seen + 1:  # the views between may lack this member
            self._since = view.number
        if self._is_asked_twice(ballot):
            self.ballots = self.ballots[:-1]
        self.view, self.rank, self.ready, self.interrupted = view, rank, None, False
        self.ballots = (*self.ballots, ballot)
        self.known |= {peer.endpoint for peer in view.peers}

    def _is_asked_twice(self, ballot: Ballot) -> bool:
        """Whether the last attempt needs the same votes as this one, or as the one before it.

        The members are the same. After a gap the older attempt needs more: members that died since may have continued.
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
    """Whether another leader prevails: its members train and those of this leader wait; or they are more; or they are
    as many and its id is higher."""
    return reply.id != own and reply.members > 0 and (not reply.waits, reply.members, reply.id) > (*size, own)
