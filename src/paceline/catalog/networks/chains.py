"""Networks without branches: LeNet, AlexNet in its two common forms, VGG-16."""

from __future__ import annotations

from paceline.catalog.networks.graph import Graph
from paceline.spec.layers import LocalResponseNorm
from paceline.spec.network import Network

__all__ = ["alexnet", "alexnet_bvlc", "lenet", "vgg16"]


def lenet(name: str) -> Network:
    """LeNet as the Caffe distribution trains it on 28 x 28 digits."""
    graph = Graph()
    graph.conv("conv1", 20, 5)
    graph.max_pool("pool1", 2, 2)
    graph.conv("conv2", 50, 5)
    graph.max_pool("pool2", 2, 2)
    graph.flatten()
    graph.linear("fc1", 500)
    graph.relu("relu1")
    graph.linear("fc2", 10)
    return graph.images(name, 28, channels=1)


def alexnet(name: str, size: int = 224) -> Network:
    """The one-column form ("one weird trick"): 64, 192, 384, 256, 256 channels, no normalisation."""
    graph = Graph()
    _conv_relu(graph, 1, 64, 11, stride=4, padding=2)
    graph.max_pool("pool1", 3, 2)
    _conv_relu(graph, 2, 192, 5, padding=2)
    graph.max_pool("pool2", 3, 2)
    for number, channels in ((3, 384), (4, 256), (5, 256)):
        _conv_relu(graph, number, channels, 3, padding=1)
    graph.max_pool("pool5", 3, 2)
    graph.flatten()
    for number in (6, 7):
        graph.dropout(f"drop{number}", 0.5)
        graph.linear(f"fc{number}", 4096)
        graph.relu(f"relu{number}")
    graph.linear("fc8", 1000)
    return graph.images(name, size)


def alexnet_bvlc(name: str) -> Network:
    """The form of the 2012 paper as Caffe ships it: grouped convolutions, response normalisation, 227 x 227."""
    graph = Graph()
    _conv_relu(graph, 1, 96, 11, stride=4)
    _norm_pool(graph, 1)
    _conv_relu(graph, 2, 256, 5, padding=2, groups=2)
    _norm_pool(graph, 2)
    _conv_relu(graph, 3, 384, 3, padding=1)
    _conv_relu(graph, 4, 384, 3, padding=1, groups=2)
    _conv_relu(graph, 5, 256, 3, padding=1, groups=2)
    graph.max_pool("pool5", 3, 2)
    graph.flatten()
    for number in (6, 7):
        graph.linear(f"fc{number}", 4096)
        graph.relu(f"relu{number}")
        graph.dropout(f"drop{number}", 0.5)
    graph.linear("fc8", 1000)
    return graph.images(name, 227)


def vgg16(name: str) -> Network:
    """VGG-16, configuration D, without batch normalisation."""
    graph = Graph()
    for block, (channels, depth) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1):
        for number in range(1, depth + 1):
            graph.conv(f"conv{block}_{number}", channels, 3, padding=1)
            graph.relu(f"relu{block}_{number}")
        graph.max_pool(f"pool{block}", 2, 2)
    graph.flatten()
    for number in (6, 7):
        graph.linear(f"fc{number}", 4096)
        graph.relu(f"relu{number}")
        graph.dropout(f"drop{number}", 0.5)
    graph.linear("fc8", 1000)
    return graph.images(name, 224)


def _conv_relu(
    graph: Graph, number: int, channels: int, kernel: int, *, stride: int = 1, padding: int = 0, groups: int = 1
) -> None:
    graph.conv(f"conv{number}", channels, kernel, stride=stride, padding=padding, groups=groups)
    graph.relu(f"relu{number}")


def _norm_pool(graph: Graph, number: int) -> None:
    graph.add(LocalResponseNorm(name=f"norm{number}", size=5, alpha=1e-4, beta=0.75, k=1.0))
    graph.max_pool(f"pool{number}", 3, 2)
