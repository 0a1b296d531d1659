"""Assignment of the shards of a stream to ranks, and the progress in each shard; equal on every rank.

A shard is leased to one rank at a time, which reads it from its place on. Only committed steps advance places. So when
a rank fails, other ranks continue its shards from the first sample that no committed step has used.
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
    """What a rank offers for the next step."""

    ready: int
    """Number of samples that are ready, at most as many as the rank was asked for."""
    more: bool
    """Whether the rank has read further samples of this epoch."""
    wants: int
    """Number of shards that the rank could read in addition to those that it holds."""
    places: tuple[tuple[int, int, int], ...]
    """Shards of the offered samples: number, place after the last sample, and 1 if the shard ends there."""

    def short(self, wanted: int) -> bool:
        """Whether further shards could help: the rank has read no sample beyond the wanted ones."""
        return wanted > 0 and not (self.ready == wanted and self.more)


@functools.lru_cache(maxsize=2)
def _order(num_shards: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng([seed, epoch]).permutation(num_shards).tolist())


class StreamProgress:
    """The shards of one epoch; each is not leased yet, held by a rank, or used up."""

    def __init__(self, num_shards: int, *, seed: int) -> None:
        self._num_shards, self._seed = num_shards, seed
        self._epoch = 0
        self._leased = 0
        """Number of shards, in the order of the epoch, that were leased so far."""
        self._open: dict[int, tuple[str, int]] = {}
        """Holder and place of each open shard. The place counts samples that committed steps have used; the holder is
        empty after the rank has failed."""

    def state_dict(self) -> dict[str, Any]:
        """State for checkpoints and late joiners."""
        opened = [[shard, holder, place] for shard, (holder, place) in self._open.items()]
        return {"shards": self._num_shards, "epoch": self._epoch, "leased": self._leased, "open": opened}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of another rank, or of an earlier run."""
        if state["shards"] != self._num_shards:
            raise ValueError(f"it is of {state['shards']} shards, there are {self._num_shards}")
        self._epoch, self._leased = state["epoch"], state["leased"]
        self._open = {shard: (holder, place) for shard, holder, place in state["open"]}

    def copy(self) -> StreamProgress:
        """A copy, to be changed while a step is tried."""
        other = StreamProgress(self._num_shards, seed=self._seed)
        other.load_state_dict(self.state_dict())
        return other

    def held_by(self, holder: str) -> dict[int, int]:
        """The shards that a rank holds, and their places."""
        return {shard: place for shard, (one, place) in self._open.items() if one == holder}

    def release(self, present: Sequence[str]) -> None:
        """Release the shards of ranks that are not present."""
        self._open = {
            shard: (holder if holder in present else "", place) for shard, (holder, place) in self._open.items()
        }

    def grant(self, ids: Sequence[str], offers: Sequence[Offer]) -> dict[int, str]:
        """Lease shards one by one, each to the rank that holds fewest; return the leased shards and their ranks."""
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
        """At the end of an epoch, move shards from ranks that hold several to ranks that have read all of theirs."""
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
        """Shards without a holder: first those of failed ranks, then those that were not leased in this epoch."""
        returned = [shard for shard, (holder, _) in self._open.items() if not holder]
        return returned + list(_order(self._num_shards, self._seed, self._epoch)[self._leased :])

    def use(self, offers: Sequence[Offer]) -> bool:
        """Count the offered samples as used; return whether the epoch ended and the next one begins."""
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
    """Samples of each rank if some ranks have no stream left: the other ranks take their part."""
    if not any(dry) or all(dry):
        return tuple(shares)
    weights = [0.0 if gone else float(share) for share, gone in zip(shares, dry, strict=True)]
    if not any(weights):
        weights = [float(not gone) for gone in dry]
    return proportional_split(weights, sum(shares))
