"""tf.data pipelines for the job's files."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.bench.frameworks.datasets import FileSet
from paceline.bench.frameworks.harness import Job

__all__ = ["dataset_from_files"]


def dataset_from_files(job: Job, rank: int) -> Any:
    """A tf.data.Dataset of this rank's share, for ever: decode in parallel, batch, prefetch; images channels last."""
    files = FileSet(job)
    paths, marks = zip(*files.files(), strict=True)
    if files.kind == "cifar":
        size = 1 + int(np.prod(files.shape))
        found = tf.data.FixedLengthRecordDataset(sorted(set(paths)), size)
        decode = functools.partial(_record, shape=files.shape)
    else:
        found = tf.data.Dataset.from_tensor_slices((list(paths), np.asarray(marks, np.int32)))
        decode = functools.partial(_image, channels=files.shape[0])
    found = found.shard(job["ranks"], rank).repeat().shuffle(256, seed=job["seed"])
    found = found.map(decode, num_parallel_calls=job["threads"])
    return found.batch(job["batch"], drop_remainder=True).prefetch(2)


def _record(raw: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
    values = tf.io.decode_raw(raw, tf.uint8)
    image = tf.transpose(tf.reshape(values[1:], shape), [1, 2, 0])
    return tf.cast(image, tf.float32) / 127.5 - 1, tf.cast(values[0], tf.int32)


def _image(path: Any, label: Any, channels: int) -> tuple[Any, Any]:
    image = tf.io.decode_png(tf.io.read_file(path), channels=channels)
    return tf.cast(image, tf.float32) / 127.5 - 1, label
