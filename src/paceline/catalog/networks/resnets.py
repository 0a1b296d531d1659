"""Residual networks: ResNet-50 (v1 and v1.5) for ImageNet, ResNet-20 and ResNet-44 for CIFAR."""

from __future__ import annotations

from paceline.catalog.networks.builder import NetworkBuilder
from paceline.spec.layers import PadShortcut
from paceline.spec.network import Network

__all__ = ["resnet50", "resnet_cifar"]


def resnet50(name: str, *, size: int = 224, first_strides: bool = False) -> Network:
    """ResNet-50; a stage halves the image in the 3 x 3 (v1.5) or, with `first_strides`, the first 1 x 1 (v1)."""
    net = NetworkBuilder()
    _conv_norm(net, "conv1", 64, 7, stride=2, padding=3)
    net.relu("conv1_relu")
    net.max_pool("pool1", 3, 2, padding=1)
    for stage, (width, depth) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=2):
        for block in range(depth):
            stride = 2 if stage > 2 and block == 0 else 1
            strides = (stride, 1) if first_strides else (1, stride)
            _bottleneck(net, f"res{stage}_{block + 1}", width, strides, widen=block == 0)
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


def _basic(net: NetworkBuilder, name: str, width: int, stride: int) -> None:
    before = net.last
    _conv_norm(net, f"{name}_a", width, 3, stride=stride, padding=1)
    net.relu(f"{name}_a_relu")
    body = _conv_norm(net, f"{name}_b", width, 3, padding=1)
    short = before
    if stride > 1:
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
