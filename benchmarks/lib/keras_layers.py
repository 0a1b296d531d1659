"""The Keras network of the emulated benchmarks: real gradients of any size, next to no work for the host."""

from __future__ import annotations

import time
from typing import Any

import keras

from paceline.runtime.emulate import Emulated, emulate


class Scale(keras.layers.Layer):
    """Multiplies by one number, and holds as many as asked; all of them have gradients that travel."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.kernel = self.add_weight(shape=(size,), initializer="ones")

    def call(self, inputs: Any) -> Any:
        """Scaled inputs."""
        return inputs * self.kernel[0]


def network(gradient_bytes: float, layers: int = 8) -> Any:
    """Layers with gradients of so many bytes together."""
    return keras.Sequential([keras.Input((1,)), *(Scale(round(gradient_bytes / 4 / layers)) for _ in range(layers))])


class Clock(keras.callbacks.Callback):
    """Makes the model behind a `Join` as slow as a device, and notes when each step ended."""

    def __init__(self, join: Any, *, per_sample: float, speed: float) -> None:
        super().__init__()
        self._join, self._device = join, Emulated(per_sample=per_sample, speed=speed)
        self.ends: list[float] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Called after that of the `Join`, which stands before this one."""
        emulate(self._join.exchange.shadow, self._device)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A step ended."""
        self.ends.append(time.perf_counter())
