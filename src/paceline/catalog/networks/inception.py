"""Inception-v3 without the auxiliary head (Szegedy et al., "Rethinking the Inception Architecture", 2015)."""

from __future__ import annotations

from paceline.catalog.networks.graph import Graph, Side
from paceline.spec.network import Network

__all__ = ["inception_v3"]


def inception_v3(name: str) -> Network:
    """The form that torchvision ships, 299 x 299."""
    graph = Graph()
    _stem(graph)
    for number, pooled in ((1, 32), (2, 64), (3, 64)):
        _block_a(graph, f"mixed5_{number}", pooled)
    _reduce_a(graph, "mixed6_0")
    for number, width in ((1, 128), (2, 160), (3, 160), (4, 192)):
        _block_b(graph, f"mixed6_{number}", width)
    _reduce_b(graph, "mixed7_0")
    for number in (1, 2):
        _block_c(graph, f"mixed7_{number}")
    graph.global_avg_pool()
    graph.dropout("drop", 0.5)
    graph.linear("fc", 1000)
    return graph.images(name, 299)


def _stem(graph: Graph) -> None:
    _conv(graph, "conv1a", 32, 3, stride=2)
    _conv(graph, "conv2a", 32, 3)
    _conv(graph, "conv2b", 64, 3, padding=1)
    graph.max_pool("pool1", 3, 2)
    _conv(graph, "conv3b", 80, 1)
    _conv(graph, "conv4a", 192, 3)
    graph.max_pool("pool2", 3, 2)


def _block_a(graph: Graph, name: str, pooled: int) -> None:
    before = graph.last
    one = _conv(graph, f"{name}_1x1", 64, 1, reads=before)
    five = _branch(graph, f"{name}_5x5", before, ((48, 1), (64, 5)))
    three = _branch(graph, f"{name}_3x3", before, ((64, 1), (96, 3), (96, 3)))
    graph.concat(f"{name}_output", one, five, three, _pooled(graph, name, before, pooled))


def _reduce_a(graph: Graph, name: str) -> None:
    before = graph.last
    three = _conv(graph, f"{name}_3x3", 384, 3, stride=2, reads=before)
    _branch(graph, f"{name}_double", before, ((64, 1), (96, 3)))
    double = _conv(graph, f"{name}_double_3", 96, 3, stride=2)
    pool = graph.max_pool(f"{name}_pool", 3, 2, reads=before)
    graph.concat(f"{name}_output", three, double, pool)


def _block_b(graph: Graph, name: str, width: int) -> None:
    before = graph.last
    one = _conv(graph, f"{name}_1x1", 192, 1, reads=before)
    seven = _branch(graph, f"{name}_7x7", before, ((width, 1), (width, (1, 7)), (192, (7, 1))))
    steps = ((width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7)))
    double = _branch(graph, f"{name}_double", before, steps)
    graph.concat(f"{name}_output", one, seven, double, _pooled(graph, name, before, 192))


def _reduce_b(graph: Graph, name: str) -> None:
    before = graph.last
    _conv(graph, f"{name}_3x3_1", 192, 1, reads=before)
    three = _conv(graph, f"{name}_3x3_2", 320, 3, stride=2)
    _branch(graph, f"{name}_7x7", before, ((192, 1), (192, (1, 7)), (192, (7, 1))))
    seven = _conv(graph, f"{name}_7x7_4", 192, 3, stride=2)
    pool = graph.max_pool(f"{name}_pool", 3, 2, reads=before)
    graph.concat(f"{name}_output", three, seven, pool)


def _block_c(graph: Graph, name: str) -> None:
    before = graph.last
    one = _conv(graph, f"{name}_1x1", 320, 1, reads=before)
    three = _branch(graph, f"{name}_3x3", before, ((384, 1),))
    three_sides = _sides(graph, f"{name}_3x3", three)
    double = _branch(graph, f"{name}_double", before, ((448, 1), (384, 3)))
    double_sides = _sides(graph, f"{name}_double", double)
    graph.concat(f"{name}_output", one, *three_sides, *double_sides, _pooled(graph, name, before, 192))


def _sides(graph: Graph, name: str, before: str) -> tuple[str, str]:
    """A 1 x 3 and a 3 x 1 convolution side by side on the same input."""
    flat = _conv(graph, f"{name}_1x3", 384, (1, 3), padding=(0, 1), reads=before)
    tall = _conv(graph, f"{name}_3x1", 384, (3, 1), padding=(1, 0), reads=before)
    return flat, tall


def _branch(graph: Graph, name: str, before: str, steps: tuple[tuple[int, Side], ...]) -> str:
    """Convolutions one after the other that keep the image's size; returns the last one's name."""
    last = before
    for number, (channels, kernel) in enumerate(steps, start=1):
        last = _conv(graph, f"{name}_{number}", channels, kernel, padding=_same(kernel), reads=last)
    return last


def _pooled(graph: Graph, name: str, before: str, channels: int) -> str:
    graph.avg_pool(f"{name}_pool", 3, 1, padding=1, reads=before)
    return _conv(graph, f"{name}_pool_proj", channels, 1)


def _same(kernel: Side) -> Side:
    return kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)


def _conv(
    graph: Graph,
    name: str,
    channels: int,
    kernel: Side,
    *,
    stride: int = 1,
    padding: Side = 0,
    reads: str | None = None,
) -> str:
    graph.conv(name, channels, kernel, stride=stride, padding=padding, bias=False, reads=reads)
    graph.batch_norm(f"{name}_bn", eps=0.001)
    return graph.relu(f"{name}_relu")
