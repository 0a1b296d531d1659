"""The batch that the training loop receives, and datasets whose samples are loaded in the loop."""

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
    """A map-style dataset: it has a length, and returns a sample by its index."""

    def __getitem__(self, index: int) -> Any:
        """One sample."""
        ...


@dataclass(frozen=True)
class Batch:
    """The samples on which a rank computes next."""

    inputs: Any
    targets: Any
    """The second part of each sample; None if samples are not pairs."""
    indices: np.ndarray
    """Indices of the samples in the dataset; for streams, the shard of each sample and its place in the shard."""

    def __iter__(self) -> Iterator[Any]:
        """Inputs and targets, or all parts if samples are not pairs, as from a DataLoader."""
        parts = isinstance(self.inputs, list | tuple) and self.targets is None and len(self.inputs) > 2
        return iter(self.inputs if parts else (self.inputs, self.targets))


@dataclass(frozen=True)
class Loaded:
    """Collated samples, and the time that loading them took."""

    content: Any
    waited: float
    """Seconds for which the training loop waited for the samples."""
    work: float
    """Seconds per batch of a loader that never has to wait."""
    beside: bool
    """Whether the samples were loaded while the loop computed."""


class Source(Protocol):
    """A source of batches, which it returns in the order in which they were expected."""

    num_samples: int
    sketch: list[float]
    """By which ranks see that they have other samples, or others in their places; empty if unknown."""
    ahead: int
    """Number of batches that are loaded before they are taken."""
    kept: tuple[Stateful, ...]
    """State of the source that checkpoints contain and late joiners receive."""

    def order(self, *, seed: int, epoch: int) -> np.ndarray:
        """Indices of the samples of an epoch in the order of use; equal on all ranks."""
        ...

    def expect(self, indices: np.ndarray) -> None:
        """Announce the samples of the next batch; batches are taken in the order in which they were announced."""
        ...

    def forget(self) -> None:
        """Cancel all batches that were announced and not taken."""
        ...

    def take(self) -> Loaded:
        """Return the next announced batch."""
        ...

    def close(self) -> None:
        """Release what the source holds; it may be used again."""
        ...


class InLoop:
    """A source that loads the samples of a dataset when they are taken."""

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
        """Note the samples of the next batch."""
        self._expected.append(indices)

    def forget(self) -> None:
        """Drop the noted samples; none of them was loaded."""
        self._expected.clear()

    def take(self) -> Loaded:
        """Load the samples of the next batch."""
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
        """No effect: this source holds nothing open."""


def order_of(dataset: Samples, *, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch: random, but a dataset of shards keeps the samples of each shard together."""
    if isinstance(dataset, ShardedSamples):
        return dataset.epoch_order(seed=seed, epoch=epoch)
    return epoch_order(len(dataset), seed=seed, epoch=epoch)


def as_batch(content: Any, indices: np.ndarray, device: torch.device) -> Batch:
    """A collated batch on the device: a pair is inputs and targets, anything else is the inputs."""
    content = _each(content, lambda part: _moved(part, device))
    if isinstance(content, list | tuple) and len(content) == 2:
        return Batch(content[0], content[1], indices)
    return Batch(content[0] if isinstance(content, list | tuple) and len(content) == 1 else content, None, indices)


def pinned(content: Any) -> Any:
    """A collated batch in pinned memory, from which a GPU copies asynchronously; unchanged without a GPU."""
    if not torch.cuda.is_available():
        return content
    return _each(content, lambda part: part.pin_memory() if hasattr(part, "pin_memory") else part)


def _moved(part: Any, device: torch.device) -> Any:
    return part.to(device, non_blocking=True) if isinstance(part, torch.Tensor) else part.to(device)


def _each(content: Any, change: Callable[[Any], Any]) -> Any:
    """A collated batch with `change` applied to every tensor in it."""
    if isinstance(content, torch.Tensor):
        return change(content)
    if isinstance(content, dict):
        return {key: _each(value, change) for key, value in content.items()}
    if isinstance(content, tuple) and hasattr(content, "_fields"):
        return type(content)(*(_each(value, change) for value in content))
    if isinstance(content, list | tuple):
        return [_each(value, change) for value in content]
    return change(content) if hasattr(content, "to") else content
