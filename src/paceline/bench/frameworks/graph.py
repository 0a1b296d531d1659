"""Traversal of a network in JSON form, for builders that run without Paceline's dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = [
    "InOut",
    "Plain",
    "UnsupportedLayer",
    "flattened_images",
    "input_shapes",
    "pool_padding",
    "run_layers",
    "tensor_shapes",
]

Plain = dict[str, Any]


class UnsupportedLayer(Exception):
    """A framework cannot build a kind of layer."""


def run_layers(network: Plain, apply: Callable[..., Any], value: Any) -> Any:
    """The output of the last layer; `apply` computes each layer from its inputs."""
    values = {"input": value}
    for layer in network["layers"]:
        values[layer["name"]] = apply(layer, *[values[name] for name in layer["inputs"]])
    return values[network["layers"][-1]["name"]]


def input_shapes(network: Plain) -> dict[str, list[tuple[int, ...]]]:
    """Shapes, without the batch, that each layer reads."""
    known = {"input": _network_input(network)}
    for layer in network["layers"]:
        known[layer["name"]] = tuple(layer["shape"])
    return {layer["name"]: [known[name] for name in layer["inputs"]] for layer in network["layers"]}


def _network_input(network: Plain) -> tuple[int, ...]:
    source = network["input"]
    if source["kind"] == "tokens":
        return (source["length"],)
    return (source["channels"], source["height"], source["width"])


def tensor_shapes(network: Plain) -> dict[str, tuple[int, ...]]:
    """Every trainable tensor in Paceline's layout, in order of declaration."""
    return {
        tensor["name"]: tuple(tensor["shape"]) for layer in network["layers"] for tensor in layer.get("tensors", ())
    }


def flattened_images(network: Plain) -> dict[str, tuple[int, int, int]]:
    """Linear layers that read a flattened image, with the image's (channels, height, width).

    Channels-last frameworks flatten in their own order and permute the weights of these layers instead of the data.
    """
    shapes = input_shapes(network)
    origin: dict[str, tuple[int, int, int]] = {}
    found: dict[str, tuple[int, int, int]] = {}
    for layer in network["layers"]:
        name, kind = layer["name"], layer["kind"]
        if kind == "flatten" and len(shapes[name][0]) == 3:
            channels, height, width = shapes[name][0]
            origin[name] = (channels, height, width)
            continue
        image = origin.get(layer["inputs"][0])
        if image is None:
            continue
        if kind == "linear":
            found[name] = image
        elif kind in ("relu", "dropout", "tanh", "gelu"):
            origin[name] = image
        else:
            raise UnsupportedLayer(f"{name} ({kind}) reads a flattened image; only linear and element-wise layers may")
    return found


def pool_padding(layer: Plain, shape: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Zeros before and after height and width, so that windows without further padding give the layer's shape."""
    sides = []
    for axis in (0, 1):
        reach = (layer["shape"][axis + 1] - 1) * layer["stride"][axis] + layer["kernel"][axis]
        before = layer["padding"][axis]
        sides.append((before, max(0, reach - before - shape[axis + 1])))
    return sides[0], sides[1]


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
