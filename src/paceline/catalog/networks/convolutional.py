"""Convolutional networks: ResNet v1 and v1.5, LeNet, AlexNet, VGG-16, GoogLeNet, Inception-v3; no auxiliary heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from paceline.catalog.networks.builder import NetworkBuilder, Side
from paceline.spec.layers import LocalResponseNorm, PadShortcut
from paceline.spec.network import Network

__all__ = [
    "alexnet",
    "alexnet_bvlc",
    "googlenet",
    "googlenet_bvlc",
    "inception_v3",
    "lenet",
    "resnet",
    "resnet_cifar",
    "vgg16",
]

DEPTHS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Blocks of each stage of a ResNet for ImageNet; from 50 layers on they are bottlenecks (He et al., 2015, table 1)."""


def resnet(name: str, depth: int, *, size: int = 224, first_strides: bool = False) -> Network:
    """ResNet for ImageNet; a bottleneck strides in its 3 x 3 (v1.5) or, with `first_strides`, its first 1 x 1 (v1)."""
    net = NetworkBuilder()
    _conv_norm(net, "conv1", 64, 7, stride=2, padding=3)
    net.relu("conv1_relu")
    net.max_pool("pool1", 3, 2, padding=1)
    for stage, (width, blocks) in enumerate(zip((64, 128, 256, 512), DEPTHS[depth], strict=True), start=2):
        for block in range(blocks):
            stride = 2 if stage > 2 and block == 0 else 1
            part = f"res{stage}_{block + 1}"
            if depth < 50:
                _basic(net, part, width, stride, project=True)
            else:
                strides = (stride, 1) if first_strides else (1, stride)
                _bottleneck(net, part, width, strides, widen=block == 0)
    net.global_avg_pool()
    net.linear("fc", 1000)
    return net.images(name, size)


def resnet_cifar(name: str, depth: int) -> Network:
    """The CIFAR form with 6n + 2 layers and shortcuts without parameters."""
    net = NetworkBuilder()
    _conv_norm(net, "conv1", 16, 3, padding=1)
    net.relu("conv1_relu")
    blocks = (depth - 2) // 6
    for stage, width in enumerate((16, 32, 64), start=2):
        for block in range(blocks):
            stride = 2 if stage > 2 and block == 0 else 1
            _basic(net, f"res{stage}_{block + 1}", width, stride)
    net.global_avg_pool()
    net.linear("fc", 10)
    return net.images(name, 32)


def _bottleneck(net: NetworkBuilder, name: str, width: int, strides: tuple[int, int], *, widen: bool) -> None:
    before = net.last
    _conv_norm(net, f"{name}_a", width, 1, stride=strides[0])
    net.relu(f"{name}_a_relu")
    _conv_norm(net, f"{name}_b", width, 3, stride=strides[1], padding=1)
    net.relu(f"{name}_b_relu")
    body = _conv_norm(net, f"{name}_c", 4 * width, 1)
    short = before
    if widen:
        short = _conv_norm(net, f"{name}_short", 4 * width, 1, stride=max(strides), reads=before)
    net.sum(f"{name}_add", body, short)
    net.relu(f"{name}_relu")


def _basic(net: NetworkBuilder, name: str, width: int, stride: int, *, project: bool = False) -> None:
    before = net.last
    _conv_norm(net, f"{name}_a", width, 3, stride=stride, padding=1)
    net.relu(f"{name}_a_relu")
    body = _conv_norm(net, f"{name}_b", width, 3, padding=1)
    short = before
    if stride > 1 and project:
        short = _conv_norm(net, f"{name}_short", width, 1, stride=stride, reads=before)
    elif stride > 1:
        short = net.add(PadShortcut(name=f"{name}_short", channels=width, stride=stride, inputs=(before,)))
    net.sum(f"{name}_add", body, short)
    net.relu(f"{name}_relu")


def _conv_norm(
    net: NetworkBuilder,
    name: str,
    channels: int,
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
    reads: str | None = None,
) -> str:
    net.conv(name, channels, kernel, stride=stride, padding=padding, bias=False, reads=reads)
    return net.batch_norm(f"{name}_bn")


