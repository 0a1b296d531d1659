"""Batches from a `torch.utils.data.DataLoader` that the user's factory makes around the samples of this rank.

The loader asks for indices as far ahead as it prefetches, and gets those of the steps that are already decided. When
the group changes, what was asked for and not used is dropped as it arrives: its samples are dealt out anew.
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

from paceline.bench.virtual.hosts.syscalls import set_parent_death_signal
from paceline.errors import InputError
from paceline.runtime.checkpoint import Stateful
from paceline.runtime.data.alike import sketch_of
from paceline.runtime.data.batches import Loaded, order_of

__all__ = ["EndsWithRank", "LoaderFactory", "LoaderSource", "RankSampler", "check_numbered"]

log = logging.getLogger("paceline.runtime")
EXPECTED = "def loaders(sampler): return DataLoader(dataset, batch_sampler=sampler, num_workers=4)"
OFTEN = 3
"""Times that workers were started again before that is mentioned."""


class RankSampler:
    """The batches of this rank, as a `batch_sampler` of a DataLoader; indices of the steps decided so far."""

    def __init__(self) -> None:
        self.ready: deque[np.ndarray] = deque()
        """Decided, and not asked for."""
        self.asked: deque[bool] = deque()
        """One for each batch that is under way: whether it is wanted."""

    def __iter__(self) -> Iterator[list[int]]:
        """Not a generator, which would end for good where nothing is decided yet."""
        return self

    def __next__(self) -> list[int]:
        """The indices of the next batch; ends where nothing is decided yet."""
        if not self.ready:
            raise StopIteration
        self.asked.append(True)
        return _Indices(self.ready.popleft().tolist())


LoaderFactory = Callable[[RankSampler], "DataLoader[Any]"]


class LoaderSource:
    """The batches of one DataLoader, in order."""

    kept: tuple[Stateful, ...] = ()

    def __init__(self, loader: DataLoader[Any], sampler: RankSampler) -> None:
        """`sampler`: what the loader was made around."""
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
        """For the loader to ask for, as soon as it does."""
        self._sampler.ready.append(indices)

    def forget(self) -> None:
        """Batches under way are dropped when they arrive: workers cannot be called back."""
        self._sampler.ready.clear()
        self._sampler.asked = deque([False] * len(self._sampler.asked))

    def take(self) -> Loaded:
        """Wait for the next batch that is wanted."""
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
        """End the workers, unless they are persistent; what they load is lost."""
        self._batches = None
        self._sampler.asked.clear()

    def _next(self) -> Any:
        """The next batch that arrives; a loader that has run dry starts again with what was decided since."""
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
        if self._starts == OFTEN and self._workers and not self._loader.persistent_workers:
            log.warning("loader workers are started for every lease of samples: persistent_workers=True keeps them")


def _check(loader: Any, sampler: RankSampler) -> None:
    """Refuse loaders that choose samples themselves: no other rank would know of them."""
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
    """Refuse data whose samples cannot be named."""
    if isinstance(dataset, IterableDataset):
        raise InputError(
            "the dataset is iterable as a whole: ranks could not agree on who has which of its samples",
            hint="name its parts, each of which one rank reads: paceline.runtime.ShardStreams(shards, read)",
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
    """Notes when it arrives in a worker, from where on the worker loads."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (list(self),)


class _Arrival:
    """When this process got the indices that it loads now."""

    at = 0.0


def _arrived(indices: list[int]) -> list[int]:
    _Arrival.at = time.perf_counter()
    return indices


class _Timed:
    """A collate function that also says how long its worker has loaded."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[Any, float]:
        content = self._collate(samples)
        return content, time.perf_counter() - _Arrival.at


class EndsWithRank:
    """Makes a worker end with its rank, whose connections it would keep open: others would wait for a dead rank."""

    def __init__(self, then: Callable[[int], None] | None) -> None:
        self._then = then

    def __call__(self, worker: int) -> None:
        """In the worker, before it loads."""
        set_parent_death_signal()
        parent = multiprocessing.parent_process()
        if parent is not None and not parent.is_alive():  # it died before the kernel was told
            os._exit(1)
        if self._then is not None:
            self._then(worker)
