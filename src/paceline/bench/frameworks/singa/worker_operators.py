"""Operators that SINGA 3.0.0.dev1 for CPU lacks or cannot run, of SINGA's own primitive operations.

An image of n samples and c channels is a matrix of n c rows, one for each channel of each sample: sums, scales and
shifts of channels are operations on its rows.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from singa import autograd, singa_wrap, tensor

__all__ = [
    "BatchNormOperator",
    "ConcatOperator",
    "PadOperator",
    "ResponseNormOperator",
    "SoftmaxCrossEntropy",
    "constant",
]

times = singa_wrap.__mul__


def constant(shape: tuple[int, ...], value: Any, device: Any) -> Any:
    """A tensor without gradient."""
    made = tensor.Tensor(shape, device)
    made.copy_from_numpy(np.broadcast_to(np.float32(value), shape))
    return made


class BatchNormOperator(autograd.Operator):
    """Every channel with mean 0 and variance 1 over the batch, then scaled and shifted."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self._eps = eps

    def forward(self, x: Any, weight: Any, bias: Any) -> Any:
        """Keeps the normalised image for `backward`."""
        self._shape = x.shape()
        samples, channels = self._shape[:2]
        self._rows = [samples * channels, prod(self._shape[2:])]
        self._ones = constant((samples, 1), 1.0, None).data
        self._count = float(samples * self._rows[1])
        normal = singa_wrap.Reshape(x, self._rows).Clone()
        singa_wrap.SubColumn(self._spread(self._mean(normal)), normal)
        variance = self._mean(singa_wrap.Square(normal))
        inverse = singa_wrap.PowFloat(singa_wrap.AddFloat(variance, self._eps), -0.5)
        singa_wrap.MultColumn(self._spread(inverse), normal)
        self._normal, self._factor = normal, self._spread(times(weight, inverse))
        result = normal.Clone()
        singa_wrap.MultColumn(self._spread(weight), result)
        singa_wrap.AddColumn(self._spread(bias), result)
        return singa_wrap.Reshape(result, self._shape)

    def backward(self, upstream: Any) -> Any:
        """Gradients of image, scale and shift."""
        rows = singa_wrap.Reshape(upstream, self._rows)
        shift, scale = self._sum(rows), self._sum(times(rows, self._normal))
        gradient, along = rows.Clone(), self._normal.Clone()
        singa_wrap.SubColumn(self._spread(singa_wrap.DivFloat(shift, self._count)), gradient)
        singa_wrap.MultColumn(self._spread(singa_wrap.DivFloat(scale, self._count)), along)
        singa_wrap.Axpy(-1.0, along, gradient)
        singa_wrap.MultColumn(self._factor, gradient)
        return singa_wrap.Reshape(gradient, self._shape), scale, shift

    def _sum(self, rows: Any) -> Any:
        """The sum per channel over samples and positions."""
        return singa_wrap.Sum(singa_wrap.Reshape(singa_wrap.Sum(rows, 1), self._shape[:2]), 0)

    def _mean(self, rows: Any) -> Any:
        return singa_wrap.DivFloat(self._sum(rows), self._count)

    def _spread(self, channels: Any) -> Any:
        """Broadcast one value per channel to the shape of the input."""
        matrix = singa_wrap.Mult(self._ones, singa_wrap.Reshape(channels, [1, self._shape[1]]))
        return singa_wrap.Reshape(matrix, [self._rows[0]])


