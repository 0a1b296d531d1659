"""Samples of shards that are read from their beginning on, such as tar files, as a dataset whose samples have numbers.

With indices, all ranks agree on the assignment of samples, for any shares, failures and restarts.
Shards are shuffled; the samples of a shard stay in their order: a rank reads on, and passes over those of others.
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
    """A shard that is open in one process."""

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
        """`counts`: shards and how many samples each has; `read` gives those of one, in order.

        What `read` gives is decoded by `decode` only where this rank takes it.
        """
        self._shards, self._read, self._decode = list(counts), read, decode
        self._ends = np.cumsum([0, *counts.values()])
        self._reading: _Reading | None = None
        self._order: tuple[tuple[int, int], np.ndarray] | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        """One sample; the next one of the same shard costs no more than to read on."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = int(np.searchsorted(self._ends, index, side="right")) - 1
        place = index - int(self._ends[shard])
        reading = self._reading
        # A worker that was forked shares the place in the file with the process that has opened it.
        if reading is None or (reading.process, reading.shard) != (os.getpid(), shard) or reading.at > place:
            samples = iter(self._read(self._shards[shard]))
            reading = self._reading = _Reading(os.getpid(), shard, samples)
        for found in itertools.islice(reading.samples, place - reading.at, None):
            reading.at = place + 1
            return found if self._decode is None else self._decode(found)
        announced = int(self._ends[shard + 1] - self._ends[shard])
        raise InputError(
            f"{self._shards[shard]} ends before its sample {place + 1}, announced were {announced}",
            hint="count the samples of each shard again",
        )

    def epoch_order(self, *, seed: int, epoch: int) -> np.ndarray:
        """The shards of an epoch in another order each time, the samples of a shard together."""
        if self._order is None or self._order[0] != (seed, epoch):
            shards = np.random.default_rng([seed, epoch]).permutation(len(self._shards))
            parts = [np.arange(self._ends[shard], self._ends[shard + 1]) for shard in shards]
            self._order = (seed, epoch), np.concatenate(parts)
        return self._order[1]

    def __getstate__(self) -> dict[str, Any]:
        """For workers that are not forked: what is open here is not open there."""
        return {**vars(self), "_reading": None}
