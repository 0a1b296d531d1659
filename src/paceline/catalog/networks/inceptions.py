"""Networks of inception blocks, without auxiliary heads: GoogLeNet in its two common forms, and Inception-v3.

Inception-v3: Szegedy et al., "Rethinking the Inception Architecture", 2015.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.catalog.networks.builder import NetworkBuilder, Side
from paceline.spec.layers import LocalResponseNorm
from paceline.spec.network import Network

__all__ = ["googlenet", "googlenet_bvlc", "inception_v3"]


def inception_v3(name: str) -> Network:
    """The form that torchvision ships, 299 x 299."""
    net = NetworkBuilder()
    _stem(net)
    for number, pooled in ((1, 32), (2, 64), (3, 64)):
        _block_a(net, f"mixed5_{number}", pooled)
    _reduce_a(net, "mixed6_0")
    for number, width in ((1, 128), (2, 160), (3, 160), (4, 192)):
        _block_b(net, f"mixed6_{number}", width)
    _reduce_b(net, "mixed7_0")
    for number in (1, 2):
        _block_c(net, f"mixed7_{number}")
    net.global_avg_pool()
    net.dropout("drop", 0.5)
    net.linear("fc", 1000)
    return net.images(name, 299)


def _stem(net: NetworkBuilder) -> None:
    _conv(net, "conv1a", 32, 3, stride=2)
    _conv(net, "conv2a", 32, 3)
    _conv(net, "conv2b", 64, 3, padding=1)
    net.max_pool("pool1", 3, 2)
    _conv(net, "conv3b", 80, 1)
    _conv(net, "conv4a", 192, 3)
    net.max_pool("pool2", 3, 2)


def _block_a(net: NetworkBuilder, name: str, pooled: int) -> None:
    before = net.last
    one = _conv(net, f"{name}_1x1", 64, 1, reads=before)
    five = _branch(net, f"{name}_5x5", before, ((48, 1), (64, 5)))
    three = _branch(net, f"{name}_3x3", before, ((64, 1), (96, 3), (96, 3)))
    net.concat(f"{name}_output", one, five, three, _pooled(net, name, before, pooled))


def _reduce_a(net: NetworkBuilder, name: str) -> None:
    before = net.last
    three = _conv(net, f"{name}_3x3", 384, 3, stride=2, reads=before)
    _branch(net, f"{name}_double", before, ((64, 1), (96, 3)))
    double = _conv(net, f"{name}_double_3", 96, 3, stride=2)
    pool = net.max_pool(f"{name}_pool", 3, 2, reads=before)
    net.concat(f"{name}_output", three, double, pool)


def _block_b(net: NetworkBuilder, name: str, width: int) -> None:
    before = net.last
    one = _conv(net, f"{name}_1x1", 192, 1, reads=before)
    seven = _branch(net, f"{name}_7x7", before, ((width, 1), (width, (1, 7)), (192, (7, 1))))
    steps = ((width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7)))
    double = _branch(net, f"{name}_double", before, steps)
    net.concat(f"{name}_output", one, seven, double, _pooled(net, name, before, 192))


def _reduce_b(net: NetworkBuilder, name: str) -> None:
    before = net.last
    _conv(net, f"{name}_3x3_1", 192, 1, reads=before)
    three = _conv(net, f"{name}_3x3_2", 320, 3, stride=2)
    _branch(net, f"{name}_7x7", before, ((192, 1), (192, (1, 7)), (192, (7, 1))))
    seven = _conv(net, f"{name}_7x7_4", 192, 3, stride=2)
    pool = net.max_pool(f"{name}_pool", 3, 2, reads=before)
    net.concat(f"{name}_output", three, seven, pool)


def _block_c(net: NetworkBuilder, name: str) -> None:
    before = net.last
    one = _conv(net, f"{name}_1x1", 320, 1, reads=before)
    three = _branch(net, f"{name}_3x3", before, ((384, 1),))
    three_sides = _sides(net, f"{name}_3x3", three)
    double = _branch(net, f"{name}_double", before, ((448, 1), (384, 3)))
    double_sides = _sides(net, f"{name}_double", double)
    net.concat(f"{name}_output", one, *three_sides, *double_sides, _pooled(net, name, before, 192))


def _sides(net: NetworkBuilder, name: str, before: str) -> tuple[str, str]:
    """A 1 x 3 and a 3 x 1 convolution side by side on the same input."""
    flat = _conv(net, f"{name}_1x3", 384, (1, 3), padding=(0, 1), reads=before)
    tall = _conv(net, f"{name}_3x1", 384, (3, 1), padding=(1, 0), reads=before)
    return flat, tall


def _branch(net: NetworkBuilder, name: str, before: str, steps: tuple[tuple[int, Side], ...]) -> str:
    """Consecutive convolutions that keep the size of the image; returns the name of the last one."""
    last = before
    for number, (channels, kernel) in enumerate(steps, start=1):
        last = _conv(net, f"{name}_{number}", channels, kernel, padding=_same(kernel), reads=last)
    return last


def _pooled(net: NetworkBuilder, name: str, before: str, channels: int) -> str:
    net.avg_pool(f"{name}_pool", 3, 1, padding=1, reads=before)
    return _conv(net, f"{name}_pool_proj", channels, 1)


def _same(kernel: Side) -> Side:
    return kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)


def _conv(
    net: NetworkBuilder,
    name: str,
    channels: int,
    kernel: Side,
    *,
    stride: int = 1,
    padding: Side = 0,
    reads: str | None = None,
) -> str:
    net.conv(name, channels, kernel, stride=stride, padding=padding, bias=False, reads=reads)
    net.batch_norm(f"{name}_bn", eps=0.001)
    return net.relu(f"{name}_relu")


Conv = Callable[..., str]

BLOCKS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Channels of each block: 1x1; 3x3 reduced, 3x3; 5x5 reduced, 5x5; pool projection (table 1 of the 2014 paper)."""