class ResponseNormOperator(autograd.Operator):
    """x / (k + alpha / size * sum of the squares of neighbouring channels) ** beta.

    The sum is a convolution of 1 x 1 with a band of ones: `size // 2` channels before, the rest after.
    """

    def __init__(self, layer: dict[str, Any]) -> None:
        super().__init__()
        self._size, self._k, self._alpha, self._beta = (layer[name] for name in ("size", "k", "alpha", "beta"))
        self._alpha /= self._size

    def forward(self, x: Any) -> Any:
        """Keeps image and divisor for `backward`."""
        channels = x.shape()[1]
        place = np.arange(channels)
        ahead = place[None, :] - place[:, None]
        band = (-(self._size // 2) <= ahead) & (ahead <= (self._size - 1) // 2)
        self._band = [constant((channels, channels, 1, 1), b[:, :, None, None], None).data for b in (band, band.T)]
        self._none = constant((channels,), 0.0, None).data
        self._handle = singa_wrap.ConvHandle(x, (1, 1), (1, 1), (0, 0), channels, channels, False, 1)
        sums = self._over(singa_wrap.Square(x), self._band[0])
        self._x, self._divisor = x, singa_wrap.AddFloat(singa_wrap.MultFloat(sums, self._alpha), self._k)
        return times(x, singa_wrap.PowFloat(self._divisor, -self._beta))

    def backward(self, upstream: Any) -> Any:
        """Gradient of the image: the direct part, and the part through the divisors of neighbouring channels."""
        own = times(upstream, singa_wrap.PowFloat(self._divisor, -self._beta))
        neighbours = self._over(singa_wrap.__div__(times(own, self._x), self._divisor), self._band[1])
        singa_wrap.Axpy(-2 * self._alpha * self._beta, times(self._x, neighbours), own)
        return own

    def _over(self, image: Any, band: Any) -> Any:
        return singa_wrap.CpuConvForward(image, band, self._none, self._handle)


class ConcatOperator(autograd.Operator):
    """Channels of several inputs after each other; SINGA's own needs a list of tensors that its proxies cannot pass."""

    def forward(self, *inputs: Any) -> Any:
        """Copy every sample of every input to its place."""
        self._shapes = [value.shape() for value in inputs]
        samples, *rest = self._shapes[0]
        whole = (samples, sum(shape[1] for shape in self._shapes), *rest[1:])
        result = constant(whole, 0.0, None).data
        for value, (size, start) in zip(inputs, self._places()):
            for sample in range(samples):
                singa_wrap.CopyDataToFrom(result, value, size, sample * prod(whole[1:]) + start, sample * size)
        return result

    def backward(self, upstream: Any) -> Any:
        """The part of each input."""
        samples, each = self._shapes[0][0], prod(upstream.shape()[1:])
        parts = [constant(shape, 0.0, None).data for shape in self._shapes]
        for part, (size, start) in zip(parts, self._places()):
            for sample in range(samples):
                singa_wrap.CopyDataToFrom(part, upstream, size, sample * size, sample * each + start)
        return tuple(parts)

    def _places(self) -> list[tuple[int, int]]:
        """Elements of a sample of each input, and where they begin in a sample of the result."""
        sizes = [prod(shape[1:]) for shape in self._shapes]
        return [(size, sum(sizes[:index])) for index, size in enumerate(sizes)]


class PadOperator(autograd.Operator):
    """A constant around images: columns by a product with a shifted identity, then rows as columns of the turned."""

    def __init__(self, sides: tuple[tuple[int, int], tuple[int, int]], value: float) -> None:
        super().__init__()
        self._sides, self._value = sides, value

    def forward(self, x: Any) -> Any:
        """Height and width grow by their sides."""
        *_, height, width = x.shape()
        self._shifts = [_shift(size, *side) for size, side in zip((height, width), self._sides)]
        for place in (1, 0):
            shift, (before, after) = self._shifts[place], self._sides[place]
            edge = np.zeros(shift.shape[1], np.float32)
            edge[:before] = edge[len(edge) - after :] = self._value
            x = _turned(_columns(x, shift, edge))
        return x

    def backward(self, upstream: Any) -> Any:
        """The part inside the padding."""
        for place in (1, 0):
            upstream = _turned(_columns(upstream, self._shifts[place].T, None))
        return upstream


def _shift(size: int, before: int, after: int) -> Any:
    """A matrix that moves `size` columns to the right by `before`."""
    return np.eye(size, before + size + after, before, dtype=np.float32)


def _columns(x: Any, factor: Any, edge: Any) -> Any:
    """The columns of images times a matrix, plus a row."""
    *rest, width = x.shape()
    rows = singa_wrap.Reshape(x, [prod(rest), width])
    result = singa_wrap.Mult(rows, constant(factor.shape, factor, None).data)
    if edge is not None:
        singa_wrap.AddRow(constant(edge.shape, edge, None).data, result)
    return singa_wrap.Reshape(result, [*rest, factor.shape[1]])


def _turned(x: Any) -> Any:
    """Rows and columns exchanged, also in memory."""
    turned = singa_wrap.Transpose(x, [0, 1, 3, 2])
    return singa_wrap.Reshape(turned, turned.shape())


class SoftmaxCrossEntropy(autograd.Operator):
    """The mean loss; SINGA's own loss divides in place, which crashes its proxies for CPython 3.6."""

    def __init__(self, targets: Any) -> None:
        super().__init__()
        self._targets = targets.data

    def forward(self, logits: Any) -> Any:
        """Mean over the batch."""
        self._size = float(logits.shape()[0])
        self._shares = singa_wrap.SoftMax(logits)
        total = singa_wrap.SumAll(singa_wrap.CrossEntropyFwd(self._shares, self._targets))
        return singa_wrap.DivFloat(total, self._size)

    def backward(self, upstream: float = 1.0) -> Any:
        """Gradient of the logits."""
        return singa_wrap.DivFloat(singa_wrap.SoftmaxCrossEntropyBwd(self._shares, self._targets), self._size)
