"""Shape inference and cost of each kind of layer: one function per quantity, one branch per kind."""

from __future__ import annotations

import math

from paceline.spec.layers import (
    Attention,
    AvgPool,
    Concat,
    Conv2d,
    Embedding,
    Layer,
    Linear,
    MaxPool,
    PadShortcut,
    PositionEmbedding,
    TypeEmbedding,
)

__all__ = ["ShapeError", "elements", "kept_elements", "multiply_adds", "output_shape", "parameter_shapes"]

Shape = tuple[int, ...]


class ShapeError(ValueError):
    """The shape of an input does not fit the layer."""


def elements(shape: Shape) -> int:
    """Number of elements of a tensor of this shape."""
    return math.prod(shape)


def output_shape(layer: Layer, inputs: list[Shape]) -> Shape:
    """Shape of the output, without the batch."""
    if layer.kind in ("add", "concat"):
        return _joined(layer, inputs)
    if len(inputs) != 1:
        raise ShapeError(f"reads {len(inputs)} layers, expected one")
    shape = inputs[0]
    if layer.kind == "conv2d":
        return (layer.channels, *_windows(shape, layer.kernel, layer.stride, layer.padding))
    if layer.kind in ("max_pool", "avg_pool"):
        return _pooled(layer, shape)
    if layer.kind == "global_avg_pool":
        return (_image(shape)[0],)
    if layer.kind == "pad_shortcut":
        return _shortcut(layer, shape)
    if layer.kind == "linear":
        return (*shape[:-1], layer.features)
    if layer.kind == "flatten":
        return (elements(shape),)
    if layer.kind == "embedding":
        return (_ranked(shape, 1)[0], layer.width)
    if layer.kind == "first_token":
        return (_ranked(shape, 2)[1],)
    return _same(layer, shape)


def _same(layer: Layer, shape: Shape) -> Shape:
    if layer.kind in ("batch_norm", "local_response_norm"):
        _image(shape)
    if isinstance(layer, PositionEmbedding) and layer.rows < _ranked(shape, 2)[0]:
        raise ShapeError(f"has {layer.rows} rows for {shape[0]} positions")
    if isinstance(layer, Attention) and _ranked(shape, 2)[1] % layer.heads:
        raise ShapeError(f"width {shape[1]} does not divide into {layer.heads} heads")
    return shape


def _joined(layer: Layer, inputs: list[Shape]) -> Shape:
    first = inputs[0]
    if isinstance(layer, Concat):
        if any(shape[1:] != first[1:] or len(shape) != len(first) for shape in inputs):
            raise ShapeError(f"cannot put {inputs} side by side: sizes beyond the channels differ")
        return (sum(shape[0] for shape in inputs), *first[1:])
    if len(inputs) < 2 or any(shape != first for shape in inputs):
        raise ShapeError(f"cannot add {inputs}: two or more inputs of one shape are needed")
    return first


def _pooled(layer: MaxPool | AvgPool, shape: Shape) -> Shape:
    if any(2 * padding > kernel for padding, kernel in zip(layer.padding, layer.kernel, strict=True)):
        raise ShapeError(f"padding {layer.padding} is more than half of the window {layer.kernel}")
    size = _windows(shape, layer.kernel, layer.stride, layer.padding, ceil=layer.ceil)
    return (shape[0], *size)


def _shortcut(layer: PadShortcut, shape: Shape) -> Shape:
    channels, height, width = _image(shape)
    if layer.channels < channels or (layer.channels - channels) % 2:
        raise ShapeError(f"cannot widen {channels} channels to {layer.channels} evenly on both sides")
    return (layer.channels, -(-height // layer.stride), -(-width // layer.stride))


def _windows(shape: Shape, kernel: Shape, stride: Shape, padding: Shape, *, ceil: bool = False) -> Shape:
    sides = _image(shape)[1:]
    size = tuple(_side(*args, ceil=ceil) for args in zip(sides, kernel, stride, padding, strict=True))
    if min(size) < 1:
        raise ShapeError(f"a window of {kernel} does not fit into {shape}")
    return size


def _side(side: int, kernel: int, stride: int, padding: int, *, ceil: bool) -> int:
    span = side + 2 * padding - kernel
    count = (-(-span // stride) if ceil else span // stride) + 1
    if ceil and (count - 1) * stride >= side + padding:
        count -= 1
    return count


def _image(shape: Shape) -> Shape:
    return _ranked(shape, 3)


def _ranked(shape: Shape, rank: int) -> Shape:
    if len(shape) != rank:
        wanted = {1: "tokens (length)", 2: "a sequence (length, width)", 3: "an image (channels, height, width)"}[rank]
        raise ShapeError(f"reads a tensor of shape {shape}, expected {wanted}")
    return shape


def parameter_shapes(layer: Layer, shape: Shape, tables: dict[str, Shape]) -> list[tuple[str, Shape]]:
    """Names and shapes of the trainable tensors, in Paceline's own layout."""
    if isinstance(layer, Conv2d):
        return _conv_shapes(layer, shape)
    if isinstance(layer, Linear):
        return _linear_shapes(layer, shape, tables)
    if layer.kind == "batch_norm":
        return [("weight", (shape[0],)), ("bias", (shape[0],))]
    if layer.kind == "layer_norm":
        return [("weight", (shape[-1],)), ("bias", (shape[-1],))]
    if isinstance(layer, Embedding):
        return [("weight", (layer.rows, layer.width))]
    if isinstance(layer, PositionEmbedding | TypeEmbedding):
        return [("weight", (layer.rows, _ranked(shape, 2)[1]))]
    if isinstance(layer, Attention):
        width = shape[1]
        sizes = (("qkv_weight", (3 * width, width)), ("qkv_bias", (3 * width,)))
        return [*sizes, ("out_weight", (width, width)), ("out_bias", (width,))]
    return []


def _conv_shapes(layer: Conv2d, shape: Shape) -> list[tuple[str, Shape]]:
    if shape[0] % layer.groups or layer.channels % layer.groups:
        raise ShapeError(f"{shape[0]} -> {layer.channels} channels do not divide into {layer.groups} groups")
    weight = ("weight", (layer.channels, shape[0] // layer.groups, *layer.kernel))
    return [weight, ("bias", (layer.channels,))] if layer.bias else [weight]


def _linear_shapes(layer: Linear, shape: Shape, tables: dict[str, Shape]) -> list[tuple[str, Shape]]:
    weight = (layer.features, shape[-1])
    if layer.tied_to is not None and tables.get(layer.tied_to) != weight:
        raise ShapeError(f"is tied to {layer.tied_to!r}, which is no embedding of shape {weight} before it")
    own = [] if layer.tied_to is not None else [("weight", weight)]
    return [*own, ("bias", (layer.features,))] if layer.bias else list(own)


def multiply_adds(layer: Layer, shape: Shape, output: Shape) -> int:
    """Multiply-adds of one forward pass of one sample."""
    if isinstance(layer, Conv2d):
        return elements(output) * (shape[0] // layer.groups) * math.prod(layer.kernel)
    if isinstance(layer, Linear):
        return elements(output) * shape[-1]
    if isinstance(layer, Attention):
        length, width = shape
        return 4 * length * width * width + 2 * length * length * width
    return 0


def kept_elements(layer: Layer, shape: Shape) -> int:
    """Number of elements that the backward pass needs in addition to inputs and output."""
    if isinstance(layer, Attention):
        length, width = shape
        return 4 * length * width + layer.heads * length * length
    return 0
