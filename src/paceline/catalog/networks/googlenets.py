"""GoogLeNet in its two common forms, without the auxiliary heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.catalog.networks.builder import NetworkBuilder
from paceline.spec.layers import LocalResponseNorm
from paceline.spec.network import Network

__all__ = ["googlenet", "googlenet_bvlc"]

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
