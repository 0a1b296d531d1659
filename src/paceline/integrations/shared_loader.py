"""A trainer's loader of training samples as part of a joint training: what all adapters of trainers have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import InputError
from paceline.runtime.data.alike import check_takes_all
from paceline.runtime.epochs import EpochBatches
from paceline.runtime.members.rendezvous import launched_size
from paceline.runtime.pace import Pace, join
from paceline.runtime.samples import Position
from paceline.runtime.settings import Settings

__all__ = ["SharedLoader"]


@dataclass(frozen=True)
class _Whole:
    """A batch in the structure that the loader's collate function gives it."""

    content: Any


class SharedLoader:
    """Iterates over this rank's batches of one epoch at a time; joins the group when `begin` is called."""

    def __init__(self, loader: Any, *, global_batch: int | None, settings: Settings | None) -> None:
        """`global_batch`: by default the loader's batch times the number of launched ranks."""
        dataset = getattr(loader, "dataset", None)
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise InputError(
                f"the trainer loads from a {type(dataset or loader).__name__}, of which ranks cannot take samples by "
                "index",
                hint="give it a map-style dataset: __len__ and __getitem__",
            )
        check_takes_all(loader)
        self._loader, self._settings = loader, settings or Settings()
        if self._settings.chunk is not None:
            raise InputError("trainers count each pass as a step", hint="leave Settings(chunk=...) out")
        self.global_batch = global_batch or loader.batch_size * launched_size()
        self.undo: Callable[[], None] = _nothing
        """Called once before the next batch: the ranks may then send their states."""
        self.pace: Pace
        self._batches: EpochBatches

    def begin(
        self, model: Any, optimizers: Sequence[Any], also: Sequence[Any], *, epochs: int, done: tuple[int, int] = (0, 0)
    ) -> Pace:
        """Train together with all ranks that were launched; `done` are epochs and further steps of an earlier job."""

        def collate(samples: Sequence[Any]) -> _Whole:
            return _Whole(self._loader.collate_fn(list(samples)))

        settings = replace(self._settings, collate=collate, also=(*self._settings.also, *also))
        self.pace = join(model, optimizers, self._loader.dataset, global_batch=self.global_batch, settings=settings)
        if any(done):
            epoch, steps = done
            step, cursor = epoch * len(self) + steps, steps * self.global_batch
            self.pace._training.position = Position(step=step, epoch=epoch, cursor=cursor)
        self.pace.__enter__()
        self._batches = EpochBatches(self.pace, self.pace.batches(epochs=epochs), epochs=epochs)
        return self.pace

    @property
    def joined(self) -> bool:
        """Whether training began."""
        return hasattr(self, "pace")

    @property
    def exchanged(self) -> bool:
        """Whether the backward pass has ended with the gradients of all ranks; else the samples come again."""
        return self.pace._attempt is not None

    def __len__(self) -> int:
        return -(-len(self._loader.dataset) // self.global_batch)

    def __iter__(self) -> Iterator[Any]:
        """The batches of the epoch in which the ranks are; a trainer may ask for the iterator before training began."""
        for batch in self._batches.of(self.pace.position.epoch):
            yield batch.inputs.content
            undo, self.undo = self.undo, _nothing
            undo()

    def next(self) -> Any:
        """The batch that follows one whose samples come again; None if all training is done."""
        batch = self._batches.next()
        return None if batch is None else batch.inputs.content

    def leave(self) -> None:
        """End the training of this process."""
        self._batches.leave()


def _nothing() -> None:
    """Nothing has to be undone."""
