"""Shards that can only be read sequentially, such as tar files, as a dataset whose samples have indices.

With indices, all ranks agree on the assignment of samples for any shares, failures and restarts. The order of shards
is random; samples of a shard keep their order. A rank reads a shard sequentially and skips samples of other ranks.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import InputError

__all__ = ["ShardedSamples"]


@dataclass
class _Reading:
    """An open shard of one process."""

    process: int
    shard: int
    samples: Iterator[Any]
    at: int = 0


class ShardedSamples:
    """A dataset over shards: `DataLoader(ShardedSamples(counts, read, decode), batch_sampler=sampler)`."""

    def __init__(
        self,
        counts: Mapping[str, int],
        read: Callable[[str], Iterable[Any]],
        decode: Callable[[Any], Any] | None = None,
    ) -> None:
        """`counts`: the number of samples of each shard; `read` yields the samples of one shard, in order.

        `decode` is applied only to the samples that this rank uses.
        """
        self._shards, self._read, self._decode = list(counts), read, decode
        self._ends = np.cumsum([0, *counts.values()])
        self._reading: _Reading | None = None
        self._order: tuple[tuple[int, int], np.ndarray] | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        """One sample. A sample after the previous one in the same shard is reached by reading on."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._ends, index, side="right")) - 1
        place = index - int(self._ends[shard])
        reading = self._reading
        # A forked worker shares the file offset with the process that opened the file, so it has to open it again.
        if reading is None or (reading.process, reading.shard) != (os.getpid(), shard) or reading.at > place:
            samples = iter(self._read(self._shards[shard]))
            reading = self._reading = _Reading(os.getpid(), shard, samples)
        for found in itertools.islice(reading.samples, place - reading.at, None):
            reading.at = place + 1
            return found if self._decode is None else self._decode(found)
        announced = int(self._ends[shard + 1] - self._ends[shard])
        raise InputError(
            f"{self._shards[shard]} ends before its sample {place + 1}, expected {announced} samples",
            hint="count the samples of each shard again",
        )

    def epoch_order(self, *, seed: int, epoch: int) -> np.ndarray:
        """The order of an epoch: shards in random order, the samples of a shard together."""
        if self._order is None or self._order[0] != (seed, epoch):
            shards = np.random.default_rng([seed, epoch]).permutation(len(self._shards))
            parts = [np.arange(self._ends[shard], self._ends[shard + 1]) for shard in shards]
            self._order = (seed, epoch), np.concatenate(parts)
        return self._order[1]

    def __getstate__(self) -> dict[str, Any]:
        """State for workers that are spawned: open shards are left out."""
        return {**vars(self), "_reading": None}
