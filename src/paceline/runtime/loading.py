"""From indices to a batch of tensors on the model's device."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

__all__ = ["Batch", "Samples", "load"]


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
    """Which samples of the dataset these are."""


def load(
    dataset: Samples, indices: np.ndarray, *, device: torch.device, collate: Callable[[Sequence[Any]], Any] | None
) -> Batch:
    """Fetch samples and put them together."""
    if collate is None and isinstance(dataset, TensorDataset):
        chosen = torch.from_numpy(indices)
        content: Any = [tensor[chosen] for tensor in dataset.tensors]
    else:
        content = (collate or default_collate)([dataset[int(index)] for index in indices])
    content = _moved(content, device)
    if isinstance(content, list | tuple) and len(content) == 2:
        return Batch(content[0], content[1], indices)
    return Batch(content[0] if isinstance(content, list | tuple) and len(content) == 1 else content, None, indices)


def _moved(content: Any, device: torch.device) -> Any:
    if isinstance(content, torch.Tensor):
        return content.to(device)
    if isinstance(content, dict):
        return {key: _moved(value, device) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_moved(value, device) for value in content]
    return content
