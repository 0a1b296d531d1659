"""A batch as the training loop gets it, and a dataset that is loaded in the loop."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from paceline.runtime.checkpoint import Stateful
from paceline.runtime.data.alike import sketch_of
from paceline.runtime.data.stream import ShardedSamples
from paceline.runtime.samples import epoch_order

__all__ = ["Batch", "InLoop", "Loaded", "Samples", "Source", "as_batch", "order_of", "pinned"]


class Samples(Sized, Protocol):
    """A dataset: how many samples, and one by its index."""

    def __getitem__(self, index: int) -> Any:
        """One sample."""
        ...


@dataclass(frozen=True)
class Batch:
    """What a rank computes on next."""

    inputs: Any
    targets: Any
    """None where a sample is not a pair."""
    indices: np.ndarray
    """Which samples of the dataset these are; of streams, the shard and the place in it of each."""

    def __iter__(self) -> Iterator[Any]:
        """Inputs and targets, or all parts of samples that are no pairs, as a loader gives them."""
        parts = isinstance(self.inputs, list | tuple) and self.targets is None and len(self.inputs) > 2
        return iter(self.inputs if parts else (self.inputs, self.targets))


@dataclass(frozen=True)
class Loaded:
    """Samples that were put together, and what that cost."""

    content: Any
    waited: float
    """Seconds that the training loop stood still for them."""
    work: float
    """Seconds between two such batches that the loader needs when it never pauses."""
    beside: bool
    """Whether they were loaded while the loop computed."""


class Source(Protocol):
    """Where batches come from, in the order in which they are expected."""

    num_samples: int
    sketch: list[float]
    """By which ranks see that they have other samples, or others in their places; empty if unknown."""
    ahead: int
    """Batches that are under way before they are taken."""
    kept: tuple[Stateful, ...]
    """What checkpoints and late joiners get of it."""

    def order(self, *, seed: int, epoch: int) -> np.ndarray:
        """The samples of an epoch in the order in which they are used, the same on all ranks."""
        ...

    def expect(self, indices: np.ndarray) -> None:
        """These samples are taken after all that were expected before."""
        ...

    def forget(self) -> None:
        """What was expected and not taken is not wanted any more."""
        ...

    def take(self) -> Loaded:
        """The next expected batch."""
        ...

    def close(self) -> None:
        """No batch is taken for now."""
        ...


class InLoop:
    """A dataset whose samples are loaded when they are taken."""

    ahead = 0
    kept: tuple[Stateful, ...] = ()

    def __init__(self, dataset: Samples, collate: Callable[[Sequence[Any]], Any] | None) -> None:
        self._dataset, self._collate = dataset, collate
        self.num_samples, self.sketch = len(dataset), sketch_of(dataset)
        self._expected: deque[np.ndarray] = deque()

    def order(self, *, seed: int, epoch: int) -> np.ndarray:
        """Shuffled, as the dataset allows."""
        return order_of(self._dataset, seed=seed, epoch=epoch)

    def expect(self, indices: np.ndarray) -> None:
        """Remember which samples are next."""
        self._expected.append(indices)

    def forget(self) -> None:
        """Nothing was loaded yet."""
        self._expected.clear()

    def take(self) -> Loaded:
        """Load now."""
        began, indices = time.perf_counter(), self._expected.popleft()
        dataset, exactly = self._dataset, type(self._dataset) is TensorDataset  # a subclass may change its samples
        if self._collate is None and isinstance(dataset, TensorDataset) and exactly:
            chosen = torch.from_numpy(indices)
            content: Any = [tensor[chosen] for tensor in dataset.tensors]
        else:
            content = (self._collate or default_collate)([dataset[int(index)] for index in indices])
        seconds = time.perf_counter() - began
        return Loaded(content, seconds, seconds, beside=False)

    def close(self) -> None:
        """Nothing is open."""


def order_of(dataset: Samples, *, seed: int, epoch: int) -> np.ndarray:
    """Any order will do for samples that are found by their number; those of shards stay together."""
    if isinstance(dataset, ShardedSamples):
        return dataset.epoch_order(seed=seed, epoch=epoch)
    return epoch_order(len(dataset), seed=seed, epoch=epoch)


def as_batch(content: Any, indices: np.ndarray, device: torch.device) -> Batch:
    """What a collate function has made, on the device: a pair is inputs and targets, anything else is the inputs."""
    content = _each(content, lambda part: _moved(part, device))
    if isinstance(content, list | tuple) and len(content) == 2:
        return Batch(content[0], content[1], indices)
    return Batch(content[0] if isinstance(content, list | tuple) and len(content) == 1 else content, None, indices)


def pinned(content: Any) -> Any:
    """In memory from which a GPU can copy by itself; as it is where there is none."""
    if not torch.cuda.is_available():
        return content
    return _each(content, lambda part: part.pin_memory() if hasattr(part, "pin_memory") else part)


def _moved(part: Any, device: torch.device) -> Any:
    return part.to(device, non_blocking=True) if isinstance(part, torch.Tensor) else part.to(device)


def _each(content: Any, change: Callable[[Any], Any]) -> Any:
    """What a collate function has made, with every part that can be moved changed."""
    if isinstance(content, torch.Tensor):
        return change(content)
    if isinstance(content, dict):
        return {key: _each(value, change) for key, value in content.items()}
    if isinstance(content, tuple) and hasattr(content, "_fields"):
        return type(content)(*(_each(value, change) for value in content))
    if isinstance(content, list | tuple):
        return [_each(value, change) for value in content]
    return change(content) if hasattr(content, "to") else content
