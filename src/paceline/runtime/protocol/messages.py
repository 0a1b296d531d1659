"""Every message between processes of a job: its fields, sender, receiver and answers.

`codec.py` encodes and validates messages. A test compares this module with `docs/explanation/protocol.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, dataclass_transform

from paceline.runtime.members.view import Ballot, Peer, Report, View
from paceline.runtime.syncer.leases import GroupStatus, Lease
from paceline.runtime.syncer.packing import Packing
from paceline.runtime.syncer.rounds import OuterOptimizer, StalenessRule

__all__ = [
    "KINDS",
    "BoardEntry",
    "BoardPut",
    "Busy",
    "Dismissal",
    "Done",
    "Facts",
    "FactsQuery",
    "Farewell",
    "FetchParameters",
    "GroupHeartbeat",
    "GroupMessage",
    "Halt",
    "Heartbeat",
    "HeartbeatReply",
    "Hello",
    "Idle",
    "LeaderHeartbeat",
    "LeadershipQuery",
    "LeadershipReply",
    "LeaseReply",
    "LeaseRequest",
    "LeaveSyncer",
    "Lifeline",
    "Message",
    "Parameters",
    "Push",
    "PushRejected",
    "Ready",
    "Redirect",
    "Resume",
    "Retune",
    "Role",
    "Standing",
    "StandingQuery",
    "StartGroup",
    "StartRefused",
    "TrainingDone",
    "ViewFailed",
    "ViewFormed",
    "WaitForSuccessor",
    "Welcome",
]

KINDS: dict[str, type[Message]] = {}
"""Every kind of message and its class."""


class Role(Enum):
    """The role of a process on a connection."""

    MEMBER = "member"
    """A rank of the job."""
    LEADER = "leader"
    """The member that forms the views of its group."""
    GROUP = "group"
    """The first rank of a group, which represents the group."""
    SHARD = "shard"
    """A process of the syncer, which holds one part of the common parameters."""


@dataclass_transform(frozen_default=True)
class Message:
    """A frozen dataclass; each subclass names its kind, sender, receiver and possible answers."""

    kind: ClassVar[str]
    sender: ClassVar[Role]
    receiver: ClassVar[Role]
    answers: ClassVar[tuple[str, ...]]
    """Kinds of which exactly one answers this message; empty if none does."""
    has_payload: ClassVar[bool]
    """Whether the field `data` follows the JSON text as raw bytes."""

    def __init_subclass__(
        cls,
        *,
        route: tuple[Role, Role] | None = None,
        kind: str = "",
        answers: tuple[str, ...] = (),
        payload: bool = False,
    ) -> None:
        dataclass(frozen=True)(cls)
        if route is not None:
            cls.kind, (cls.sender, cls.receiver), cls.answers, cls.has_payload = kind, route, answers, payload
            KINDS[kind] = cls


_TO_MEMBER = (Role.MEMBER, Role.MEMBER)
_TO_LEADER = (Role.MEMBER, Role.LEADER)
_FROM_LEADER = (Role.LEADER, Role.MEMBER)
_TO_SHARD = (Role.GROUP, Role.SHARD)
_FROM_SHARD = (Role.SHARD, Role.GROUP)

# Between members, before one follows the other.


class LeadershipQuery(Message, route=_TO_MEMBER, kind="leadership-query", answers=("leadership-reply",)):
    """A leader asks a lost peer which leader the peer follows."""

    peer: Peer
    """The asking leader; the peer learns of it by this message."""


class LeadershipReply(Message, route=_TO_MEMBER, kind="leadership-reply"):
    """The leader that the peer follows, perhaps the peer itself, and how many members train under it or follow it."""

    id: str
    address: str
    port: int
    waits: bool
    """Whether its followers wait, because other members may train without them."""
    members: int


class Hello(Message, route=_TO_MEMBER, kind="hello", answers=("welcome", "redirect", "wait")):
    """A member asks to follow; the connection stays open if the answer is `welcome`."""

    peer: Peer
    view: int
    """Number of the last view that the member was in."""
    ballots: tuple[Ballot, ...]
    """The views in which the member has a vote: the last established one, and those that were formed after it."""


class Lifeline(Message, route=_TO_MEMBER, kind="lifeline"):
    """The second connection of a follower, on which nothing more is said: only the death of a process ends it."""


class Redirect(Message, route=_TO_MEMBER, kind="redirect"):
    """The endpoint of the leader that the asked member follows."""

    address: str
    port: int


class WaitForSuccessor(Message, route=_TO_MEMBER, kind="wait"):
    """The asked member follows no leader at the moment."""

    successor: str | None  # the expected next leader


# Between a leader and the members that follow it.


class Welcome(Message, route=_FROM_LEADER, kind="welcome"):
    """The member follows this leader from now on."""

    view: int  # number of the newest view


class Heartbeat(Message, route=_TO_LEADER, kind="heartbeat"):
    """The member is alive, even if it trains slowly."""

    step: int = 0  # the current step
    seconds: float = 0.0
    """Seconds for which the training script has had control; 0 while the member waits for others."""


class Farewell(Message, route=_TO_LEADER, kind="farewell"):
    """The member is alive and no longer follows this leader; without this message the process itself ended."""


class LeaderHeartbeat(Message, route=_FROM_LEADER, kind="leader-heartbeat"):
    """The leader is alive."""


class Dismissal(Message, route=_FROM_LEADER, kind="dismissal"):
    """The leader is alive and no longer leads this member."""


class Ready(Message, route=_TO_LEADER, kind="ready"):
    """The member has stopped training steps and reports its progress; the next view names the most advanced member."""

    view: int
    """Number of the last view that the member knows: a report from before a view does not count after it."""
    established: int
    """Number of the last view that the member knows to be established; 0 if there is none."""
    report: Report
    finished: bool
    """Whether the member has trained to the end, so that it needs no further view."""
    deaths: tuple[tuple[str, int], ...] = ()
    """Members whose death this member observed, with the view since which they had continued only with this member."""


class Resume(Message, route=_TO_LEADER, kind="resume"):
    """The member continues to train after all members had finished."""


class ViewFailed(Message, route=_TO_LEADER, kind="view-failed"):
    """A step of this view failed on the member, so the view has to end."""

    view: int
    why: str


class BoardPut(Message, route=_TO_LEADER, kind="board-put"):
    """An entry for the board of a view, through which ranks exchange the addresses of their collectives."""

    view: int
    key: str
    value: bytes


class BoardEntry(Message, route=_FROM_LEADER, kind="board-entry"):
    """An entry of the view's board, sent to all members."""

    view: int
    key: str
    value: bytes


