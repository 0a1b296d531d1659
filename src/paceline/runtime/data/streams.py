"""Streams of samples: the workers of a rank read its shards ahead of its steps.

    ShardStreams(shards, read)      # read(shard) yields the samples of one shard

A worker reads one shard after the other, in blocks of the rank's share divided by the number of workers, so that
`prefetch_factor` steps are prefetched. The rank uses samples in the order in which they arrive; samples of one shard
keep their order.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, IterableDataset, default_collate

from paceline.errors import InputError
from paceline.runtime.data.batches import pinned
from paceline.runtime.data.loader import EndsWithRank
from paceline.runtime.data.progress import Offer, StreamProgress

__all__ = ["ShardStreams", "StreamReader", "check_stream_loader"]

log = logging.getLogger("paceline.runtime")
Block = tuple[int, int, int, list[Any], bool, float]
"""Number of the lease, shard, place of the first sample, samples, whether the shard ends after them, seconds."""


class ShardStreams(IterableDataset[Any]):
    """Samples of shards that are read in order, without indices: the number of samples of a shard may be unknown."""

    def __init__(self, shards: Sequence[Any], read: Callable[[Any], Iterable[Any]]) -> None:
        """`read` yields the samples of a shard: the same samples in the same order at every call."""
        if isinstance(shards, str):
            raise InputError(f"the shards are one text, {shards!r}, expected a list", hint='glob.glob("data/*.tar")')
        self.shards, self.read = list(shards), read
        if not self.shards:
            raise InputError("there are no shards", hint='ShardStreams(["a.tar", "b.tar"], read)')

    def __iter__(self) -> Iterator[Any]:
        """All samples, shard by shard, for loops without Paceline."""
        return itertools.chain.from_iterable(map(self.read, self.shards))


class _Leased(IterableDataset[Block]):
    """The dataset of a worker: blocks of the shards that its rank has leased, until the worker receives None."""

    def __init__(self, streams: ShardStreams, leases: Any, block: torch.Tensor) -> None:
        self._streams, self._leases, self._block = streams, leases, block

    def __iter__(self) -> Iterator[Block]:
        while (lease := self._leases.get()) is not None:  # None ends a worker
            yield from self._blocks(*lease)

    def _blocks(self, lease: int, shard: int, place: int) -> Iterator[Block]:
        began = time.perf_counter()
        samples = iter(self._streams.read(self._streams.shards[shard]))
        skipped = sum(1 for _ in itertools.islice(samples, place))
        if skipped < place:
            name = self._streams.shards[shard]
            log.warning("%s: read again it has %d samples, but %d of it were used", name, skipped, place)
        while True:
            size = max(1, int(self._block))
            block = list(itertools.islice(samples, size))
            ended = len(block) < size
            yield lease, shard, place, block, ended, time.perf_counter() - began
            if ended:
                return
            place, began = place + len(block), time.perf_counter()


class StreamReader:
    """The open shards of one rank, and the samples read from them that no committed step has used."""

    ahead = 0
    """Shares are not decided ahead: samples are collated when a step takes them."""

    def __init__(self, streams: ShardStreams, loader: DataLoader[Any] | None, collate: Any, *, seed: int) -> None:
        """`loader`: the user's DataLoader of the streams; None reads in the loop."""
        self.shards = streams.shards
        self.num_samples = len(streams.shards)
        self.sketch: list[float] = []
        """Nobody has counted the samples: shards are what runs over the same data have in common."""
        self.progress = StreamProgress(len(streams.shards), seed=seed)
        self.kept = (self.progress,)
        self._streams, self._loader = streams, loader
        self._collate = collate or (loader.collate_fn if loader is not None else default_collate)
        self.workers = loader.num_workers if loader is not None else 0
        self.held: dict[int, int] = {}
        """Shards of this rank, and their places: how many of their samples committed steps have used."""
        self._ends: dict[int, int] = {}
        """Number of samples of each shard that was read to its end."""
        self._numbers: dict[int, int] = {}
        """Number of the present lease of each shard: a worker may still read under an older lease."""
        self._leased = 0
        self._ready: deque[tuple[int, int, Any, float]] = deque()
        """Samples that were read and not taken: shard, place, sample, seconds."""
        self._out: list[tuple[int, int, Any, float]] = []
        """Samples of the step that is being tried."""
        self._block = torch.ones(1, dtype=torch.int64).share_memory_()
        self._leases: Any = None
        self._blocks: Iterator[Block] | None = None

    def open(self, shard: int, place: int) -> None:
        """Start to read a shard from this place on."""
        self._start()
        self._leased += 1
        self.held[shard], self._numbers[shard] = place, self._leased
        self._leases.put((self._leased, shard, place))

    def drop(self, shard: int) -> None:
        """Stop reading a shard that moved to another rank, and drop its unused samples."""
        del self.held[shard], self._numbers[shard]
        self._ends.pop(shard, None)
        self._ready = deque(entry for entry in self._ready if entry[0] != shard)

    def offer(self, wanted: int) -> Offer:
        """Wait for samples for a step; return how many there are, at most `wanted`, and whether more follow."""
        self._block[0] = -(-max(wanted, 1) // max(1, self.workers))
        while len(self._ready) <= wanted and self._unread():
            self._keep(next(self._started()))
        ready = min(wanted, len(self._ready))
        places = dict(self.held)
        for shard, place, *_ in itertools.islice(self._ready, ready):
            places[shard] = place + 1
        moved = tuple(
            (shard, place, int(self._ends.get(shard) == place))
            for shard, place in places.items()
            if place != self.held[shard] or self._ends.get(shard) == place
        )
        wants = max(1, self.workers) + (self.workers > 0) - self._unread() if wanted else 0
        return Offer(ready, len(self._ready) > ready, wants, moved)

    def take(self, count: int) -> None:
        """Take `count` samples for the step that is tried."""
        self._out = [self._ready.popleft() for _ in range(count)]

    @property
    def taken(self) -> np.ndarray:
        """Shard and place of each sample of the step."""
        return np.array([entry[:2] for entry in self._out], dtype=np.int64).reshape(-1, 2)

    @property
    def work(self) -> float:
        """Seconds that this rank's workers need for the samples of the step, without waiting."""
        return sum(entry[3] for entry in self._out) / max(1, self.workers)

    def content(self, begin: int, end: int) -> Any:
        """Collated samples of the step; if there are none, samples that count with weight 0."""
        samples = [entry[2] for entry in self._out[begin:end]] or self._examples()
        content = self._collate(samples)
        return pinned(content) if self._loader is not None and self._loader.pin_memory else content

    def commit(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Count the taken samples as used."""
        for shard, place, ended in places:
            if ended:
                del self.held[shard], self._numbers[shard], self._ends[shard]
            else:
                self.held[shard] = place
        self._out = []

    def put_back(self) -> None:
        """Return the samples of a step that was not committed."""
        self._ready.extendleft(reversed(self._out))
        self._out = []

    def close(self) -> None:
        """Drop all shards, and end the workers."""
        if self._blocks is not None:
            for _ in range(max(1, self.workers)):
                self._leases.put(None)
        self._blocks = self._leases = None
        self.held, self._numbers, self._ends, self._out = {}, {}, {}, []
        self._ready.clear()

    def _unread(self) -> int:
        """Number of shards that were not read to their end."""
        return len(self.held) - len(self._ends)

    def _keep(self, block: Block) -> None:
        lease, shard, place, samples, ended, seconds = block
        if self._numbers.get(shard) != lease:
            return
        each = seconds / max(1, len(samples))
        self._ready.extend((shard, place + index, sample, each) for index, sample in enumerate(samples))
        if ended:
            self._ends[shard] = place + len(samples)

    def _examples(self) -> list[Any]:
        """One or two samples of any shard, to be collated into a batch of weight 0."""
        for shard in self.shards:
            if found := list(itertools.islice(self._streams.read(shard), 2)):
                return found
        raise InputError("the shards hold no samples")

    def _started(self) -> Iterator[Block]:
        assert self._blocks is not None, "no shard was opened"
        return self._blocks

    def _start(self) -> None:
        if self._blocks is not None:
            return
        given = self._loader
        context = given.multiprocessing_context if given is not None else None
        self._leases = (context or torch.multiprocessing.get_context()).SimpleQueue()
        leased = _Leased(self._streams, self._leases, self._block)
        if given is None or not self.workers:
            self._blocks = iter(leased)
            return
        self._blocks = iter(
            DataLoader(
                leased,
                batch_size=None,
                collate_fn=_as_it_is,
                num_workers=self.workers,
                prefetch_factor=given.prefetch_factor,
                worker_init_fn=EndsWithRank(given.worker_init_fn),
                multiprocessing_context=context,
                timeout=given.timeout,
                in_order=False,  # a worker without a shard has no block, and the others must not wait for it
            )
        )


def check_stream_loader(loader: DataLoader[Any]) -> None:
    """Refuse loader settings that do not apply to streams."""
    if loader.batch_size not in (None, 1):
        raise InputError(
            f"the loader of streams has batch_size={loader.batch_size}; a rank's share decides its batch size",
            hint="leave batch_size out: DataLoader(streams, num_workers=4, collate_fn=...)",
        )


def _as_it_is(block: Block) -> Block:
    return block
