"""Convolutional networks: ResNet-18 to ResNet-152 v1 and v1.5, 20 and 44 for CIFAR; LeNet, AlexNet, VGG-16."""

from __future__ import annotations

from paceline.catalog.networks.builder import NetworkBuilder
from paceline.spec.layers import LocalResponseNorm, PadShortcut
from paceline.spec.network import Network

__all__ = ["alexnet", "alexnet_bvlc", "lenet", "resnet", "resnet_cifar", "vgg16"]


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