class Halt(Message, route=_FROM_LEADER, kind="halt"):
    """The view has ended: members stop stepping and report."""

    view: int
    why: str


class ViewFormed(Message, route=_FROM_LEADER, kind="view-formed"):
    """The members, ranks and state of the new view."""

    view: View
    rank: int
    """Rank of the member that receives the message."""


class TrainingDone(Message, route=_FROM_LEADER, kind="training-done"):
    """All members have finished at the same step, so they may leave."""

    step: int


# Between a group and a shard of the syncer.


class GroupMessage(Message):
    """The common fields of all messages of a group to a shard."""

    group: str  # its name


class GroupHeartbeat(GroupMessage, route=_TO_SHARD, kind="group-heartbeat", answers=("heartbeat-reply",)):
    """The group is alive; sent on a separate connection, because an exchange may wait for a whole round."""

    busy: bool  # whether it participates in rounds; a group that waits for samples does not


class StartGroup(GroupMessage, route=_TO_SHARD, kind="start", answers=("parameters", "start-refused"), payload=True):
    """The group starts; the parameters and rules of the first group apply to all groups."""

    session: int
    """Session id: a repeated `start` is executed once, and requests from before it no longer count."""
    layout: tuple[tuple[str, int], ...]
    """Name and size of every parameter."""
    num_samples: int
    epochs: int
    begin: tuple[int, int]
    """Epoch, and number of samples of that epoch that are already used."""
    staleness: StalenessRule | None
    """None keeps the rule with which the shard was started."""
    outer: OuterOptimizer | None
    data: bytes


