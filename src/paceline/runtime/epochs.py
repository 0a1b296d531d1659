"""Batches of a joint training for loops that count epochs themselves: Keras' `fit`, trainers of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline.runtime.pace import Pace

__all__ = ["EpochBatches"]


class EpochBatches:
    """An iterator of batches over all epochs, given out epoch by epoch."""

    def __init__(self, pace: Pace, batches: Iterator[Any], *, epochs: int) -> None:
        self._pace, self._batches, self._epochs = pace, batches, epochs
        self._held: Any = None
        """A batch of the next epoch, which was asked for to know that this one is over."""

    def of(self, epoch: int) -> Iterator[Any]:
        """The batches of one epoch; none if the others are beyond it."""
        while self._pace.position.epoch <= epoch:
            batch = self.next()
            if batch is None:
                return
            if self._pace.position.epoch > epoch:
                self._held = batch
                return
            yield batch

    def next(self) -> Any:
        """The next batch, of whichever epoch; None when there are no more."""
        held, self._held = self._held, None
        return next(self._batches, None) if held is None else held

    def leave(self) -> None:
        """End the training of this process: together with all others, unless it was stopped before its end."""
        if self._pace.position.epoch >= self._epochs:
            next(self._batches, None)
        self._pace.__exit__(None, None, None)