def lenet(name: str) -> Network:
    """LeNet as the Caffe distribution trains it on 28 x 28 digits."""
    net = NetworkBuilder()
    net.conv("conv1", 20, 5)
    net.max_pool("pool1", 2, 2)
    net.conv("conv2", 50, 5)
    net.max_pool("pool2", 2, 2)
    net.flatten()
    net.linear("fc1", 500)
    net.relu("relu1")
    net.linear("fc2", 10)
    return net.images(name, 28, channels=1)


def alexnet(name: str, size: int = 224) -> Network:
    """The one-column form ("one weird trick"): 64, 192, 384, 256, 256 channels, no normalization."""
    net = NetworkBuilder()
    _conv_relu(net, 1, 64, 11, stride=4, padding=2)
    net.max_pool("pool1", 3, 2)
    _conv_relu(net, 2, 192, 5, padding=2)
    net.max_pool("pool2", 3, 2)
    for number, channels in ((3, 384), (4, 256), (5, 256)):
        _conv_relu(net, number, channels, 3, padding=1)
    net.max_pool("pool5", 3, 2)
    net.flatten()
    for number in (6, 7):
        net.dropout(f"drop{number}", 0.5)
        net.linear(f"fc{number}", 4096)
        net.relu(f"relu{number}")
    net.linear("fc8", 1000)
    return net.images(name, size)


def alexnet_bvlc(name: str) -> Network:
    """The form of the 2012 paper as Caffe ships it: grouped convolutions, response normalization, 227 x 227."""
    net = NetworkBuilder()
    _conv_relu(net, 1, 96, 11, stride=4)
    _norm_pool(net, 1)
    _conv_relu(net, 2, 256, 5, padding=2, groups=2)
    _norm_pool(net, 2)
    _conv_relu(net, 3, 384, 3, padding=1)
    _conv_relu(net, 4, 384, 3, padding=1, groups=2)
    _conv_relu(net, 5, 256, 3, padding=1, groups=2)
    net.max_pool("pool5", 3, 2)
    _classifier(net)
    return net.images(name, 227)


def vgg16(name: str) -> Network:
    """VGG-16, configuration D, without batch normalization."""
    net = NetworkBuilder()
    for block, (channels, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for number in range(1, depth + 1):
            net.conv(f"conv{block}_{number}", channels, 3, padding=1)
            net.relu(f"relu{block}_{number}")
        net.max_pool(f"pool{block}", 2, 2)
    _classifier(net)
    return net.images(name, 224)


def _classifier(net: NetworkBuilder) -> None:
    """The three matrices at the end of AlexNet and VGG."""
    net.flatten()
    for number in (6, 7):
        net.linear(f"fc{number}", 4096)
        net.relu(f"relu{number}")
        net.dropout(f"drop{number}", 0.5)
    net.linear("fc8", 1000)


def _conv_relu(
    net: NetworkBuilder, number: int, channels: int, kernel: int, *, stride: int = 1, padding: int = 0, groups: int = 1
) -> None:
    net.conv(f"conv{number}", channels, kernel, stride=stride, padding=padding, groups=groups)
    net.relu(f"relu{number}")


def _norm_pool(net: NetworkBuilder, number: int) -> None:
    net.add(LocalResponseNorm(name=f"norm{number}", size=5, alpha=1e-4, beta=0.75, k=1.0))
    net.max_pool(f"pool{number}", 3, 2)


def inception_v3(name: str) -> Network:
    """The form that torchvision ships, 299 x 299 (Szegedy et al., "Rethinking the Inception Architecture", 2015)."""
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
    conv = partial(_conv, net)
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


def _plain(net: NetworkBuilder) -> Conv:
    def conv(name: str, channels: int, kernel: int, **options: Any) -> str:
        net.conv(name, channels, kernel, **options)
        return net.relu(f"{name}_relu")

    return conv
