"""Batches by epoch, for training loops that count epochs themselves: Keras' `fit`, and trainers of other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.runtime.pace import Pace

__all__ = ["EpochBatches"]


class EpochBatches:
    """Divides an iterator of batches over all epochs into epochs."""

    def __init__(self, pace: Pace, batches: Iterator[Any], *, epochs: int) -> None:
        self._pace, self._batches, self._epochs = pace, batches, epochs
        self._held: Any = None
        """The first batch of the next epoch, which had to be fetched to see that this epoch is over."""

    def of(self, epoch: int) -> Iterator[Any]:
        """The batches of one epoch; none if the other ranks are in a later epoch."""
        while self._pace.position.epoch <= epoch:
            batch = self.next()
            if batch is None:
                return
            if self._pace.position.epoch > epoch:
                self._held = batch
                return
            yield batch

    def next(self) -> Any:
        """The next batch of any epoch; None at the end."""
        held, self._held = self._held, None
        return next(self._batches, None) if held is None else held

    def leave(self) -> None:
        """End the training of this process: wait for all ranks, unless training was stopped early."""
        if self._pace.position.epoch >= self._epochs:
            next(self._batches, None)
        self._pace.__exit__(None, None, None)
