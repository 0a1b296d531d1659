"""The current members of a group, decided by the leader and held by every member; and the roster file for late
joiners."""

from __future__ import annotations

import contextlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import InputError
from paceline.files import atomic_write, read_regular

__all__ = [
    "HELD",
    "MOST_VIEWS",
    "Ballot",
    "Peer",
    "Report",
    "Timeouts",
    "View",
    "close_roster",
    "is_closed",
    "read_roster",
    "write_roster",
]

HELD = 16
"""The first ranks of a view know all of its peers, the others know these first ranks: enough to find who leads next,
and a view of n ranks costs n messages of constant size."""

MOST = 1 << 22
"""Bytes of a roster that are read: of the `HELD` endpoints that it has, and of whatever else stands in its place."""
MOST_VIEWS = 1 << 48
"""No job forms more; who says so is not believed, as all later views would have to be counted from there."""
OVER = "over"
"""In place of a roster: training is over and nobody is left to be joined."""
log = logging.getLogger("paceline.runtime")


@dataclass(frozen=True)
class Timeouts:
    """How long processes of a group wait for each other, in seconds."""

    heartbeat_interval: float = 0.25
    """Between two heartbeats. A twelfth of the heartbeat timeout, so that single late ones cost nothing."""
    heartbeat_timeout: float = 3.0
    """A member without heartbeats for this long is declared failed. Heartbeats come from a thread of their own, so a
    slow step is no failure; a busy host delays a thread by tenths of a second, rarely by seconds."""
    join: float = 120.0
    """For the first members to come together; then those that came begin, and the others may join late. Hosts of a
    cluster start processes and import frameworks minutes apart at worst."""
    settle: float = 0.1
    """Between the last change of a group and its next view, so that members that come together change it once."""
    partition: float = 30.0
    """Between two warnings of a part of the group that waits, since the others may train without it."""
    hang: float = 10.0
    """A rank whose own code takes longer than this for a step while others wait for it is named in the log."""
    step: float | None = None
    """A rank whose own code takes longer than this for a step is left behind until it returns; None: never."""


@dataclass(frozen=True)
class Peer:
    """One process that takes part."""

    id: str
    """Unique among all processes that ever took part."""
    rank: int
    """As its launcher numbered it; only the order matters."""
    address: str
    port: int

    @property
    def endpoint(self) -> tuple[str, int]:
        """Where the process listens."""
        return (self.address, self.port)


@dataclass(frozen=True)
class Report:
    """How far a rank has come, when a view is formed."""

    step: int
    """Committed steps."""
    mark: str = ""
    """Names the state: ranks with equal marks hold equal parameters."""
    view: int = 0
    """Number of the view in which the state last changed; 0 if it is from a checkpoint, or fresh."""


@dataclass(frozen=True)
class View:
    """The group from one change to the next."""

    number: int
    leader: Peer
    """The peer that formed the view."""
    size: int
    """Number of ranks."""
    peers: tuple[Peer, ...]
    """The peers in the order of ranks: all of them on the first `HELD` ranks, the first `HELD` on the others."""
    source: int
    """The most advanced rank, whose state all take over."""
    alike: bool
    """Whether all ranks hold that state already."""
    fresh: bool
    """Whether none of its members was in a view before."""

    def succession(self, own: str, *, absent: bool) -> list[Peer]:
        """Who may lead next, in the order on which all members have to agree; the lost leader comes last.

        A member that was `absent`, as it slept or resigned, has not lost its leader: it asks the last one first, and
        leads only if nobody else does.
        """
        order = [*(peer for peer in self.peers[:HELD] if peer.id != self.leader.id), self.leader]
        return sorted(order, key=lambda peer: (peer.id == own, peer.id != self.leader.id)) if absent else order


@dataclass(frozen=True)
class Ballot:
    """A view in which a member has a vote on how the group goes on."""

    number: int
    leader: str
    """Id of the peer that formed the view: with the number, its name."""
    size: int
    peers: tuple[Peer, ...]
    """As in the view."""
    established: bool = False
    """Whether the member knows that all others received the view as well, as it has exchanged tensors with them."""
    fresh: bool = False
    """Whether none of its members was in a view before, so that there is no common state that could be lost."""

    def __post_init__(self) -> None:
        if not (0 <= self.number <= MOST_VIEWS and 1 <= len(self.peers) <= self.size):
            raise InputError(f"a view {self.number} of {self.size} ranks cannot have {len(self.peers)} first peers")

    @property
    def name(self) -> tuple[int, str]:
        """What tells the view from all others."""
        return (self.number, self.leader)

    @property
    def complete(self) -> bool:
        """Whether all of its peers are known."""
        return len(self.peers) == self.size


def read_roster(path: Path | None) -> list[tuple[str, int]]:
    """Endpoints of the members of the last view."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        return [(str(address), int(port)) for address, port in json.loads(_content(path))]
    return []


def is_closed(path: Path | None) -> bool:
    """Whether the group wrote that training is over."""
    return _content(path) == json.dumps(OVER).encode()


def _content(path: Path | None) -> bytes:
    """What the file says; nothing if there is none, or something else in its place: training goes on without it."""
    with contextlib.suppress(OSError):
        return read_regular(path, most=MOST, follow=True) if path is not None else b""
    return b""


def write_roster(path: Path | None, view: View) -> None:
    """Write where late joiners find the members, if there is a file for it."""
    _write(path, [[peer.address, peer.port] for peer in view.peers])


def close_roster(path: Path | None) -> None:
    """Write that training is over."""
    _write(path, OVER)


def _write(path: Path | None, content: object) -> None:
    """Only late joiners need the file, so training goes on without it; it is of no use after a reboot."""
    if path is None:
        return
    try:
        atomic_write(path, json.dumps(content), durable=False)
    except OSError as error:
        log.warning("%s cannot be written, so late joiners may not find the others: %s", path, error)
