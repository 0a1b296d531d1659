"""The kinds of layer a network is made of, as framework-free data.

Shapes exclude the batch: an image is (channels, height, width), text is (length,), a sequence (length, width).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.spec.fields import Count, Name, Noun

__all__ = [
    "Add",
    "Attention",
    "AvgPool",
    "BatchNorm",
    "Concat",
    "Conv2d",
    "Dropout",
    "Embedding",
    "FirstToken",
    "Flatten",
    "Gelu",
    "GlobalAvgPool",
    "Layer",
    "LayerNorm",
    "Linear",
    "LocalResponseNorm",
    "MaxPool",
    "PadShortcut",
    "PositionEmbedding",
    "Relu",
    "Tanh",
    "TypeEmbedding",
]

Padding = Annotated[int, Field(ge=0)]


class _Layer(Noun):
    name: Name
    """Unique in its network; parameters are called `name.weight`, `name.bias`, ..."""
    inputs: tuple[Name, ...] = ()
    """Names of the layers it reads, `input` for the network's input; none given means the layer before it."""


class Conv2d(_Layer):
    """Two-dimensional convolution; weight (channels, in / groups, kernel height, kernel width)."""

    kind: Literal["conv2d"] = "conv2d"
    channels: Count
    """Channels of the output."""
    kernel: tuple[Count, Count]
    """Height and width of the window."""
    stride: tuple[Count, Count] = (1, 1)
    """Steps of the window, down and across."""
    padding: tuple[Padding, Padding] = (0, 0)
    """Zeros on both sides, above and below, left and right."""
    groups: Count = 1
    """Groups of channels that do not see each other."""
    bias: bool = True
    """Whether a trainable number is added to each channel."""


class Linear(_Layer):
    """Matrix product on the last axis; weight (features, in)."""

    kind: Literal["linear"] = "linear"
    features: Count
    """Size of the output's last axis."""
    bias: bool = True
    """Whether a trainable number is added to each feature."""
    tied_to: Name | None = None
    """The embedding whose table is this layer's weight; it then has no weight of its own."""


class BatchNorm(_Layer):
    """Normalisation over the batch per channel, with scale and shift; statistics of the batch while training."""

    kind: Literal["batch_norm"] = "batch_norm"
    eps: float = 1e-5
    """Added to the variance."""


class LayerNorm(_Layer):
    """Normalisation over the last axis, with scale and shift."""

    kind: Literal["layer_norm"] = "layer_norm"
    eps: float = 1e-5
    """Added to the variance."""


class LocalResponseNorm(_Layer):
    """Normalisation across neighbouring channels: x / (k + alpha / size * sum of squares) ** beta."""

    kind: Literal["local_response_norm"] = "local_response_norm"
    size: Count = 5
    """Channels that are summed over."""
    alpha: float = 1e-4
    """Weight of the sum."""
    beta: float = 0.75
    """Exponent."""
    k: float = 1.0
    """Added to the sum."""


class Relu(_Layer):
    """max(x, 0)."""

    kind: Literal["relu"] = "relu"


class Tanh(_Layer):
    """Hyperbolic tangent."""

    kind: Literal["tanh"] = "tanh"


class Gelu(_Layer):
    """Gaussian error linear unit, exact or with the tanh approximation."""

    kind: Literal["gelu"] = "gelu"
    approximate: bool = False
    """Use the tanh approximation."""


class _Pool(_Layer):
    kernel: tuple[Count, Count]
    """Height and width of the window."""
    stride: tuple[Count, Count]
    """Steps of the window, down and across."""
    padding: tuple[Padding, Padding] = (0, 0)
    """Added on both sides, above and below, left and right."""
    ceil: bool = False
    """Round the output size up; a window must still start inside the image or its left padding."""


class MaxPool(_Pool):
    """Maximum over a window."""

    kind: Literal["max_pool"] = "max_pool"


class AvgPool(_Pool):
    """Mean over a window, padding counted as zeros."""

    kind: Literal["avg_pool"] = "avg_pool"


class GlobalAvgPool(_Layer):
    """Mean over height and width: an image becomes a vector of its channels."""

    kind: Literal["global_avg_pool"] = "global_avg_pool"


class Dropout(_Layer):
    """Zeroes a share of the elements while training."""

    kind: Literal["dropout"] = "dropout"
    rate: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the elements."""


class Flatten(_Layer):
    """An image becomes a vector, channels first."""

    kind: Literal["flatten"] = "flatten"


class Add(_Layer):
    """Element-wise sum of its inputs."""

    kind: Literal["add"] = "add"


class Concat(_Layer):
    """Its inputs side by side along the channels."""

    kind: Literal["concat"] = "concat"


class PadShortcut(_Layer):
    """ResNet's parameter-free shortcut: every stride-th pixel, new channels filled with zeros on both sides."""

    kind: Literal["pad_shortcut"] = "pad_shortcut"
    channels: Count
    """Channels of the output."""
    stride: Count = 2
    """Every how manyth pixel is kept."""


class Embedding(_Layer):
    """A row of its table for each token; weight (rows, width)."""

    kind: Literal["embedding"] = "embedding"
    rows: Count
    """Size of the vocabulary."""
    width: Count
    """Numbers of each row."""


class PositionEmbedding(_Layer):
    """Adds the row of its table that belongs to each position; weight (rows, width)."""

    kind: Literal["position_embedding"] = "position_embedding"
    rows: Count
    """Longest text."""


class TypeEmbedding(_Layer):
    """Adds row 0 of its table to every position (one segment per sample); weight (rows, width)."""

    kind: Literal["type_embedding"] = "type_embedding"
    rows: Count = 2
    """Kinds of segment."""


class Attention(_Layer):
    """Multi-head self-attention with projections: qkv_weight (3 width, width), out_weight (width, width), biases."""

    kind: Literal["attention"] = "attention"
    heads: Count
    """Parts into which the width is split."""
    causal: bool = False
    """Each position sees only those before it and itself."""


class FirstToken(_Layer):
    """The first position of a sequence."""

    kind: Literal["first_token"] = "first_token"


Layer = Annotated[
    Conv2d
    | Linear
    | BatchNorm
    | LayerNorm
    | LocalResponseNorm
    | Relu
    | Tanh
    | Gelu
    | MaxPool
    | AvgPool
    | GlobalAvgPool
    | Dropout
    | Flatten
    | Add
    | Concat
    | PadShortcut
    | Embedding
    | PositionEmbedding
    | TypeEmbedding
    | Attention
    | FirstToken,
    Field(discriminator="kind"),
]
