"""A network as a graph of layers, with the parameters and costs of each layer per sample.

Costs come from the definition alone: parameters, multiply-adds of the forward pass, elements of the output and of
what the backward pass keeps. A multiply-add is counted once (2 flop); only matrix products and convolutions count.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from paceline.spec import shapes
from paceline.spec.fields import Count, Name, SpecModel
from paceline.spec.layers import Layer

__all__ = ["ImageInput", "LayerCost", "Network", "ParameterTensor", "TokenInput", "layer_costs", "plain_network"]


class ImageInput(SpecModel):
    """Images of a fixed size."""

    kind: Literal["image"] = "image"
    channels: Count = 3
    height: Count
    width: Count

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width)."""
        return (self.channels, self.height, self.width)


class TokenInput(SpecModel):
    """Text of a fixed length."""

    kind: Literal["tokens"] = "tokens"
    length: Count
    """Number of tokens of a sample."""
    vocabulary: Count
    """Number of different tokens."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(length,)."""
        return (self.length,)


@dataclass(frozen=True)
class ParameterTensor:
    """One trainable tensor; its gradient has the same shape."""

    name: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return shapes.elements(self.shape)


@dataclass(frozen=True)
class LayerCost:
    """Parameters and costs of one layer per sample, independent of the framework."""

    name: str
    kind: str
    shape: tuple[int, ...]
    """Shape of the output without the batch."""
    tensors: tuple[ParameterTensor, ...]
    """Trainable tensors in the order of their declaration."""
    macs: int
    """Multiply-adds of the forward pass."""
    input_elements: int
    output_elements: int
    kept_elements: int
    """Elements kept for the backward pass in addition to the output (attention's projections and probabilities)."""

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(tensor.elements for tensor in self.tensors)

    def activation_bytes(self, batch: int, bytes_per_element: int = 4) -> int:
        """Memory for the output and for the elements kept for the backward pass."""
        return (self.output_elements + self.kept_elements) * batch * bytes_per_element

    def gradient_bytes(self, bytes_per_element: int = 4) -> int:
        """Bytes to exchange for this layer, independent of the batch."""
        return self.parameters * bytes_per_element


class Network(SpecModel):
    """A graph of layers in order of execution; the loss is softmax cross-entropy over the last output's last axis."""

    name: Name
    input: Annotated[ImageInput | TokenInput, Field(discriminator="kind")]
    """Shape of one sample."""
    layers: Annotated[tuple[Layer, ...], Field(min_length=1)]
    """Each `[[layers]]` of the file, in order of execution."""

    @field_validator("layers")
    @classmethod
    def _chain(cls, layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
        """A layer without inputs reads the layer before it."""
        before = ("input", *(layer.name for layer in layers))
        return tuple(
            layer if layer.inputs else layer.model_copy(update={"inputs": (name,)})
            for layer, name in zip(layers, before, strict=False)
        )

    @model_validator(mode="after")
    def _check(self) -> Network:
        """Check that names are unique, inputs precede their layer, shapes fit, and all layers lead to the end."""
        layer_costs(self)
        read = {self.layers[-1].name}
        for layer in reversed(self.layers):
            if layer.name not in read:
                raise ValueError(f"layer {layer.name!r}: nothing that leads to the last layer reads it")
            read |= {*layer.inputs, *([layer.tied_to] if layer.kind == "linear" and layer.tied_to else [])}
        return self

    @property
    def parameters(self) -> int:
        """Number of trainable parameters of the network."""
        return sum(cost.parameters for cost in layer_costs(self))

    @property
    def macs(self) -> int:
        """Multiply-adds of one forward pass of one sample."""
        return sum(cost.macs for cost in layer_costs(self))

    @property
    def classes(self) -> int:
        """Size of the last axis of the last output, over which the loss is computed."""
        return layer_costs(self)[-1].shape[-1]

    @property
    def digest(self) -> str:
        """Hash of the definition without its name."""
        return _digest(self)


@lru_cache(maxsize=32)
def _digest(network: Network) -> str:
    """Computed once: every case of a study asks for it."""
    text = json.dumps(network.model_dump(mode="json", exclude={"name"}), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=32)
def layer_costs(network: Network) -> tuple[LayerCost, ...]:
    """Shapes, parameters and costs of every layer, in order; a layer that does not fit raises ValueError."""
    known: dict[str, tuple[int, ...]] = {"input": network.input.shape}
    tables: dict[str, tuple[int, ...]] = {}
    costs = []
    for layer in network.layers:
        if layer.name in known:
            raise ValueError(f"layer {layer.name!r}: name used twice")
        missing = [name for name in layer.inputs if name not in known]
        if missing:
            raise ValueError(f"layer {layer.name!r}: reads {missing[0]!r}, which no layer before it is called")
        _check_tokens(layer, network.input)
        cost = _cost(layer, [known[name] for name in layer.inputs], tables)
        known[layer.name] = cost.shape
        if layer.kind == "embedding":
            tables[layer.name] = (layer.rows, layer.width)
        costs.append(cost)
    return tuple(costs)


def _check_tokens(layer: Layer, given: ImageInput | TokenInput) -> None:
    """Tokens are numbers of rows: an embedding reads them and nothing else, and has a row for each."""
    reads = given.kind == "tokens" and "input" in layer.inputs
    if reads and layer.kind != "embedding":
        raise ValueError(f"layer {layer.name!r} ({layer.kind}): reads tokens, which only an embedding does")
    if layer.kind != "embedding":
        return
    if not reads or given.kind != "tokens":
        raise ValueError(f"layer {layer.name!r} (embedding): reads {layer.inputs[0]!r}, expected tokens (length)")
    if layer.rows < given.vocabulary:
        raise ValueError(f"layer {layer.name!r} (embedding): has {layer.rows} rows for {given.vocabulary} tokens")


def _cost(layer: Layer, inputs: list[tuple[int, ...]], tables: dict[str, tuple[int, ...]]) -> LayerCost:
    try:
        shape = shapes.output_shape(layer, inputs)
        tensors = shapes.parameter_shapes(layer, inputs[0], tables)
    except shapes.ShapeError as error:
        raise ValueError(f"layer {layer.name!r} ({layer.kind}): {error}") from None
    return LayerCost(
        name=layer.name,
        kind=layer.kind,
        shape=shape,
        tensors=tuple(ParameterTensor(f"{layer.name}.{name}", size) for name, size in tensors),
        macs=shapes.multiply_adds(layer, inputs[0], shape),
        input_elements=sum(shapes.elements(size) for size in inputs),
        output_elements=shapes.elements(shape),
        kept_elements=shapes.kept_elements(layer, inputs[0]),
    )


def plain_network(network: Network) -> dict[str, Any]:
    """The network as JSON data for a worker that has no Paceline installed: layers with shapes and tensors added."""
    data = network.model_dump(mode="json")
    for layer, cost in zip(data["layers"], layer_costs(network), strict=True):
        layer["shape"] = list(cost.shape)
        layer["tensors"] = [{"name": tensor.name, "shape": list(tensor.shape)} for tensor in cost.tensors]
    return {**data, "classes": network.classes, "digest": network.digest}
