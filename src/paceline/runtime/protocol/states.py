"""The states of a member, of a leader, and of a group as seen by a shard, with their transitions.

A transition is caused by a message that arrives or by an event. The processes execute these tables: a message that a
table does not allow in a state is a `ProtocolError`. `docs/explanation/protocol.md` shows them as diagrams.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from paceline.runtime.protocol.codec import ProtocolError
from paceline.runtime.protocol.messages import (
    BoardEntry,
    BoardPut,
    Busy,
    Dismissal,
    FactsQuery,
    Farewell,
    FetchParameters,
    Halt,
    Heartbeat,
    Hello,
    Idle,
    LeaderHeartbeat,
    LeaseRequest,
    LeaveSyncer,
    Message,
    Push,
    Ready,
    Redirect,
    Resume,
    Retune,
    StandingQuery,
    StartGroup,
    TrainingDone,
    ViewFailed,
    ViewFormed,
    WaitForSuccessor,
    Welcome,
)

__all__ = [
    "GROUP_TABLE",
    "LEADER_TABLE",
    "MEMBER_TABLE",
    "Event",
    "GroupState",
    "LeaderState",
    "MemberState",
    "StateMachine",
    "next_state",
]


class Event(Enum):
    """A state change without a message."""

    DISCONNECTED = "disconnected"
    """The connection to the leader closed, or its heartbeat timeout passed."""
    NO_LEADER = "no leader"
    """No leader was reached within the join timeout."""
    ROSTER_CLOSED = "roster closed"
    """The roster says that training is over."""
    THREAD_FAILED = "thread failed"
    """A thread of this process raised an exception, so that the process can no longer participate fully."""
    RESUMED = "resumed"
    """The training loop of this process continues after all members had finished."""
    LEFT = "left"
    """The process no longer participates."""
    MEMBER_FAILED = "member failed"
    """A member of the view disconnected, or its heartbeat timeout passed."""
    MEMBER_HANGS = "member hangs"
    """The training script of a member had control for longer than `Timeouts.step`."""
    MINORITY = "minority"
    """All followers have reported, but other members of the last view may train without them."""
    FORMED = "formed"
    """All followers have reported, and they may continue."""
    RESIGNED = "resigned"
    """The leader leaves, gives way to another, or was suspended for longer than the heartbeat timeout."""
    BUSY_HEARTBEAT = "busy heartbeat"
    """A heartbeat of a group that participates in rounds."""
    IDLE_HEARTBEAT = "idle heartbeat"
    """A heartbeat of a group that waits for samples."""
    TIMEOUT = "timeout"
    """The heartbeat timeout of a group passed, and the group has pushed its progress or has no samples."""
    TIMEOUT_WITH_LEASE = "timeout with lease"
    """The heartbeat timeout of a group passed while it trained on samples, which are now leased to other groups."""


class MemberState(Enum):
    """A member, as a follower."""

    SEARCHING = "searching"
    """Follows no leader and searches for one."""
    FOLLOWING = "following"
    """Follows a leader and waits for a view."""
    IN_VIEW = "in view"
    """Trains with the members of a view."""
    DONE = "done"
    """All members have finished."""
    LOST = "lost"
    """Can no longer participate: training fails on this process."""
    MISSED = "missed"
    """Training was over before this process could join."""
    LEFT = "left"
    """No longer participates."""


class LeaderState(Enum):
    """A leader, from its first view to its resignation."""

    COLLECTING = "collecting"
    """Waits for the reports of all followers."""
    PARTITIONED = "partitioned"
    """Has all reports, but other members of the last view may train without its followers: the leader waits."""
    VIEW_ACTIVE = "view active"
    """The members of the newest view train."""
    RESIGNED = "resigned"
    """No longer leads."""


class GroupState(Enum):
    """A group, as seen by one shard of the syncer."""

    UNKNOWN = "unknown"
    """The shard has received no message of the group."""
    UNHEARD = "unheard"
    """No message since this shard was restarted; the group's heartbeats tell whether it participates."""
    ACTIVE = "active"
    """Participates in rounds."""
    IDLE = "idle"
    """Waits for samples, or failed without owing any progress: rounds do not wait for it."""
    REVOKED = "revoked"
    """Declared failed while it trained on samples, which are leased again: its progress does not count."""
    LEFT = "left"
    """No longer participates."""


Cause = Event | type[Message]
S = TypeVar("S", bound=Enum)

