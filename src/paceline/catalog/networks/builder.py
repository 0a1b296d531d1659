"""A builder of networks: each call adds one layer and returns its name."""

from __future__ import annotations

from typing import TypeVar

from paceline.spec.fields import Pair
from paceline.spec.layers import (
    Add,
    AvgPool,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    Flatten,
    GlobalAvgPool,
    Layer,
    Linear,
    MaxPool,
    Relu,
)
from paceline.spec.network import ImageInput, Network, TokenInput

__all__ = ["NetworkBuilder", "Side", "square"]

Side = int | tuple[int, int]
P = TypeVar("P", MaxPool, AvgPool)


class NetworkBuilder:
    """Layers in order of execution; without `reads` a layer reads the one added before it."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    @property
    def last(self) -> str:
        """Name of the layer added last."""
        return self.layers[-1].name if self.layers else "input"

    def add(self, layer: Layer) -> str:
        """Add any layer."""
        self.layers.append(layer)
        return layer.name

    def conv(
        self,
        name: str,
        channels: int,
        kernel: Side,
        *,
        stride: Side = 1,
        padding: Side = 0,
        groups: int = 1,
        bias: bool = True,
        reads: str | None = None,
    ) -> str:
        """Add a convolution; one number for kernel, stride or padding means a square."""
        layer = Conv2d(
            name=name,
            inputs=_inputs(reads),
            channels=channels,
            kernel=square(kernel),
            stride=square(stride),
            padding=square(padding),
            groups=groups,
            bias=bias,
        )
        return self.add(layer)

    def max_pool(
        self, name: str, kernel: int, stride: int, *, padding: int = 0, ceil: bool = False, reads: str | None = None
    ) -> str:
        """Add a square maximum pooling."""
        window = square(kernel), square(stride), square(padding)
        return self.add(_pool(MaxPool, name, window, ceil=ceil, reads=reads))

    def avg_pool(self, name: str, kernel: int, stride: int, *, padding: int = 0, reads: str | None = None) -> str:
        """Add a square mean pooling."""
        window = square(kernel), square(stride), square(padding)
        return self.add(_pool(AvgPool, name, window, ceil=False, reads=reads))

    def linear(self, name: str, features: int, *, bias: bool = True, tied_to: str | None = None) -> str:
        """Add a matrix product on the last axis."""
        return self.add(Linear(name=name, features=features, bias=bias, tied_to=tied_to))

    def batch_norm(self, name: str, eps: float = 1e-5) -> str:
        """Add batch normalization."""
        return self.add(BatchNorm(name=name, eps=eps))

    def relu(self, name: str) -> str:
        """Add a ReLU."""
        return self.add(Relu(name=name))

    def dropout(self, name: str, rate: float) -> str:
        """Add dropout of this rate."""
        return self.add(Dropout(name=name, rate=rate))

    def flatten(self) -> str:
        """Add a layer that converts an image to a vector."""
        return self.add(Flatten(name="flatten"))

    def global_avg_pool(self) -> str:
        """Add a layer that converts an image to a vector of channel means."""
        return self.add(GlobalAvgPool(name="pool"))

    def sum(self, name: str, *inputs: str) -> str:
        """Add an element-wise sum."""
        return self.add(Add(name=name, inputs=inputs))

    def concat(self, name: str, *inputs: str) -> str:
        """Add a concatenation of channels."""
        return self.add(Concat(name=name, inputs=inputs))

    def images(self, name: str, size: int, *, channels: int = 3) -> Network:
        """The finished network on square images."""
        given = ImageInput(channels=channels, height=size, width=size)
        return Network(name=name, input=given, layers=tuple(self.layers))

    def tokens(self, name: str, length: int, *, vocabulary: int) -> Network:
        """The finished network on text."""
        given = TokenInput(length=length, vocabulary=vocabulary)
        return Network(name=name, input=given, layers=tuple(self.layers))


def square(size: Side) -> Pair:
    """Height and width; one number means both."""
    return (size, size) if isinstance(size, int) else size


def _inputs(reads: str | None) -> tuple[str, ...]:
    return () if reads is None else (reads,)


def _pool(kind: type[P], name: str, window: tuple[Pair, Pair, Pair], *, ceil: bool, reads: str | None) -> P:
    kernel, stride, padding = window
    return kind(name=name, inputs=_inputs(reads), kernel=kernel, stride=stride, padding=padding, ceil=ceil)
