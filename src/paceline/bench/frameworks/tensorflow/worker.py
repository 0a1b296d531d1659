"""The measured TensorFlow process: one rank, plain for one device, MultiWorkerMirroredStrategy for more."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from paceline.bench.frameworks.arrays import MOMENTUM, RATE, ArraySession
from paceline.bench.frameworks.datasets import FileSet
from paceline.bench.frameworks.graph import tensor_shapes
from paceline.bench.frameworks.harness import Job, main
from paceline.bench.frameworks.tensorflow.worker_network import TensorFlowNetwork, mean_cross_entropy

__all__ = ["TensorFlowSession", "dataset_from_files"]


class TensorFlowSession(ArraySession):
    """A custom training loop in tf.function, as in TensorFlow's guides to distributed training."""

    def setup(self) -> None:
        """Join the strategy, build variables inside its scope, compile the passes."""
        tf.config.threading.set_intra_op_parallelism_threads(self.job["threads"])
        tf.config.threading.set_inter_op_parallelism_threads(1)
        tf.random.set_seed(self.job["seed"])
        self.versions = {"tensorflow": tf.__version__}
        self.strategy = self.join()
        with self.strategy.scope():
            self.net = self.build()
            self.names = list(tensor_shapes(self.job["network"]))
            self.variables = [self.net.tensors[name] for name in self.names]
            self.optimizer = tf.keras.optimizers.SGD(RATE, momentum=MOMENTUM)
            self.optimizer.build(self.variables)
        self.passes = {
            name: tf.function(getattr(self, "_" + name)) for name in ("forward", "compute", "exchange", "update")
        }
        self.loss = tf.constant(0.0)

    def build(self) -> Any:
        """The network, with variables by name."""
        return TensorFlowNetwork(self.job["network"], training=self.training)

    def join(self) -> Any:
        """The distribution strategy of the ranks."""
        return _strategy(self.job) if self.ranks > 1 else tf.distribute.get_strategy()

    def arrange(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Images channels last."""
        if inputs.ndim == 4:
            return np.ascontiguousarray(inputs.transpose(0, 2, 3, 1)), targets.astype(np.int32)
        return inputs.astype(np.int32), targets.astype(np.int32)

    def place(self, inputs: Any, targets: Any) -> Any:
        """Copies in TensorFlow's memory."""
        return tf.constant(inputs), tf.constant(targets)

    def read(self) -> Iterator[Any]:
        """tf.data's iterator."""
        return iter(dataset_from_files(self.job, self.rank))

    def run(self, part: str, batch: Any) -> None:
        """One compiled pass."""
        result = self.passes[part](*batch)
        self.loss = result[0] if isinstance(result, tuple) else result

    def sync(self) -> None:
        """On CPU a tf.function returns after its kernels; reading the loss guarantees completion."""
        tf.nest.map_structure(lambda value: value.numpy(), self.strategy.experimental_local_results(self.loss)[:1])

    def _forward(self, inputs: Any, targets: Any) -> Any:
        return self.strategy.run(self._local_loss, args=(inputs, targets))

    def _local_loss(self, inputs: Any, targets: Any) -> Any:
        return mean_cross_entropy(self.net(inputs), targets)

    def _gradients(self, inputs: Any, targets: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = self._local_loss(inputs, targets)
            share = loss / self.strategy.num_replicas_in_sync
        return loss, [tf.convert_to_tensor(grad) for grad in tape.gradient(share, self.variables)]

    def _compute(self, inputs: Any, targets: Any) -> Any:
        def replica(inputs: Any, targets: Any) -> Any:
            loss, gradients = self._gradients(inputs, targets)
            return loss, gradients  # unused results would be optimized away

        return self.strategy.run(replica, args=(inputs, targets))

    def _exchange(self, inputs: Any, targets: Any) -> Any:
        def replica(inputs: Any, targets: Any) -> Any:
            loss, gradients = self._gradients(inputs, targets)
            return loss, _sum_over_ranks(gradients)

        return self.strategy.run(replica, args=(inputs, targets))

    def _update(self, inputs: Any, targets: Any) -> Any:
        def replica(inputs: Any, targets: Any) -> Any:
            loss, gradients = self._gradients(inputs, targets)
            self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
            return loss

        return self.strategy.run(replica, args=(inputs, targets))

    def load(self, tensors: dict[str, Any]) -> None:
        """Set variables."""
        for name, array in tensors.items():
            self.net.tensors[name].assign(self.net.native(name, array).astype(np.float32))

    def tensors(self) -> dict[str, Any]:
        """Variables in Paceline's layout."""
        return {name: self.net.plain(name, self.net.tensors[name].numpy()) for name in self.names}

    def reveal(self) -> tuple[Any, float, dict[str, Any]]:
        """Logits, loss and gradients of the resident batch, without exchange."""
        logits = self.net(self.batch[0])
        loss, gradients = self._gradients(*self.batch)
        found = {name: self.net.plain(name, grad.numpy()) for name, grad in zip(self.names, gradients, strict=True)}
        return logits.numpy(), float(loss), found

    def facts(self) -> dict[str, Any]:
        """Facts of the session for the run: loss and wrapper."""
        loss = self.strategy.experimental_local_results(self.loss)[0]
        return {"loss": float(loss), "wrapper": type(self.strategy).__name__}


def _sum_over_ranks(gradients: list[Any]) -> list[Any]:
    context = tf.distribute.get_replica_context()
    return list(context.all_reduce(tf.distribute.ReduceOp.SUM, gradients))


def _strategy(job: Job) -> Any:
    kinds = tf.distribute.experimental.CommunicationImplementation
    asked = job["strategy"]["transport"]
    kind = kinds.NCCL if asked == "nccl" else kinds.RING if job["strategy"]["algorithm"] == "ring" else kinds.AUTO
    pack = int(job["strategy"]["bucket"] or 0)
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=pack, implementation=kind)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def dataset_from_files(job: Job, rank: int) -> Any:
    """An endless tf.data.Dataset of this rank's share: parallel decoding, batches, prefetching; channels last."""
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


if __name__ == "__main__":
    main(TensorFlowSession)