_M, _L, _G = MemberState, LeaderState, GroupState
MEMBER_TABLE: dict[tuple[MemberState, Cause], MemberState] = {
    (_M.SEARCHING, Welcome): _M.FOLLOWING,
    (_M.SEARCHING, Redirect): _M.SEARCHING,
    (_M.SEARCHING, WaitForSuccessor): _M.SEARCHING,
    (_M.SEARCHING, Event.NO_LEADER): _M.LOST,
    (_M.SEARCHING, Event.ROSTER_CLOSED): _M.MISSED,
    (_M.FOLLOWING, ViewFormed): _M.IN_VIEW,
    (_M.FOLLOWING, Halt): _M.FOLLOWING,
    (_M.IN_VIEW, Halt): _M.FOLLOWING,
    # Finished members still receive the leader's messages to all members, until they leave.
    **{(_M.DONE, item): _M.DONE for item in (ViewFormed, Halt, TrainingDone)},
    **{(state, TrainingDone): _M.DONE for state in (_M.FOLLOWING, _M.IN_VIEW)},
    **{
        (state, item): state
        for state in (_M.FOLLOWING, _M.IN_VIEW, _M.DONE)
        for item in (LeaderHeartbeat, BoardEntry, Dismissal)
    },
    **{(state, Event.DISCONNECTED): _M.SEARCHING for state in (_M.FOLLOWING, _M.IN_VIEW)},
    (_M.DONE, Event.DISCONNECTED): _M.DONE,
    (_M.DONE, Event.RESUMED): _M.FOLLOWING,
    **{(state, Event.THREAD_FAILED): _M.LOST for state in (_M.SEARCHING, _M.FOLLOWING, _M.IN_VIEW, _M.DONE)},
    **{(state, Event.LEFT): _M.LEFT for state in (_M.SEARCHING, _M.FOLLOWING, _M.IN_VIEW, _M.DONE)},
}
_LEADING = (_L.COLLECTING, _L.PARTITIONED, _L.VIEW_ACTIVE)
LEADER_TABLE: dict[tuple[LeaderState, Cause], LeaderState] = {
    **{(state, item): state for state in _LEADING for item in (Heartbeat, Farewell, Resume, BoardPut)},
    # A change while no view is active does not change the state: the next view contains the current followers.
    **{(s, item): s for s in _LEADING[:2] for item in (Hello, ViewFailed, Event.MEMBER_FAILED, Event.MEMBER_HANGS)},
    **{(_L.VIEW_ACTIVE, item): _L.COLLECTING for item in (Hello, ViewFailed, Event.MEMBER_FAILED, Event.MEMBER_HANGS)},
    # A member of the view that reports has finished; one that was left behind and returns ends the view like `hello`.
    **{(state, Ready): state for state in _LEADING},
    (_L.PARTITIONED, Event.MINORITY): _L.PARTITIONED,
    (_L.COLLECTING, Event.MINORITY): _L.PARTITIONED,
    **{(state, Event.FORMED): _L.VIEW_ACTIVE for state in _LEADING[:2]},
    **{(state, Event.RESIGNED): _L.RESIGNED for state in _LEADING},
}
GROUP_TABLE: dict[tuple[GroupState, Cause], GroupState] = {
    **{(state, item): _G.ACTIVE for state in _G for item in (StartGroup, Busy)},
    # Only `start` and `busy` reactivate a revoked group: both imply that it has dropped its progress.
    **{(state, Push): _G.ACTIVE for state in _G},
    **{(state, Idle): _G.IDLE for state in _G},
    **{(state, LeaveSyncer): _G.LEFT for state in _G},
    **{(_G.REVOKED, item): _G.REVOKED for item in (Push, Idle, LeaveSyncer)},
    **{(s, i): s for s in _G for i in (FetchParameters, Retune, LeaseRequest, StandingQuery, FactsQuery)},
    # A heartbeat may overtake the group's `start`, so it counts for groups that started or may have, before a restart.
    **{(state, Event.BUSY_HEARTBEAT): _G.ACTIVE for state in _G if state not in (_G.UNKNOWN, _G.REVOKED)},
    **{(state, Event.BUSY_HEARTBEAT): state for state in (_G.UNKNOWN, _G.REVOKED)},
    **{(state, Event.IDLE_HEARTBEAT): state for state in _G if state is not _G.ACTIVE},
    (_G.ACTIVE, Event.IDLE_HEARTBEAT): _G.IDLE,
    **{(state, Event.TIMEOUT): _G.IDLE for state in _G if state is not _G.REVOKED},
    (_G.REVOKED, Event.TIMEOUT): _G.REVOKED,
    **{(state, Event.TIMEOUT_WITH_LEASE): _G.REVOKED for state in _G},
}


def next_state(table: Mapping[tuple[S, Cause], S], state: S, cause: Cause) -> S:
    """The state after a message or an event."""
    if (state, cause) not in table:
        name = cause.value if isinstance(cause, Event) else cause.kind
        raise ProtocolError(f"{name!r} is not allowed while {state.value}")
    return table[state, cause]


class StateMachine(Generic[S]):
    """A state that changes only as its table allows; a state that no transition leaves is final."""

    def __init__(self, table: Mapping[tuple[S, Cause], S], state: S) -> None:
        self._table, self.state = table, state
        self._final = set(table.values()) - {before for before, _ in table}
        # Receiving threads and threads that end the membership change the state concurrently: without the lock, a
        # message that was read before the end could overwrite the final state.
        self._lock = threading.Lock()

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in self._final

    def on(self, cause: Cause) -> S:
        """Change the state and return it; a final state does not change."""
        with self._lock:
            if not self.ended:
                self.state = next_state(self._table, self.state, cause)
            return self.state
