"""Networks without branches: LeNet, AlexNet in its two common forms, VGG-16."""

from __future__ import annotations

from paceline.catalog.networks.builder import NetworkBuilder
from paceline.spec.layers import LocalResponseNorm
from paceline.spec.network import Network

__all__ = ["alexnet", "alexnet_bvlc", "lenet", "vgg16"]


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
    net.flatten()
    for number in (6, 7):
        net.linear(f"fc{number}", 4096)
        net.relu(f"relu{number}")
        net.dropout(f"drop{number}", 0.5)
    net.linear("fc8", 1000)
    return net.images(name, 227)


def vgg16(name: str) -> Network:
    """VGG-16, configuration D, without batch normalization."""
    net = NetworkBuilder()
    for block, (channels, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for number in range(1, depth + 1):
            net.conv(f"conv{block}_{number}", channels, 3, padding=1)
            net.relu(f"relu{block}_{number}")
        net.max_pool(f"pool{block}", 2, 2)
    net.flatten()
    for number in (6, 7):
        net.linear(f"fc{number}", 4096)
        net.relu(f"relu{number}")
        net.dropout(f"drop{number}", 0.5)
    net.linear("fc8", 1000)
    return net.images(name, 224)


def _conv_relu(
    net: NetworkBuilder, number: int, channels: int, kernel: int, *, stride: int = 1, padding: int = 0, groups: int = 1
) -> None:
    net.conv(f"conv{number}", channels, kernel, stride=stride, padding=padding, groups=groups)
    net.relu(f"relu{number}")


def _norm_pool(net: NetworkBuilder, number: int) -> None:
    net.add(LocalResponseNorm(name=f"norm{number}", size=5, alpha=1e-4, beta=0.75, k=1.0))
    net.max_pool(f"pool{number}", 3, 2)