class Push(GroupMessage, route=_TO_SHARD, kind="push", answers=("parameters", "push-rejected"), payload=True):
    """Progress of the group since a version; answered when its round is complete, with the requested samples."""

    session: int
    sequence: int
    """Counts the group's exchanges: a repeated push is applied once."""
    base: int  # the version that the progress started from
    samples: int
    packing: Packing
    data: bytes
    wanted: int = 0  # samples of the next lease, as if a `lease-request` followed; 0 for none
    status: GroupStatus | None = None  # the status of that request


class FetchParameters(GroupMessage, route=_TO_SHARD, kind="fetch", answers=("parameters",)):
    """The group requests the current common parameters."""


class Retune(GroupMessage, route=_TO_SHARD, kind="retune", answers=("done",)):
    """The first group changes the settings of all groups."""

    local_steps: int
    quorum: int
    merge_at: tuple[str, int] | None
    """Endpoint at which all groups join into one group; no further samples are leased."""


class LeaseRequest(GroupMessage, route=_TO_SHARD, kind="lease-request", answers=("lease-reply",)):
    """The group requests its next samples, and confirms that the previous samples are done."""

    session: int
    sequence: int
    """A repeated request gets the same lease."""
    size: int
    status: GroupStatus | None


class StandingQuery(GroupMessage, route=_TO_SHARD, kind="standing-query", answers=("standing",)):
    """The group asks whether it was declared failed, and whether its progress was applied."""

    sequence: int  # of the exchange that it asks about; 0 for none


class Busy(GroupMessage, route=_TO_SHARD, kind="busy", answers=("done",)):
    """The group participates in rounds from now on."""


class Idle(GroupMessage, route=_TO_SHARD, kind="idle", answers=("done",)):
    """The group waits for samples: rounds do not wait for it."""


class LeaveSyncer(GroupMessage, route=_TO_SHARD, kind="leave", answers=("done",)):
    """The group no longer participates."""


class FactsQuery(GroupMessage, route=_TO_SHARD, kind="facts-query", answers=("facts",)):
    """The group asks for counts of versions and staleness."""


class HeartbeatReply(Message, route=_FROM_SHARD, kind="heartbeat-reply"):
    """The shard is alive."""


class Parameters(Message, route=_FROM_SHARD, kind="parameters", payload=True):
    """The shard's part of the common parameters."""

    version: int
    packing: Packing
    waited: float  # seconds that the push waited for other groups
    data: bytes
    lease: LeaseReply | None = None  # to a push that asked for samples


class StartRefused(Message, route=_FROM_SHARD, kind="start-refused"):
    """The group trains a different model, or on different data, than the groups before it."""

    why: str


class PushRejected(Message, route=_FROM_SHARD, kind="push-rejected"):
    """The group was declared failed and other groups have its samples: its progress does not count."""


class Done(Message, route=_FROM_SHARD, kind="done"):
    """The request was carried out."""


class LeaseReply(Message, route=_FROM_SHARD, kind="lease-reply"):
    """The next samples of the group, and settings and state of all groups."""

    lease: Lease | None
    """None if no samples are left for now."""
    outstanding: int
    """Leases that groups still train on: if one fails, its samples are leased again."""
    local_steps: int | None
    """Steps between two exchanges from now on; None if unchanged."""
    merge_at: tuple[str, int] | None
    statuses: dict[str, GroupStatus | None]
    """The last notice of each group."""
    position: tuple[int, int]
    """Epoch, and samples of that epoch that were leased."""


class Standing(Message, route=_FROM_SHARD, kind="standing"):
    """Whether progress of the group counts."""

    counts: bool
    taken_in: bool
    """Whether the progress of that exchange was received, even if its round is not complete."""


class Facts(Message, route=_FROM_SHARD, kind="facts"):
    """Counts of a shard, for reports."""

    version: int
    dropped: int
    groups: int
    mean_staleness: float
    largest_staleness: int
