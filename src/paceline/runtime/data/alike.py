"""What ranks need of their samples: number i is the same one on every rank, and an epoch has every sample once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler, Subset, TensorDataset

from paceline.errors import InputError

__all__ = ["check_takes_all", "looked_at", "same_samples", "sketch_of", "sketch_of_arrays"]

LOOKED_AT = 16
"""Samples of a dataset that stand for all of it."""
ALIKE = 1e-3
"""Of numbers that are the same: devices round differently."""


def sketch_of(dataset: Any) -> list[float]:
    """A few numbers by which ranks see that they have other samples, or others in their places; none if unknown.

    Only of what gives the same sample each time: a dataset of the user's own may change them at random.
    """
    if hasattr(dataset, "sample_sketch"):
        return list(dataset.sample_sketch())
    if type(dataset) is Subset:
        return [*(float(dataset.indices[number]) for number in looked_at(len(dataset))), *sketch_of(dataset.dataset)]
    if type(dataset) is TensorDataset:
        rows = looked_at(len(dataset))
        parts = [tensor[rows].detach().cpu() for tensor in dataset.tensors if not tensor.is_sparse]
        return sketch_of_arrays([part.double().numpy() for part in parts if not part.is_complex()])
    return []


def looked_at(count: int) -> list[int]:
    """Numbers of samples all over a dataset."""
    return np.linspace(0, count - 1, min(count, LOOKED_AT)).astype(int).tolist() if count else []


def sketch_of_arrays(parts: Sequence[Any]) -> list[float]:
    """A number of each sample in each of these arrays, which depends on the places of what it contains."""
    sketch: list[float] = []
    for part in parts:
        if len(part) and part.dtype.kind in "biuf":
            rows = np.nan_to_num(part.reshape(len(part), -1).astype(np.float64))
            sketch += (rows @ np.cos(np.arange(rows.shape[1]))).tolist()
    return sketch


def same_samples(mine: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two sketches are of the same samples, as far as both are known."""
    if not mine or not other:
        return True
    scale = max(map(abs, [*mine, *other]))
    close = (
        math.isclose(one, two, rel_tol=ALIKE, abs_tol=ALIKE * scale) for one, two in zip(mine, other, strict=False)
    )
    return len(mine) == len(other) and all(close)


def check_takes_all(loader: Any) -> None:
    """Refuse a loader that weighs, repeats or leaves out samples; one that only orders them is as good as any."""
    sampler, count = _sampler_of(loader), len(loader.dataset)
    if isinstance(sampler, SequentialSampler | DistributedSampler):
        return
    if isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == count:
        return
    drawn = list(itertools.islice(_indices(sampler), count + 1))
    if len(drawn) != count or set(drawn) != set(range(count)):
        raise InputError(
            f"the loader's {type(sampler).__name__} chooses samples; ranks share an epoch in which each of the {count} "
            "samples counts once",
            hint="train on what it chooses, the same on every rank: torch.utils.data.Subset(dataset, list(sampler)); "
            "or weight the loss",
        )


def _sampler_of(loader: Any) -> Any:
    """What decides the order; a plain BatchSampler only divides it."""
    sampler = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
    return sampler.sampler if type(sampler) is BatchSampler else sampler


def _indices(sampler: Any) -> Iterator[int]:
    for item in sampler:
        yield from item if isinstance(item, list | tuple) else [item]
