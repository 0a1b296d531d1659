"""Traversal of a network in JSON form, for builders that run without Paceline's dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

__all__ = [
    "ImageBuilder",
    "InOut",
    "LayerBuilder",
    "Plain",
    "UnsupportedLayer",
    "flattened_images",
    "input_shapes",
    "layer_keys",
    "pool_padding",
    "pool_shares",
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


class LayerBuilder:
    """A network of one framework: a layer of the kind `relu` is built by the method `_relu`, from its inputs."""

    framework: ClassVar[str]

    def __init__(self, network: Plain, *, training: bool) -> None:
        self._network, self._shapes, self._training = network, input_shapes(network), training

    def _apply(self, layer: Plain, *inputs: Any) -> Any:
        return self._operation(layer)(layer, *inputs)

    def _operation(self, layer: Plain) -> Callable[..., Any]:
        operation: Callable[..., Any] | None = getattr(self, "_" + layer["kind"], None)
        if operation is None:
            raise UnsupportedLayer(f"{self.framework} builds no {layer['kind']} ({layer['name']})")
        return operation


class ImageBuilder(LayerBuilder):
    """A builder of networks of images; matrices are (in, out) in the framework, all else has Paceline's layout."""

    tensors: dict[str, Any]
    """Parameters by Paceline's names."""

    def __init__(self, network: Plain, *, training: bool) -> None:
        if network["input"]["kind"] != "image":
            raise UnsupportedLayer(f"{self.framework}'s builder takes images only")
        super().__init__(network, training=training)
        self._kinds = {layer["name"]: layer["kind"] for layer in network["layers"]}

    def native(self, name: str, array: Any) -> Any:
        """A tensor of Paceline in the framework's layout."""
        layer, role = name.rsplit(".", 1)
        return array.T.copy() if self._kinds[layer] == "linear" and role == "weight" else array

    plain = native

    def _own(self, layer: Plain, role: str) -> Any:
        return self.tensors.get(f"{layer['name']}.{role}")


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


ELEMENT_WISE = ("relu", "dropout", "tanh", "gelu", "add")


def flattened_images(network: Plain) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """Linear layers that read an image flattened channels last, with its (channels, height, width); other flattens.

    A channels-last framework flattens in its own order and permutes the weights of linear layers instead of the data.
    Where any other layer reads the flattened image, the order matters: such a flatten moves the channels first.
    """
    moving: set[str] = set()
    while True:
        images, clash = _follow_flattened(network, moving)
        if not clash:
            return images, moving
        moving |= clash


def _follow_flattened(network: Plain, moving: set[str]) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """Linear layers with the image that they read, and flattens whose order another layer would notice."""
    shapes = input_shapes(network)
    origin: dict[str, set[str]] = {}
    images: dict[str, tuple[int, ...]] = {}
    for layer in network["layers"]:
        name, kind, sources = layer["name"], layer["kind"], [origin.get(each, set()) for each in layer["inputs"]]
        if kind == "flatten" and len(shapes[name][0]) == 3 and name not in moving:
            origin[name] = {name}
        elif any(sources):
            read = {shapes[flatten][0] for source in sources for flatten in source}
            if kind not in ("linear", "flatten", *ELEMENT_WISE) or not all(sources) or len(read) > 1:
                return {}, set().union(*sources)
            if kind == "linear":
                images[name] = read.pop()
            else:
                origin[name] = set().union(*sources)
    return images, origin.get(network["layers"][-1]["name"], set())


def pool_padding(layer: Plain, shape: Sequence[int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Zeros before and after height and width, so that windows without further padding give the layer's shape."""
    sides = []
    for axis in (0, 1):
        reach = (layer["shape"][axis + 1] - 1) * layer["stride"][axis] + layer["kernel"][axis]
        before = layer["padding"][axis]
        sides.append((before, max(0, reach - before - shape[axis + 1])))
    return sides[0], sides[1]


def pool_shares(layer: Plain, shape: Sequence[int]) -> tuple[list[float], list[float]] | None:
    """Factors for rows and columns of a mean over whole windows; None if all are 1.

    Rounding up lets the last window reach beyond the padding: what lies there does not count in the mean.
    """
    factors = []
    for axis in (0, 1):
        stride, kernel, padding = layer["stride"][axis], layer["kernel"][axis], layer["padding"][axis]
        ends = shape[axis + 1] + 2 * padding
        counted = [min(kernel, ends - stride * index) for index in range(layer["shape"][axis + 1])]
        factors.append([kernel / count for count in counted])
    return None if all(factor == 1 for factor in factors[0] + factors[1]) else (factors[0], factors[1])


def layer_keys(network: Plain) -> dict[str, str]:
    """A name for each layer that every framework accepts: letters and the layer's position, so never one name twice."""
    return {layer["name"]: f"layer{position}" for position, layer in enumerate(network["layers"])}


class InOut:
    """Kernels as (height, width, in, out), matrices as (in, out); everything else in Paceline's layout.

    With channels last, the rows of a matrix that reads a flattened image stand in that image's own order.
    """

    def __init__(self, network: Plain, *, channels_last: bool = True) -> None:
        self._kinds = {layer["name"]: layer["kind"] for layer in network["layers"]}
        self._images: dict[str, tuple[int, ...]] = {}
        self.moving: set[str] = set()
        """Flatten layers that move the channels first."""
        if channels_last:
            self._images, self.moving = flattened_images(network)

    def native(self, name: str, array: Any) -> Any:
        """A tensor of Paceline in the framework's layout."""
        layer, _, role = name.rpartition(".")
        if role != "weight" or self._kinds[layer] not in ("conv2d", "linear"):
            return array
        if self._kinds[layer] == "conv2d":
            return array.transpose(2, 3, 1, 0)
        if layer in self._images:
            array = array.reshape(-1, *self._images[layer]).transpose(0, 2, 3, 1).reshape(array.shape)
        return array.T

    def plain(self, name: str, array: Any) -> Any:
        """The inverse of `native`."""
        layer, _, role = name.rpartition(".")
        if role != "weight" or self._kinds[layer] not in ("conv2d", "linear"):
            return array
        if self._kinds[layer] == "conv2d":
            return array.transpose(3, 2, 0, 1)
        if layer not in self._images:
            return array.T
        channels, height, width = self._images[layer]
        return array.T.reshape(-1, height, width, channels).transpose(0, 3, 1, 2).reshape(array.T.shape)
