"""Batches from a `torch.utils.data.DataLoader` that the user's factory makes for the samples of this rank.

The loader requests indices as far ahead as it prefetches, and gets the indices of steps that are already decided. When
the group changes, requested batches that no step has used are dropped when they arrive; their samples are assigned
again.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from paceline.bench.virtual.namespaces import set_parent_death_signal
from paceline.errors import InputError
from paceline.runtime.checkpoint import Stateful
from paceline.runtime.data.alike import sketch_of
from paceline.runtime.data.batches import Loaded, order_of

__all__ = ["EndsWithRank", "LoaderFactory", "LoaderSource", "RankSampler", "check_numbered"]

log = logging.getLogger("paceline.runtime")
EXPECTED = "def loaders(sampler): return DataLoader(dataset, batch_sampler=sampler, num_workers=4)"
WARN_AFTER = 3
"""Number of restarts of workers after which a warning is logged."""


class RankSampler:
    """The `batch_sampler` of a DataLoader: indices of this rank's batches, for the steps that are decided so far."""

    def __init__(self) -> None:
        self.ready: deque[np.ndarray] = deque()
        """Indices of batches that are decided and not requested."""
        self.asked: deque[bool] = deque()
        """For each requested batch, whether a step still needs it."""

    def __iter__(self) -> Iterator[list[int]]:
        """The sampler itself: a generator would end for good when no step is decided."""
        return self

    def __next__(self) -> list[int]:
        """The indices of the next batch; StopIteration if no further step is decided."""
        if not self.ready:
            raise StopIteration
        self.asked.append(True)
        return _Indices(self.ready.popleft().tolist())


LoaderFactory = Callable[[RankSampler], "DataLoader[Any]"]


class LoaderSource:
    """A source that takes the batches of one DataLoader, in order."""

    kept: tuple[Stateful, ...] = ()

    def __init__(self, loader: DataLoader[Any], sampler: RankSampler) -> None:
        """`sampler`: the one that the loader's factory was given."""
        self._sampler, self._loader = sampler, loader
        _check(self._loader, self._sampler)
        self.num_samples, self.sketch = len(self._loader.dataset), sketch_of(self._loader.dataset)
        self._workers = self._loader.num_workers
        self.ahead = self._workers * (self._loader.prefetch_factor or 0)
        self._loader.collate_fn = _Timed(self._loader.collate_fn)
        self._loader.worker_init_fn = EndsWithRank(self._loader.worker_init_fn)
        self._batches: Iterator[Any] | None = None
        self._starts = 0

    def order(self, *, seed: int, epoch: int) -> np.ndarray:
        """Shuffled, as the dataset allows."""
        return order_of(self._loader.dataset, seed=seed, epoch=epoch)

    def expect(self, indices: np.ndarray) -> None:
        """Give the indices of a batch to the sampler, from which the loader requests them."""
        self._sampler.ready.append(indices)

    def forget(self) -> None:
        """Mark requested batches as dropped: workers cannot be interrupted, so batches are dropped when they arrive."""
        self._sampler.ready.clear()
        self._sampler.asked = deque([False] * len(self._sampler.asked))

    def take(self) -> Loaded:
        """Wait for the next batch that is not dropped."""
        began = time.perf_counter()
        while True:
            content, work = self._next()
            if self._sampler.asked.popleft():
                break
        waited = time.perf_counter() - began
        if not self._workers:
            return Loaded(content, waited, waited, beside=False)
        return Loaded(content, waited, work / self._workers, beside=True)

    def close(self) -> None:
        """End the workers, unless they are persistent; batches that they load are lost."""
        self._batches = None
        self._sampler.asked.clear()

    def _next(self) -> Any:
        """The next batch that arrives; a loader whose iterator ended starts again with the steps decided since."""
        while True:
            if self._batches is None:
                self._count_starts()
                self._batches = iter(self._loader)
            try:
                return next(self._batches)
            except StopIteration:
                self._batches = None

    def _count_starts(self) -> None:
        self._starts += 1
        if self._starts == WARN_AFTER and self._workers and not self._loader.persistent_workers:
            log.warning("loader workers are started for every lease of samples: persistent_workers=True keeps them")


def _check(loader: Any, sampler: RankSampler) -> None:
    """Refuse a loader that chooses samples itself, because the other ranks would not know which ones."""
    if not isinstance(loader, DataLoader):
        raise InputError(f"the loader factory returned a {type(loader).__name__}, expected a DataLoader", hint=EXPECTED)
    check_numbered(loader.dataset)
    if sampler not in (loader.batch_sampler, loader.sampler):
        raise InputError("the loader does not use the sampler that its factory got", hint=EXPECTED)
    if loader.sampler is sampler and loader.batch_size is not None:
        raise InputError(
            f"the loader has batch_size={loader.batch_size}; a rank's share decides how many samples a batch has",
            hint=EXPECTED,
        )
    if not getattr(loader, "in_order", True):
        raise InputError("in_order=False mixes up which step a batch is for", hint="leave in_order out")


def check_numbered(dataset: Any) -> None:
    """Refuse a dataset whose samples have no indices."""
    if isinstance(dataset, IterableDataset):
        raise InputError(
            "the dataset is an IterableDataset, so its samples cannot be assigned to ranks by index",
            hint="divide it into shards, each of which one rank reads: paceline.runtime.ShardStreams(shards, read)",
        )
    if isinstance(dataset, type):
        raise InputError(
            f"the dataset is the class {dataset.__name__}", hint=f"make one of it: {dataset.__name__}(...)"
        )
    lacking = [name for name in ("__len__", "__getitem__") if not hasattr(dataset, name)]
    if lacking:
        raise InputError(
            f"the dataset, a {type(dataset).__name__}, has no {' and no '.join(lacking)}",
            hint="a map-style dataset has both; streams are paceline.runtime.ShardStreams(shards, read)",
        )


class _Indices(list[int]):
    """Indices of a batch that record when a worker receives them, which is when the worker starts to load."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (list(self),)


class _Arrival:
    """The time at which this worker received the indices of its present batch."""

    at = 0.0


def _arrived(indices: list[int]) -> list[int]:
    _Arrival.at = time.perf_counter()
    return indices


class _Timed:
    """A collate function that also returns the seconds for which its worker has loaded the batch."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[Any, float]:
        content = self._collate(samples)
        return content, time.perf_counter() - _Arrival.at


class EndsWithRank:
    """Makes a worker end when its rank dies: the worker would keep the rank's connections open, and peers would
    wait."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        """Runs in the worker before it loads samples."""
        set_parent_death_signal()
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():  # the rank died before prctl was called
            os._exit(1)
        if self._then is not None:
            self._then(worker)
