"""Which rank reads which shard of a stream, and how far each shard is used: the same on every rank.

A shard is leased to one rank at a time, which reads it from its place on. Only committed steps move places, so that the
shards of a rank that fails are read on by others from the first sample that no committed step has used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.cost.split import proportional_split

__all__ = ["Offer", "StreamProgress", "wanted_samples"]


@dataclass(frozen=True)
class Offer:
    """What a rank brings to the next step."""

    ready: int
    """Samples, at most as many as it was asked for."""
    more: bool
    """Whether it has read further ones of this epoch."""
    wants: int
    """Shards that it could read beside those that it holds."""
    places: tuple[tuple[int, int, int], ...]
    """Shards that these samples are of: number, place behind the last one, 1 if the shard ends there."""

    def short(self, wanted: int) -> bool:
        """Whether further shards could help: nobody knows yet what comes after these samples."""
        return wanted > 0 and not (self.ready == wanted and self.more)


@functools.lru_cache(maxsize=2)
def _order(num_shards: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng([seed, epoch]).permutation(num_shards).tolist())


class StreamProgress:
    """The shards of one epoch: not leased yet, held by a rank, or used up."""

    def __init__(self, num_shards: int, *, seed: int) -> None:
        self._num_shards, self._seed = num_shards, seed
        self._epoch = 0
        self._leased = 0
        """Shards of the epoch's order that somebody holds or has used up."""
        self._open: dict[int, tuple[str, int]] = {}
        """Who holds a shard, and its place: samples that committed steps have used. Nobody holds those of the dead."""

    def state_dict(self) -> dict[str, Any]:
        """For checkpoints and late joiners."""
        opened = [[shard, holder, place] for shard, (holder, place) in self._open.items()]
        return {"shards": self._num_shards, "epoch": self._epoch, "leased": self._leased, "open": opened}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another rank, or a run before, was."""
        if state["shards"] != self._num_shards:
            raise ValueError(f"it is of {state['shards']} shards, there are {self._num_shards}")
        self._epoch, self._leased = state["epoch"], state["leased"]
        self._open = {shard: (holder, place) for shard, holder, place in state["open"]}

    def copy(self) -> StreamProgress:
        """To be changed while a step is tried."""
        other = StreamProgress(self._num_shards, seed=self._seed)
        other.load_state_dict(self.state_dict())
        return other

    def held_by(self, holder: str) -> dict[int, int]:
        """The shards of a rank, and their places."""
        return {shard: place for shard, (one, place) in self._open.items() if one == holder}

    def release(self, present: Sequence[str]) -> None:
        """Absent ranks hold no shards."""
        self._open = {
            shard: (holder if holder in present else "", place) for shard, (holder, place) in self._open.items()
        }

    def grant(self, ids: Sequence[str], offers: Sequence[Offer]) -> dict[int, str]:
        """Lease shards one by one to the rank with the fewest; return the shards and their ranks."""
        left = {rank: offer.wants for rank, offer in zip(ids, offers, strict=True) if offer.wants > 0}
        if not left:
            return {}
        held = {rank: len(self.held_by(rank)) for rank in left}
        granted: dict[int, str] = {}
        for shard in self._free():
            rank = min(left, key=held.__getitem__)
            self._leased += shard not in self._open
            self._open[shard] = (rank, self._open.get(shard, ("", 0))[1])
            granted[shard] = rank
            held[rank], left[rank] = held[rank] + 1, left[rank] - 1
            left = {rank: wanted for rank, wanted in left.items() if wanted}
            if not left:
                break
        return granted

    def hand_over(self, ids: Sequence[str], offers: Sequence[Offer]) -> dict[int, str]:
        """At the end of an epoch: a rank that has read all of its shards continues one of a rank that has several."""
        dry = [rank for rank, offer in zip(ids, offers, strict=True) if offer.wants > 0 and not offer.more]
        moved: dict[int, str] = {}
        for taker in dry:
            others = [rank for rank in ids if rank not in dry]
            giver = max(others, key=lambda rank: len(self.held_by(rank)), default="")
            if len(self.held_by(giver)) > 1:
                shard = list(self.held_by(giver))[-1]
                self._open[shard] = (taker, self._open[shard][1])
                moved[shard] = taker
        return moved

    def _free(self) -> list[int]:
        """Shards that nobody holds: of ranks that failed, then those that are left of the epoch's order."""
        returned = [shard for shard, (holder, _) in self._open.items() if not holder]
        return returned + list(_order(self._num_shards, self._seed, self._epoch)[self._leased :])

    def use(self, offers: Sequence[Offer]) -> bool:
        """The samples of these offers are used; whether that ends the epoch, so that the next one begins."""
        for shard, place, ended in (place for offer in offers for place in offer.places):
            if ended:
                del self._open[shard]
            else:
                self._open[shard] = (self._open[shard][0], place)
        over = not self._open and self._leased == self._num_shards
        if over:
            self._epoch, self._leased = self._epoch + 1, 0
        return over


def wanted_samples(shares: Sequence[int], dry: Sequence[bool]) -> tuple[int, ...]:
    """Samples of each rank where some have no stream left: their part is taken by the others."""
    if not any(dry) or all(dry):
        return tuple(shares)
    weights = [0.0 if gone else float(share) for share, gone in zip(shares, dry, strict=True)]
    if not any(weights):
        weights = [float(not gone) for gone in dry]
    return proportional_split(weights, sum(shares))
