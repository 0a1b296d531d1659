"""Data of `fit` as samples with indices, so that they can be assigned to ranks during training.

Arrays (also memory-mapped ones) and map-style datasets of a torch `DataLoader` are read sample by sample. Data that can
only be read sequentially, such as a `tf.data.Dataset`, is read once and kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from paceline.errors import InputError
from paceline.runtime.data.alike import check_takes_all, looked_at, sketch_of_arrays

__all__ = ["Picked", "Rows", "array_rows", "kept_rows", "loader_rows"]

KEPT_BYTES = 4 * 2**30
"""Largest size in bytes of a dataset that is kept in memory."""


@dataclass(frozen=True)
class Picked:
    """A batch in the structure that `train_step` receives."""

    data: Any


class Rows:
    """A number of samples, and a function that makes a batch of some of them."""

    def __init__(self, count: int, read: Callable[[np.ndarray], Any], *, fixed: bool = True) -> None:
        """`fixed`: whether a sample is the same each time that it is read."""
        self._count, self._read, self._fixed = count, read, fixed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        """The index itself, because `pick` reads all samples of a batch at once."""
        return index

    def sample_sketch(self) -> list[float]:
        """By which ranks see that they have other samples."""
        if not self._fixed:
            return []
        some = keras.tree.flatten(self._read(np.asarray(looked_at(self._count))))
        return sketch_of_arrays([part for part in some if isinstance(part, np.ndarray)])

    def pick(self, indices: Sequence[int]) -> Picked:
        """A batch of these samples, as tensors of the Keras backend."""
        return Picked(keras.tree.map_structure(_tensor, self._read(np.asarray(indices))))


def array_rows(*parts: Any) -> Rows:
    """Samples from (nested) arrays: inputs, and optionally targets and weights."""
    given = parts[: max(index for index, part in enumerate(parts) if part is not None) + 1]
    arrays = keras.tree.map_structure(lambda part: part if part is None else np.asarray(part), given)
    lengths = {len(array) for array in keras.tree.flatten(arrays) if array is not None}
    if len(lengths) != 1:
        raise InputError(f"arrays of {', '.join(map(str, sorted(lengths)))} samples, expected the same number of each")

    def read(indices: np.ndarray) -> Any:
        return keras.tree.map_structure(lambda array: array if array is None else array[indices], arrays)

    return Rows(lengths.pop(), read)


def loader_rows(loader: Any) -> Rows:
    """Samples of the map-style dataset of a torch DataLoader, collated by its function."""
    dataset = loader.dataset
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return kept_rows(loader)
    check_takes_all(loader)

    def read(indices: np.ndarray) -> Any:
        return tuple(loader.collate_fn([dataset[int(index)] for index in indices]))

    return Rows(len(dataset), read, fixed=False)


def kept_rows(batches: Iterable[Any]) -> Rows:
    """Samples from batches that can only be read in their own order."""
    read, size = [], 0
    for batch in batches:
        read.append(keras.tree.map_structure(lambda part: np.array(keras.ops.convert_to_numpy(part)), batch))
        size += sum(part.nbytes for part in keras.tree.flatten(read[-1]))
        if size > KEPT_BYTES:
            raise InputError(
                f"the dataset has more than {KEPT_BYTES / 2**30:.0f} GiB, and it can only be read in its own order",
                hint="give fit() memory-mapped arrays, np.load(file, mmap_mode='r'), or a torch DataLoader of a "
                "map-style dataset: of these every rank reads the samples that it takes",
            )
    if not read:
        raise InputError("the dataset is empty")
    whole = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *read)
    return array_rows(*whole) if isinstance(whole, tuple | list) else array_rows(whole)


def _tensor(part: Any) -> Any:
    """A tensor of the backend; floating point data in the type of Keras' setting, as Keras' own loaders do."""
    if part is None:
        return None
    kind = keras.backend.standardize_dtype(part.dtype) if hasattr(part, "dtype") else ""
    return keras.ops.convert_to_tensor(part, dtype=keras.config.floatx() if kind.startswith("float") else None)
