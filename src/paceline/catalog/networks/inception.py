"""Inception-v3 without the auxiliary head (Szegedy et al., "Rethinking the Inception Architecture", 2015)."""

from __future__ import annotations

from paceline.catalog.networks.builder import NetworkBuilder, Side
from paceline.spec.network import Network

__all__ = ["inception_v3"]


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
