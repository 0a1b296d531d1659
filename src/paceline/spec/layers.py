"""The kinds of layer of a network, independent of any framework.

Shapes exclude the batch: an image is (channels, height, width), text is (length,), a sequence (length, width).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paceline.spec.fields import Count, Name, SpecModel

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


class _Layer(SpecModel):
    name: Name
    """Unique in its network; the parameters are `name.weight`, `name.bias`, ..."""
    inputs: tuple[Name, ...] = ()
    """Names of its input layers, `input` for the network's input; by default the previous layer."""


class Conv2d(_Layer):
    """Two-dimensional convolution; weight (channels, in / groups, kernel height, kernel width)."""

    kind: Literal["conv2d"] = "conv2d"
    channels: Count
    """Channels of the output."""
    kernel: tuple[Count, Count]
    """Height and width of the window."""
    stride: tuple[Count, Count] = (1, 1)
    """Vertical and horizontal stride of the window."""
    padding: tuple[Padding, Padding] = (0, 0)
    """Vertical and horizontal zero padding on each side."""
    groups: Count = 1
    """Number of independent groups of channels."""
    bias: bool = True
    """Whether each channel has a trainable bias."""


class Linear(_Layer):
    """Matrix product on the last axis; weight (features, in)."""

    kind: Literal["linear"] = "linear"
    features: Count
    """Size of the output's last axis."""
    bias: bool = True
    """Whether each feature has a trainable bias."""
    tied_to: Name | None = None
    """Name of the embedding whose table is the weight of this layer."""


class BatchNorm(_Layer):
    """Batch normalization per channel, with scale and shift; training uses the statistics of the batch."""

    kind: Literal["batch_norm"] = "batch_norm"
    eps: float = 1e-5
    """Added to the variance."""


class LayerNorm(_Layer):
    """Layer normalization over the last axis, with scale and shift."""

    kind: Literal["layer_norm"] = "layer_norm"
    eps: float = 1e-5
    """Added to the variance."""


class LocalResponseNorm(_Layer):
    """Normalization across neighbouring channels: x / (k + alpha / size * sum of squares) ** beta."""

    kind: Literal["local_response_norm"] = "local_response_norm"
    size: Count = 5
    """Number of channels in the sum."""
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
    """Vertical and horizontal stride of the window."""
    padding: tuple[Padding, Padding] = (0, 0)
    """Vertical and horizontal padding on each side."""
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
    """Sets a random share of the elements to zero during training."""

    kind: Literal["dropout"] = "dropout"
    rate: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of the elements that are set to zero."""


class Flatten(_Layer):
    """An image becomes a vector, channels first."""

    kind: Literal["flatten"] = "flatten"


class Add(_Layer):
    """Element-wise sum of its inputs."""

    kind: Literal["add"] = "add"


class Concat(_Layer):
    """Concatenation of its inputs along the channels."""

    kind: Literal["concat"] = "concat"


class PadShortcut(_Layer):
    """ResNet's parameter-free shortcut: every stride-th pixel, new channels filled with zeros on both sides."""

    kind: Literal["pad_shortcut"] = "pad_shortcut"
    channels: Count
    """Channels of the output."""
    stride: Count = 2
    """Distance between the pixels that are kept."""


class Embedding(_Layer):
    """Embedding table with one row per token; weight (rows, width)."""

    kind: Literal["embedding"] = "embedding"
    rows: Count
    """Size of the vocabulary."""
    width: Count
    """Size of each row."""


class PositionEmbedding(_Layer):
    """Adds the row of its table that belongs to each position; weight (rows, width)."""

    kind: Literal["position_embedding"] = "position_embedding"
    rows: Count
    """Maximum number of positions."""


class TypeEmbedding(_Layer):
    """Adds row 0 of its table to every position (one segment per sample); weight (rows, width)."""

    kind: Literal["type_embedding"] = "type_embedding"
    rows: Count = 2
    """Number of segment types."""


class Attention(_Layer):
    """Multi-head self-attention with projections: qkv_weight (3 width, width), out_weight (width, width), biases."""

    kind: Literal["attention"] = "attention"
    heads: Count
    """Number of heads."""
    causal: bool = False
    """Whether a position attends only to itself and earlier positions."""


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
