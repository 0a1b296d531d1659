"""The layout of weights that TensorFlow, JAX and Keras share; runs inside every framework's own environment."""

from __future__ import annotations

from typing import Any

from paceline.bench.frameworks.graph import Plain, flattened_images

__all__ = ["InOut"]


class InOut:
    """Kernels as (height, width, in, out), matrices as (in, out); everything else in Paceline's layout.

    With channels last, the rows of a matrix that reads a flattened image stand in that image's own order.
    """

    def __init__(self, network: Plain, *, channels_last: bool = True) -> None:
        self._kinds = {layer["name"]: layer["kind"] for layer in network["layers"]}
        self._flattened = flattened_images(network) if channels_last else {}

    def native(self, name: str, array: Any) -> Any:
        """A tensor of Paceline in the framework's layout."""
        layer, _, role = name.rpartition(".")
        if role != "weight" or self._kinds[layer] not in ("conv2d", "linear"):
            return array
        if self._kinds[layer] == "conv2d":
            return array.transpose(2, 3, 1, 0)
        if layer in self._flattened:
            array = array.reshape(-1, *self._flattened[layer]).transpose(0, 2, 3, 1).reshape(array.shape)
        return array.T

    def plain(self, name: str, array: Any) -> Any:
        """The inverse of `native`."""
        layer, _, role = name.rpartition(".")
        if role != "weight" or self._kinds[layer] not in ("conv2d", "linear"):
            return array
        if self._kinds[layer] == "conv2d":
            return array.transpose(3, 2, 0, 1)
        if layer not in self._flattened:
            return array.T
        channels, height, width = self._flattened[layer]
        return array.T.reshape(-1, height, width, channels).transpose(0, 3, 1, 2).reshape(array.T.shape)
