"""A graph of layers while it is being written down: each call adds one layer and returns its name."""

from __future__ import annotations

from typing import Any

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

__all__ = ["Graph", "square"]


class Graph:
    """Layers in order of execution; without `reads` a layer reads the one added before it."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    @property
    def last(self) -> str:
        """Name of the layer added last."""
        return self.layers[-1].name if self.layers else "input"

    def add(self, layer: Layer) -> str:
        """Any layer, as it is."""
        self.layers.append(layer)
        return layer.name

    def conv(self, name: str, channels: int, kernel: int | tuple[int, int], **options: Any) -> str:
        """A convolution; one number for kernel, stride or padding means a square."""
        squared = {key: square(options.pop(key)) for key in ("stride", "padding") if key in options}
        inputs = _reads(options)
        return self.add(Conv2d(name=name, channels=channels, kernel=square(kernel), inputs=inputs, **squared, **options))

    def max_pool(self, name: str, kernel: int, stride: int, **options: Any) -> str:
        """A square maximum pooling."""
        padding = square(options.pop("padding", 0))
        inputs = _reads(options)
        window = {"kernel": square(kernel), "stride": square(stride), "padding": padding}
        return self.add(MaxPool(name=name, inputs=inputs, **window, **options))

    def avg_pool(self, name: str, kernel: int, stride: int, **options: Any) -> str:
        """A square mean pooling."""
        padding = square(options.pop("padding", 0))
        inputs = _reads(options)
        return self.add(
            AvgPool(name=name, kernel=square(kernel), stride=square(stride), padding=padding, inputs=inputs)
        )

    def linear(self, name: str, features: int, **options: Any) -> str:
        """A matrix product on the last axis."""
        return self.add(Linear(name=name, features=features, **options))

    def batch_norm(self, name: str, eps: float = 1e-5) -> str:
        """Batch normalisation."""
        return self.add(BatchNorm(name=name, eps=eps))

    def relu(self, name: str) -> str:
        """Rectifier."""
        return self.add(Relu(name=name))

    def dropout(self, name: str, rate: float) -> str:
        """Dropout of this rate."""
        return self.add(Dropout(name=name, rate=rate))

    def flatten(self) -> str:
        """An image becomes a vector."""
        return self.add(Flatten(name="flatten"))

    def global_avg_pool(self) -> str:
        """An image becomes a vector of channel means."""
        return self.add(GlobalAvgPool(name="pool"))

    def sum(self, name: str, *inputs: str) -> str:
        """Element-wise sum."""
        return self.add(Add(name=name, inputs=inputs))

    def concat(self, name: str, *inputs: str) -> str:
        """Channels side by side."""
        return self.add(Concat(name=name, inputs=inputs))

    def images(self, name: str, size: int, *, channels: int = 3) -> Network:
        """The finished network on square images."""
        given = ImageInput(channels=channels, height=size, width=size)
        return Network(name=name, input=given, layers=tuple(self.layers))

    def tokens(self, name: str, length: int, *, vocabulary: int) -> Network:
        """The finished network on text."""
        given = TokenInput(length=length, vocabulary=vocabulary)
        return Network(name=name, input=given, layers=tuple(self.layers))


def square(size: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width; one number means both."""
    return (size, size) if isinstance(size, int) else size


def _reads(options: dict[str, Any]) -> tuple[str, ...]:
    reads = options.pop("reads", None)
    return () if reads is None else (reads,)
