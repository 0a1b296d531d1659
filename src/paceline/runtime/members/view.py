"""Views: the members of a group, as the leader decides them. Also the roster file for late joiners."""

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
"""The first ranks of a view know all of its peers; other ranks know only these first ranks. This is enough to find the
next leader, and a view of n ranks costs n messages of constant size."""

MOST = 1 << 22
"""Largest number of bytes that are read from a roster, whatever the file contains."""
MOST_VIEWS = 1 << 48
"""Largest number of a view. A higher number in a message is refused, because later views would continue from it."""
OVER = "over"
"""Content of a roster after training has ended."""
log = logging.getLogger("paceline.runtime")


@dataclass(frozen=True)
class Timeouts:
    """Timeouts of the processes of a group, in seconds."""

    heartbeat_interval: float = 0.25
    """Interval of heartbeats; a twelfth of the heartbeat timeout, so that single late heartbeats have no effect."""
    heartbeat_timeout: float = 3.0
    """A member without heartbeats for this long is declared failed. A separate thread sends heartbeats, so that a slow
    step is not a failure; a busy host delays a thread by tenths of a second, rarely by seconds."""
    join: float = 120.0
    """Longest wait for the first members; then those present begin, and the others join late. Hosts of a cluster may
    start processes and import frameworks minutes apart."""
    settle: float = 0.1
    """Time between the last change of a group and its next view, so that members that arrive together cause one
    view."""
    partition: float = 30.0
    """Interval of warnings of a part of a group that waits, because the other members may train without it."""
    hang: float = 10.0
    """A rank whose user code takes longer than this for a step while others wait is named in the log."""
    step: float | None = None
    """The others continue without a rank whose user code takes longer than this for a step; None: they always wait."""


@dataclass(frozen=True)
class Peer:
    """A process that takes part in a job."""

    id: str
    """Unique among all processes that ever took part in the job."""
    rank: int
    """The rank that the launcher assigned; only the order matters."""
    address: str
    port: int

    @property
    def endpoint(self) -> tuple[str, int]:
        """Endpoint of the process's listener."""
        return (self.address, self.port)


@dataclass(frozen=True)
class Report:
    """The progress of a rank, reported when a view is formed."""

    step: int
    """Number of committed steps."""
    mark: str = ""
    """Identifies the state: ranks with equal marks hold equal parameters."""
    view: int = 0
    """Number of the view in which the state last changed; 0 for a state from a checkpoint or a fresh one."""


@dataclass(frozen=True)
class View:
    """The members of a group between two changes."""

    number: int
    leader: Peer
    """The peer that formed the view."""
    size: int
    """Number of ranks."""
    peers: tuple[Peer, ...]
    """The peers in the order of ranks: all of them on the first `HELD` ranks, the first `HELD` on the others."""
    source: int
    """The most advanced rank, whose state all ranks copy."""
    alike: bool
    """Whether all ranks already hold this state."""
    fresh: bool
    """Whether no member was in a view before."""

    def __post_init__(self) -> None:
        _check_peers(self.number, self.size, self.peers)
        if not 0 <= self.source < self.size:
            raise InputError(f"a view of {self.size} ranks has no rank {self.source}")

    def succession(self, own: str, *, absent: bool) -> list[Peer]:
        """The peers that may lead next, in an order on which all members agree; the lost leader comes last.

        A member that was `absent`, because it was suspended or resigned, has not lost its leader: it asks the last
        leader first, and leads only if no other peer does.
        """
        order = [*(peer for peer in self.peers[:HELD] if peer.id != self.leader.id), self.leader]
        return sorted(order, key=lambda peer: (peer.id == own, peer.id != self.leader.id)) if absent else order


@dataclass(frozen=True)
class Ballot:
    """A view in which a member has a vote on whether the group may continue."""

    number: int
    leader: str
    """Id of the peer that formed the view; together with the number it identifies the view."""
    size: int
    peers: tuple[Peer, ...]
    """The peers that the view lists."""
    established: bool = False
    """Whether the member knows that all others received the view, because it exchanged tensors with them."""
    fresh: bool = False
    """Whether no member was in a view before, so that there is no common state that could be lost."""

    def __post_init__(self) -> None:
        _check_peers(self.number, self.size, self.peers)

    @property
    def name(self) -> tuple[int, str]:
        """Identifies the view."""
        return (self.number, self.leader)

    @property
    def complete(self) -> bool:
        """Whether all of its peers are known."""
        return len(self.peers) == self.size


def _check_peers(number: int, size: int, peers: tuple[Peer, ...]) -> None:
    """Refuse a number of a view that is out of its bounds, and another number of peers than a view can list."""
    if not (0 <= number <= MOST_VIEWS and 1 <= len(peers) <= size):
        raise InputError(f"a view {number} of {size} ranks cannot have {len(peers)} first peers")


def read_roster(path: Path | None) -> list[tuple[str, int]]:
    """Endpoints of the members of the last view; empty if the file cannot be read."""
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        return [(str(address), int(port)) for address, port in json.loads(_content(path))]
    return []


def is_closed(path: Path | None) -> bool:
    """Whether the group has written that training is over."""
    return _content(path) == json.dumps(OVER).encode()


def _content(path: Path | None) -> bytes:
    """The content of the file; empty if it cannot be read, because training continues without it."""
    with contextlib.suppress(OSError):
        return read_regular(path, most=MOST, follow=True) if path is not None else b""
    return b""


def write_roster(path: Path | None, view: View) -> None:
    """Write the endpoints of the members for late joiners, if the job has a roster."""
    _write(path, [[peer.address, peer.port] for peer in view.peers])


def close_roster(path: Path | None) -> None:
    """Write that training is over."""
    _write(path, OVER)


def _write(path: Path | None, content: object) -> None:
    """Write the file atomically, without waiting for the disk. Only late joiners need it, so a failure is a warning."""
    if path is None:
        return
    try:
        atomic_write(path, json.dumps(content), durable=False)
    except OSError as error:
        log.warning("%s cannot be written, so late joiners may not find the others: %s", path, error)
