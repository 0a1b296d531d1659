"""The samples of each step: shares are decided as far ahead as any rank prefetches, loaded, and given to the loop.

Every rank decides the same shares at the same step from the same numbers. With prefetching, the shares of a step are
decided before the step begins, so that the step uses exactly the samples that the workers have loaded. When the group
changes, shares of steps that are not committed are decided again, for the samples from the cursor on.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from paceline.errors import InputError
from paceline.runtime.data.batches import Batch, InLoop, Samples, Source, as_batch
from paceline.runtime.data.loader import EXPECTED, LoaderFactory, LoaderSource, RankSampler, check_numbered
from paceline.runtime.data.streams import ShardStreams, StreamReader, check_stream_loader
from paceline.runtime.group.balance import Balance, UnitBalance
from paceline.runtime.samples import Attempt, Position, chunked, share_of
from paceline.runtime.settings import Settings

__all__ = ["AnySource", "Course", "Feed", "GroupSplit", "TrainingData", "source_of"]

TrainingData: TypeAlias = Samples | ShardStreams | LoaderFactory
"""Training data: a dataset, streams, or a function that makes a DataLoader from either."""
AnySource: TypeAlias = Source | StreamReader


class Course(Protocol):
    """The coming steps, as far as they are known."""

    def decided(self, position: Position) -> bool:
        """Whether there is a step at this position."""
        ...

    def next_size(self, position: Position) -> int:
        """Samples of the step at this position."""
        ...

    def after(self, position: Position, size: int) -> Position:
        """The position after a step of `size` samples."""
        ...


class GroupSplit(Protocol):
    """The split of a step between the ranks."""

    rank: int
    ahead: int
    balance: Balance | UnitBalance


@dataclass(frozen=True)
class _Decided:
    position: Position
    size: int
    shares: tuple[int, ...]
    chunks: list[np.ndarray]


class Feed:
    """The coming steps of one rank, and their batches."""

    def __init__(self, source: Source, settings: Settings, device: torch.device) -> None:
        self._source, self._settings, self._device = source, settings, device
        self._split: GroupSplit | None = None
        self._steps: deque[_Decided] = deque()

    def next_attempt(self, course: Course, split: GroupSplit, position: Position, *, began: float) -> Attempt:
        """The step at this position; also decides the shares of a step further ahead."""
        if self._split is not split or not self._steps or self._steps[0].position != position:
            self._source.forget()
            self._steps.clear()
            self._split, at = split, position
        else:
            at = course.after(self._steps[-1].position, self._steps[-1].size)
        while len(self._steps) <= split.ahead and course.decided(at):
            step = self._decide(course, split, at)
            at = course.after(at, step.size)
        step = self._steps.popleft()
        after = course.after(position, step.size)
        return Attempt(step.size, step.shares, step.chunks, began=began, after=after)

    def batches(self, attempt: Attempt) -> Iterator[Batch]:
        """The batches of this rank's share."""
        for chunk in attempt.chunks:
            loaded = self._source.take()
            attempt.waited += loaded.waited
            attempt.loading += loaded.work
            attempt.beside = loaded.beside
            yield as_batch(loaded.content, chunk, self._device)

    def commit(self, attempt: Attempt) -> None:
        """No effect: the committed position determines which samples are used."""

    def close(self) -> None:
        """Drop all decided steps; their shares are decided again when training continues."""
        self._steps.clear()
        self._source.forget()
        self._source.close()

    def _decide(self, course: Course, split: GroupSplit, at: Position) -> _Decided:
        size = course.next_size(at)
        shares = split.balance.decide(size)
        order = self._source.order(seed=self._settings.seed, epoch=at.epoch)
        mine = share_of(order, at, shares, split.rank)
        # A rank without a share gets samples with weight 0, because its loop has to run every step.
        chunks = chunked(mine, self._settings.chunk) or [np.zeros(0, dtype=np.int64)]
        for chunk in chunks:
            self._source.expect(chunk if len(chunk) else np.arange(min(2, self._source.num_samples)))
        self._steps.append(_Decided(at, size, shares, chunks))
        return self._steps[-1]


def source_of(data: TrainingData, settings: Settings) -> AnySource:
    """The source of batches: a dataset or streams are loaded in the loop, a DataLoader's samples by its workers."""
    if isinstance(data, DataLoader):
        raise InputError("a DataLoader chooses samples itself; Paceline needs a function that makes it", hint=EXPECTED)
    if isinstance(data, ShardStreams):
        return StreamReader(data, None, settings.collate, seed=settings.seed)
    source: Source
    if callable(data) and not hasattr(data, "__getitem__"):
        if settings.collate is not None:
            raise InputError("Settings(collate=...) is for datasets", hint="DataLoader(..., collate_fn=...)")
        sampler = RankSampler()
        loader = _made(data, sampler)
        if isinstance(loader, DataLoader) and isinstance(loader.dataset, ShardStreams):
            check_stream_loader(loader)
            return StreamReader(loader.dataset, loader, None, seed=settings.seed)
        source = LoaderSource(loader, sampler)
    else:
        check_numbered(data)
        source = InLoop(cast(Samples, data), settings.collate)
    if source.num_samples < 1:
        raise InputError("the dataset is empty")
    return source


def _made(factory: LoaderFactory, sampler: RankSampler) -> DataLoader[Any]:
    """The DataLoader that the user's factory returns; refuses a factory that does not take a sampler."""
    try:
        inspect.signature(factory).bind(sampler)
    except TypeError as error:
        raise InputError(f"the loader factory is called with one sampler: {error}", hint=EXPECTED) from None
    return factory(sampler)
