"""The samples of each step for streams: ranks exchange how many samples they have prefetched, and agree on shares.

Before a step each rank offers as many samples as the balance assigns to it, or fewer if its shards end. One small
all-reduce gives all offers to all ranks, which then lease further shards alike. A step that is not committed changes
nothing: its samples are offered again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch

from paceline.errors import InputError
from paceline.runtime.data.batches import Batch, as_batch
from paceline.runtime.data.feed import AnySource, Course, Feed, GroupSplit
from paceline.runtime.data.progress import Offer, wanted_samples
from paceline.runtime.data.streams import StreamReader
from paceline.runtime.group.wire import Wire
from paceline.runtime.members.view import Peer
from paceline.runtime.samples import Attempt, Position, chunked
from paceline.runtime.settings import Settings

__all__ = ["StreamFeed", "check_streams", "feed_of"]

PLACES = 6
"""Shards per rank in the first message of a step; if a rank has more, a second message follows."""

_NOWHERE: tuple[tuple[int, int, int], ...] = ()


class StreamSplit(GroupSplit, Protocol):
    """The ranks of a step, and the collectives between them."""

    peers: tuple[Peer, ...]
    wire: Wire


class StreamFeed:
    """The coming steps of one rank that trains on streams, with the methods of a `Feed`."""

    def __init__(self, reader: StreamReader, settings: Settings, device: torch.device, *, global_batch: int) -> None:
        self._reader, self._settings, self._device, self._batch = reader, settings, device, global_batch
        self.progress = reader.progress
        self._split: StreamSplit | None = None
        self._ids: list[str] = []
        self._dry: list[bool] = []
        """For each rank, whether it has no sample of this epoch left."""
        self._trying, self._places = self.progress, _NOWHERE
        """The progress after the step that is being tried, and the places of this rank's shards after it."""

    def next_attempt(self, course: Course, split: StreamSplit, position: Position, *, began: float) -> Attempt:
        """Wait until this rank has its samples, exchange offers with the other ranks, and take the agreed share."""
        self._begin(split)
        waited, spent, handed = 0.0, 0.0, False
        while True:
            wanted = wanted_samples(split.balance.decide(self._batch), self._dry)
            reading = time.perf_counter()
            mine = self._reader.offer(wanted[split.rank])
            told = time.perf_counter()
            offers = _all_offers(split, mine)
            waited, spent = waited + told - reading, spent + time.perf_counter() - told
            granted = self._opened(split, self._trying.grant(self._ids, offers))
            if not granted and not handed:  # at most once per step: otherwise two ranks could move one shard for ever
                granted, handed = self._opened(split, self._trying.hand_over(self._ids, offers)), True
            if granted and any(offer.short(number) for offer, number in zip(offers, wanted, strict=True)):
                continue
            self._dry = [not offer.more for offer in offers]
            if any(offer.ready for offer in offers):
                break
            if all(self._dry):
                raise InputError("the shards hold no samples")
        return self._take(offers, mine, position, began=began + spent, waited=waited)

    def _begin(self, split: StreamSplit) -> None:
        """Start from the committed progress: keep samples that were read, if this rank holds their shard."""
        self._reader.put_back()
        if self._split is not split:
            self._split, self._ids = split, [peer.id for peer in split.peers]
            self._dry = [False] * len(self._ids)
        self._trying = self.progress.copy()
        self._trying.release(self._ids)
        held = self._trying.held_by(self._ids[split.rank])
        if held != self._reader.held:
            self._reader.close()
            for shard, place in held.items():
                self._reader.open(shard, place)

    def _opened(self, split: StreamSplit, granted: dict[int, str]) -> bool:
        """Open the shards that this rank was granted, and drop those that moved away; return whether any shard
        moved."""
        held = self._trying.held_by(self._ids[split.rank])
        for shard in granted:
            if shard in held:
                self._reader.open(shard, held[shard])
            elif shard in self._reader.held:
                self._reader.drop(shard)
        return bool(granted)

    def _take(
        self, offers: Sequence[Offer], mine: Offer, position: Position, *, began: float, waited: float
    ) -> Attempt:
        shares = tuple(offer.ready for offer in offers)
        self._reader.take(mine.ready)
        self._places = mine.places
        if self._trying.use(offers):
            after = Position(position.step + 1, position.epoch + 1, 0)
        else:
            after = Position(position.step + 1, position.epoch, position.cursor + sum(shares))
        taken = self._reader.taken
        return Attempt(
            sum(shares),
            shares,
            # A rank without samples gets some that do not count: its loop follows every step.
            chunked(taken, self._settings.chunk) or [taken],
            began=began,
            after=after,
            waited=waited,
            loading=self._reader.work,
            beside=self._reader.workers > 0,
        )

    def batches(self, attempt: Attempt) -> Iterator[Batch]:
        """The batches of this rank's share."""
        begin = 0
        for chunk in attempt.chunks:
            content = self._reader.content(begin, begin + len(chunk))
            begin += len(chunk)
            yield as_batch(content, chunk, self._device)

    def commit(self, attempt: Attempt) -> None:
        """Count the samples of the step as used, and keep its leases."""
        self.progress.load_state_dict(self._trying.state_dict())
        self._reader.commit(self._places)

    def close(self) -> None:
        """Drop samples that were read and not used; they are read again."""
        self._reader.close()


def feed_of(source: AnySource, settings: Settings, device: torch.device, *, global_batch: int) -> Feed | StreamFeed:
    """The feed for a source."""
    if isinstance(source, StreamReader):
        return StreamFeed(source, settings, device, global_batch=global_batch)
    return Feed(source, settings, device)


def check_streams(source: AnySource, settings: Settings, *, groups: bool, sharded: bool) -> None:
    """Refuse settings that do not work with streams, because they need sample indices or a sample on every rank."""
    if not isinstance(source, StreamReader):
        return
    refused = {
        "several groups": groups,
        "Settings(scheme='auto')": settings.scheme == "auto",
        "Settings(batchnorm='sync')": settings.batchnorm == "sync",
        "a model in shards": sharded,
    }
    for what, asked in refused.items():
        if asked:
            raise InputError(
                f"streams do not work with {what}: samples left on a rank are known only when it has read them",
                hint="paceline.runtime.ShardedSamples, with the number of samples of each shard, works with all",
            )


def _all_offers(split: StreamSplit, mine: Offer) -> list[Offer]:
    """The offer of each rank, in the order of ranks."""
    size = len(split.peers)
    head = [mine.ready, int(mine.more), max(0, mine.wants), len(mine.places)]
    rows = _summed(split, [*head, *np.ravel(mine.places[:PLACES]).tolist()], 4 + 3 * PLACES)
    longest = max(row[3] for row in rows)
    if longest > PLACES:
        further = _summed(split, np.ravel(mine.places[PLACES:]).tolist(), 3 * (longest - PLACES))
        rows = [row + more for row, more in zip(rows, further, strict=True)]
    offers = []
    for ready, more, wants, count, *numbers in rows:
        triples = zip(*(iter(numbers[: 3 * count]),) * 3, strict=True)
        offers.append(Offer(ready, bool(more), wants, tuple(triples)))
    assert len(offers) == size
    return offers


def _summed(split: StreamSplit, mine: Sequence[int], width: int) -> list[list[int]]:
    rows = torch.zeros(len(split.peers) * width, dtype=torch.int64)
    begin = split.rank * width
    rows[begin : begin + len(mine)] = torch.tensor(mine, dtype=torch.int64)
    split.wire.all_reduce_promptly(rows)()
    table: list[list[int]] = rows.view(-1, width).tolist()
    return table
