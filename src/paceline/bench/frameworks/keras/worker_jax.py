"""The measured Keras process on the JAX backend: the model's stateless call inside JAX's own compiled step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np

from paceline.bench.frameworks.graph import tensor_shapes
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.jax.worker import JaxSession
from paceline.bench.frameworks.keras.worker_network import KerasNetwork

__all__ = ["KerasJaxSession"]


class KerasJaxSession(JaxSession):
    """A custom training loop as in Keras' guide for JAX: `stateless_call`, gradients by JAX, averaged in shard_map."""

    def build(self) -> Any:
        """A Keras model as a function of its trainable variables."""
        self.versions["keras"] = keras.__version__
        return _Stateless(self.job["network"], training=self.training)

    def read(self) -> Iterator[Any]:
        """tf.data, which is what Keras' own image loaders return on every backend."""
        from paceline.bench.frameworks.tensorflow.worker import dataset_from_files

        for inputs, targets in dataset_from_files(self.job, self.rank).as_numpy_iterator():
            yield self.place(inputs, targets)


class _Stateless:
    """A Keras model with the interface of a JAX network; moving averages are not kept."""

    def __init__(self, network: Any, *, training: bool) -> None:
        self._keras = KerasNetwork(network, training=training)
        self.native, self.plain = self._keras.native, self._keras.plain
        model = self._keras.model
        names = {id(self._keras.variable(name)): name for name in tensor_shapes(network)}
        self._order = [names[id(variable)] for variable in model.trainable_variables]
        self._rest = [np.asarray(variable.value) for variable in model.non_trainable_variables]

    def __call__(self, tensors: Any, value: Any, key: Any) -> Any:
        """Logits; dropout draws from Keras' own seeds, which are part of the state that is passed in."""
        trained = [tensors[name] for name in self._order]
        rest = [jax.numpy.asarray(array) for array in self._rest]
        logits, _ = self._keras.model.stateless_call(trained, rest, value, training=True)
        return logits


if __name__ == "__main__":
    main(KerasJaxSession)
