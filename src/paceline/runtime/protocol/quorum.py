"""The quorum rule: whether some members may continue without the others; at most one part of a group may.

Members vote in views. A view is established on a member when the member knows that all others received it as well.
Later views of which the member does not know this are attempts. Members that want to continue need, in the last
established view that any of them knows and in every attempt after it,

    more than half of the view's members, or half of them with its first rank, or
    all absent members dead, where those that may have continued before they died are not such a part themselves.

In addition one of them must hold the common state, or have taken part before there was one.

Two parts that satisfy the first condition share a member, and a member has one leader at a time. Attempts count because
a view that only some members received may have become established on others (dynamic voting with attempts; Yeger Lotem,
Keidar and Dolev 1997). A member is known to have died in a view under these conditions: it followed the same leader
from that view on, its connection ended without a farewell, and its port at once refused connections or was taken by
another process. A member that merely sent nothing, or that returned after the view, may have formed another view before
it died.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from paceline.runtime.members.view import Ballot, Peer

__all__ = ["Memory", "absent_peers", "may_go_on", "votes_needed"]


@dataclass
class Memory:
    """What a process remembers across leaders: which peers have ended, by id, and the views that it formed itself."""

    vanished: dict[str, int] = field(default_factory=dict)
    """Peers whose connection ended without a farewell and that have not answered since. The value is the view since
    which they had continued only with this process."""
    dead: set[str] = field(default_factory=set)
    """Peers whose port refuses connections or belongs to another process."""
    formed: int = 0
    """Number of the last view that this process formed; each number is used once."""

    @property
    def deaths(self) -> tuple[tuple[str, int], ...]:
        """Peers whose death this process observed, and the view since which they had continued only with it."""
        return tuple(sorted((id, since) for id, since in self.vanished.items() if id in self.dead))  # noqa: A001

    def told(self, deaths: Iterable[tuple[str, int]]) -> Memory:
        """Add deaths that present members observed. They were in all later views, so their ballots list these views."""
        vanished = dict(self.deaths)
        for id, since in deaths:  # noqa: A001
            vanished[id] = min(since, vanished.get(id, since))
        return Memory(vanished, self.dead | set(vanished), self.formed)

    def lost(self, id: str, since: int | None) -> None:  # noqa: A002
        """The connection to a peer ended without a farewell. `since`: the first of its consecutive views with this
        process; None if there was no view since it connected."""
        if since is not None:
            self.vanished[id] = since

    def judged(self, id: str, *, dead: bool) -> None:  # noqa: A002
        """Note the result of a probe: the peer is dead, or it may be alive and may have continued with others."""
        if dead:
            self.dead.add(id)
        else:
            self.vanished.pop(id, None)

    def back(self, id: str) -> None:  # noqa: A002
        """The peer follows again, so it is alive."""
        self.vanished.pop(id, None)
        self.dead.discard(id)


def votes_needed(ballots: Mapping[str, Sequence[Ballot]]) -> list[tuple[Ballot, set[str]]]:
    """The views in which the present members must have the votes, each with the members that received it."""
    merged: dict[tuple[int, str], tuple[Ballot, set[str]]] = {}
    for id, cast in ballots.items():  # noqa: A001
        for ballot in cast:
            known, holders = merged.get(ballot.name, (ballot, set()))
            holders.add(id)
            fuller = ballot if len(ballot.peers) > len(known.peers) else known
            if not fuller.established and (known.established or ballot.established):
                fuller = replace(fuller, established=True)
            merged[ballot.name] = (fuller, holders)
    last = max((ballot.number for ballot, _ in merged.values() if ballot.established), default=0)
    return [
        entry
        for entry in merged.values()
        if entry[0].number >= last and (entry[0].established or last < entry[0].number)
    ]


def may_go_on(ballots: Mapping[str, Sequence[Ballot]], memory: Memory) -> bool:
    """Whether the members that cast these ballots may form a view; members without any vote may not."""
    needed = votes_needed(ballots)
    # A late joiner that never received the common state cannot continue when all members that held it are dead. A
    # member of the first view that was in no established view knows that none of its views committed a step.
    held = any(ballot.established or ballot.fresh for ballot, _ in needed)
    return bool(needed) and held and all(_decides(ballot, holders, ballots, memory) for ballot, holders in needed)


def absent_peers(ballots: Mapping[str, Sequence[Ballot]]) -> list[Peer]:
    """Known members with a vote that are not present."""
    peers = {peer.id: peer for ballot, _ in votes_needed(ballots) for peer in ballot.peers}
    return [peer for id, peer in peers.items() if id not in ballots]  # noqa: A001


def _decides(ballot: Ballot, holders: set[str], present: Collection[str], memory: Memory) -> bool:
    ids = [peer.id for peer in ballot.peers]
    here = holders | {id for id in ids if id in present}  # noqa: A001
    if _is_decisive(here, ballot):
        return True
    away = set(ids) - here
    if not ballot.complete or not away <= memory.dead:
        return False
    with_us = {id for id in away if memory.vanished.get(id, math.inf) <= ballot.number}  # noqa: A001
    return not _is_decisive(away - with_us, ballot)


def _is_decisive(part: Collection[str], ballot: Ballot) -> bool:
    """More than half of a view's members, or half of them with its first rank."""
    return 2 * len(part) > ballot.size or (2 * len(part) == ballot.size and ballot.peers[0].id in part)
