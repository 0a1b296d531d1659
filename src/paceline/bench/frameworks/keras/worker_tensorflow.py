"""The measured Keras process on the TensorFlow backend: Keras layers inside TensorFlow's own training loop."""

from __future__ import annotations

from typing import Any

import keras

from paceline.bench.frameworks.graph import Plain, tensor_shapes
from paceline.bench.frameworks.harness import main
from paceline.bench.frameworks.keras.worker_network import KerasNetwork
from paceline.bench.frameworks.tensorflow.worker import TensorFlowSession

__all__ = ["KerasTensorFlowSession"]


class KerasTensorFlowSession(TensorFlowSession):
    """A custom training loop as in Keras' guide for TensorFlow: GradientTape around the model, a Keras optimizer."""

    def build(self) -> Any:
        """A Keras model, whose variables belong to the strategy's scope."""
        self.versions["keras"] = keras.__version__
        self.keras = KerasNetwork(self.job["network"], training=self.training)
        return _Callable(self.keras, self.job["network"])


class _Callable:
    """A Keras model with the interface of a TensorFlow network."""

    def __init__(self, network: KerasNetwork, plain: Plain) -> None:
        self._network = network
        self.native, self.plain = network.native, network.plain
        self.tensors = {name: network.variable(name) for name in tensor_shapes(plain)}

    def __call__(self, inputs: Any) -> Any:
        return self._network.model(inputs, training=True)


if __name__ == "__main__":
    main(KerasTensorFlowSession)