def googlenet(name: str, size: int = 224) -> Network:
    """The batch-norm form that torchvision ships; its third branch is 3 x 3 where the paper has 5 x 5."""
    net = NetworkBuilder()
    conv = _normed(net)
    conv("conv1", 64, 7, stride=2, padding=3)
    net.max_pool("pool1", 3, 2, ceil=True)
    conv("conv2_reduce", 64, 1)
    conv("conv2", 192, 3, padding=1)
    net.max_pool("pool2", 3, 2, ceil=True)
    _blocks(net, conv, third=3, last_pool=2)
    net.global_avg_pool()
    net.dropout("drop", 0.2)
    net.linear("fc", 1000)
    return net.images(name, size)


def googlenet_bvlc(name: str) -> Network:
    """The form of the 2014 paper as Caffe ships it: biases, response normalization, no batch normalization."""
    net = NetworkBuilder()
    conv = _plain(net)
    conv("conv1", 64, 7, stride=2, padding=3)
    net.max_pool("pool1", 3, 2, ceil=True)
    net.add(LocalResponseNorm(name="norm1"))
    conv("conv2_reduce", 64, 1)
    conv("conv2", 192, 3, padding=1)
    net.add(LocalResponseNorm(name="norm2"))
    net.max_pool("pool2", 3, 2, ceil=True)
    _blocks(net, conv, third=5, last_pool=3)
    net.global_avg_pool()
    net.dropout("drop", 0.4)
    net.linear("fc", 1000)
    return net.images(name, 224)


def _blocks(net: NetworkBuilder, conv: Conv, *, third: int, last_pool: int) -> None:
    for name, channels in BLOCKS.items():
        if name == "4a":
            net.max_pool("pool3", 3, 2, ceil=True)
        if name == "5a":
            net.max_pool("pool4", last_pool, 2, ceil=True)
        _block(net, conv, f"inception_{name}", channels, third=third)


def _block(net: NetworkBuilder, conv: Conv, name: str, channels: tuple[int, ...], *, third: int) -> None:
    before = net.last
    one, three_reduce, three, five_reduce, five, projected = channels
    first = conv(f"{name}_1x1", one, 1, reads=before)
    conv(f"{name}_3x3_reduce", three_reduce, 1, reads=before)
    second = conv(f"{name}_3x3", three, 3, padding=1)
    conv(f"{name}_5x5_reduce", five_reduce, 1, reads=before)
    wide = conv(f"{name}_5x5", five, third, padding=third // 2)
    net.max_pool(f"{name}_pool", 3, 1, padding=1, reads=before)
    pooled = conv(f"{name}_pool_proj", projected, 1)
    net.concat(f"{name}_output", first, second, wide, pooled)


def _normed(net: NetworkBuilder) -> Conv:
    def conv(name: str, channels: int, kernel: int, **options: Any) -> str:
        net.conv(name, channels, kernel, bias=False, **options)
        net.batch_norm(f"{name}_bn", eps=0.001)
        return net.relu(f"{name}_relu")

    return conv


def _plain(net: NetworkBuilder) -> Conv:
    def conv(name: str, channels: int, kernel: int, **options: Any) -> str:
        net.conv(name, channels, kernel, **options)
        return net.relu(f"{name}_relu")

    return conv
