"""Who is in the group right now: data that the leader decides and every member holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Patience", "Peer", "View"]


@dataclass(frozen=True)
class Patience:
    """How long to wait for whom, in seconds."""

    beat: float = 0.25
    """Between two signs of life."""
    silence: float = 3.0
    """A member that was silent for so long is taken for dead; a slow one still beats."""
    join: float = 120.0
    """For the first members to come together; then those who came begin, and the others may follow."""
    linger: float = 0.1
    """Before a changed group steps again, so that two who come together change it once."""
    apart: float = 30.0
    """A part of a cut group that may be the smaller one goes on by itself only after so long."""


@dataclass(frozen=True)
class Peer:
    """One process that takes part."""

    id: str
    """Unique among all processes that ever took part."""
    rank: int
    """As its launcher numbered it; only the order matters."""
    address: str
    port: int


@dataclass(frozen=True)
class View:
    """The group from one change to the next."""

    number: int
    peers: tuple[Peer, ...]
    """In order: a peer's place is its rank in this view."""
    reports: tuple[dict[str, Any], ...]
    """What each peer said when the view was formed, in the same order."""
    leader: str

    def place(self, id: str) -> int:  # noqa: A002
        """The rank of a peer in this view."""
        return next(index for index, peer in enumerate(self.peers) if peer.id == id)

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> View:
        """From JSON data."""
        peers = tuple(Peer(**peer) for peer in plain["peers"])
        return cls(int(plain["number"]), peers, tuple(plain["reports"]), str(plain["leader"]))
