"""Seconds of every layer of a network on a device, at any batch.

Roofline of one forward pass of one layer, n samples (Williams, Waterman and Patterson, Roofline, 2009):

    forward(n)  = max(flop * n / (peak * reach), (activations * n + parameters) / (bandwidth * reach)) + launches
    backward(n) = 2 forward(n)

flop is two per multiply-add; activations are the bytes of input, output and twice what backward keeps; reach is the
catalog's share for the device and the kind of layer. A dense 3 x 3 convolution of stride 1 in float32 on a GPU takes
Winograd's algorithm where that is faster: 2.25 times fewer operations, and nine times the bytes, since tiles of 4 x 4
for every 2 x 2 of an image are written and read again (Lavin and Gray, Fast Algorithms for CNNs, 2015).
An emulated device takes what its emulation states, spread over layers by multiply-adds. Measured layers grow with the
batch beyond the start of their kernels. The optimiser's update only moves memory: weight, gradient and momentum are
read, weight and momentum are written.

A throughput as a share of the devices' peak rate (MFU) counts multiply-adds of the network only, not recomputation:

    MFU = rate * sum over layers of 6 multiply-adds / peak        three passes of two operations, all devices
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.catalog.devices import reach_of, share_with_gain
from paceline.cost.precision import WIDTHS, Numerics, numerics_on
from paceline.errors import Unsupported
from paceline.spec.cluster import Device, LayerClass
from paceline.spec.layers import Layer
from paceline.spec.network import LayerCost, Network, layer_costs

__all__ = [
    "DEFAULT_LAUNCH",
    "STARTS",
    "WINOGRAD_FLOP",
    "WINOGRAD_TRAFFIC",
    "LayerTimes",
    "LayerWork",
    "device_times",
    "ideal_seconds",
    "input_unit",
    "layer_class",
    "macs_of",
    "measured_times",
    "peak_share",
    "profiled_times",
    "update_seconds",
]

Floats = NDArray[np.float64]

MeasuredLayer = tuple[str, float, float, tuple[float, ...]]
"""Name, seconds of forward and of backward, bytes of each gradient in the order in which they become ready."""

LayerWork = tuple[str, str, float, float, tuple[float, ...]]
"""Name, class, multiply-adds and bytes moved of one sample, bytes of each gradient in the order of readiness."""

DEFAULT_LAUNCH = 8e-6
"""Default seconds to launch a kernel, if the catalog has no figure."""
STARTS = 4
"""Kernels, and calls of a framework of the same length, that a layer of a GPU starts one after the other (fitted)."""
WINOGRAD_FLOP, WINOGRAD_TRAFFIC = 2.25, 9.0
"""Operations saved, and bytes added, by Winograd's algorithm."""
UPDATE_TRAFFIC = 5
"""Reads of weight, gradient and momentum, writes of weight and momentum."""
CLASSES: dict[str, LayerClass] = {"conv2d": "convolution", "linear": "linear", "attention": "attention"}
"""Kinds of layer that multiply matrices; all others are elementwise."""
SQUARE = ((3, 3), (1, 1), 1)
"""Kernel, stride and groups of convolutions for Winograd's algorithm."""


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of the layers of one network on one device: max(compute n, memory n + fixed) + launch.

    Arrays have a row for forward and a row for backward, and a column for each layer in order of execution.
    """

    names: tuple[str, ...]
    gradients: tuple[tuple[float, ...], ...]
    """Bytes of each gradient of each layer, in the order in which they become ready."""
    compute: Floats
    memory: Floats
    fixed: Floats
    launch: Floats

    def at(self, batch: float) -> Floats:
        """Forward and backward seconds of every layer at this batch."""
        seconds: Floats = np.maximum(self.compute * batch, self.memory * batch + self.fixed) + self.launch
        return seconds

    def slowed(self, factor: float) -> LayerTimes:
        """The layer times on a device that is slower by this factor."""
        parts = (part * factor for part in (self.compute, self.memory, self.fixed, self.launch))
        return LayerTimes(self.names, self.gradients, *parts)


def measured_times(layers: Sequence[MeasuredLayer], *, batch: int, launch: float = DEFAULT_LAUNCH) -> LayerTimes:
    """Times of layers that were measured at one batch; the start of their kernels does not grow with it."""
    names, forward, backward, gradients = zip(*layers, strict=True)
    seconds = np.array([forward, backward], dtype=np.float64)
    start = np.minimum(np.array([[launch], [2 * launch]]), seconds)
    nothing = np.zeros_like(seconds)
    return LayerTimes(names, gradients, (seconds - start) / batch, nothing, nothing, start)


def device_times(
    network: Network, device: Device, *, precision: str = "float32", stated_for: int | None = None
) -> LayerTimes:
    """Times as an emulation states them, or by the roofline; `stated_for` is the batch of a statement without one."""
    costs, emulation = layer_costs(network), device.emulation
    numerics = numerics_on(device, precision)
    if emulation is None:
        return _roofline(network, device, numerics).slowed(1 / device.quota)
    if emulation.forward is None:
        return _roofline(network, device, numerics).slowed(1 / emulation.speed)
    batch = emulation.batch or stated_for
    backward = 2 * emulation.forward if emulation.backward is None else emulation.backward
    total = np.array([[emulation.forward], [backward]]) / emulation.speed
    seconds, nothing = total * _shares(costs), np.zeros((2, len(costs)))
    if batch is None:  # the stated time does not depend on the batch
        return LayerTimes(*_layers(costs, numerics.weight), nothing, nothing, nothing, seconds)
    return LayerTimes(*_layers(costs, numerics.weight), seconds / batch, nothing, nothing, nothing)


def profiled_times(
    layers: Sequence[LayerWork], device: Device, *, precision: str = "float32", steps: Sequence[int] = ()
) -> LayerTimes:
    """The roofline of layers whose work was counted while they were profiled in float32.

    `steps` of a layer wait for each other, so each of them starts a kernel that nothing hides.
    """
    names, kinds, macs, moved, gradients = zip(*layers, strict=True)
    numerics = numerics_on(device, precision)
    sizes = tuple(tuple(size * numerics.weight / 4 for size in tensors) for tensors in gradients)
    traffic = (np.array(moved) * numerics.activation / 4, np.array([sum(tensors) for tensors in sizes]))
    times = _rooflines((names, sizes), device, numerics, kinds, np.array(macs), traffic)
    more = np.array([[1.0], [2.0]]) * (np.array(steps or [1] * len(names)) - 1)
    return replace(times, launch=times.launch + more * _launch(device))


def _layers(costs: Sequence[LayerCost], width: int) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]:
    names = tuple(cost.name for cost in costs)
    return names, tuple(tuple(float(t.elements * width) for t in reversed(cost.tensors)) for cost in costs)


def _shares(costs: Sequence[LayerCost]) -> Floats:
    """How a stated total spreads over layers: by multiply-adds, by elements where nothing is multiplied."""
    macs = np.array([float(cost.macs) for cost in costs])
    work = macs if macs.any() else np.array([float(cost.output_elements) for cost in costs])
    shares: Floats = work / work.sum()
    return shares


def layer_class(layer: Layer) -> LayerClass:
    """The kind of layer that a layer's rate is known for."""
    if layer.kind == "conv2d" and (layer.kernel, layer.stride, layer.groups) == SQUARE:
        return "convolution_3x3"
    return CLASSES.get(layer.kind, "elementwise")


def _roofline(network: Network, device: Device, numerics: Numerics) -> LayerTimes:
    costs = layer_costs(network)
    moved = np.array([float(c.input_elements + c.output_elements + 2 * c.kept_elements) for c in costs])
    fixed = np.array([float(c.parameters) for c in costs])
    kinds = [layer_class(layer) for layer in network.layers]
    macs = np.array([float(cost.macs) for cost in costs])
    traffic = (moved * numerics.activation, fixed * numerics.weight)
    return _rooflines(_layers(costs, numerics.weight), device, numerics, kinds, macs, traffic)


def _rooflines(
    layers: tuple[tuple[str, ...], tuple[tuple[float, ...], ...]],
    device: Device,
    numerics: Numerics,
    kinds: Sequence[LayerClass],
    macs: Floats,
    traffic: tuple[Floats, Floats],
) -> LayerTimes:
    """`traffic` is the bytes of one sample's activations, and of the parameters."""
    bandwidth, peak = device.memory_bandwidth, device.peak
    unknown = [name for name in (numerics.convolution, numerics.matrix) if name not in peak]
    if unknown or bandwidth is None:
        missing = f"peak rate in {unknown[0]}" if unknown else "memory bandwidth"
        raise Unsupported(
            f"the compute time of {device.name!r} cannot be predicted: its {missing} is not known",
            hint="state it in the cluster file, give a profile of one step, or `emulation.forward` for an emulated one",
        )
    memory = bandwidth * reach_of(device)["elementwise"]
    rates = {kind: _rate(device, numerics, kind) for kind in set(kinds)}
    compute = np.array([2.0 * mac / rates[kind] for mac, kind in zip(macs, kinds, strict=True)])
    compute = _winograd(compute, device, numerics, kinds, macs, traffic[0] / memory)
    both = np.array([[1.0], [2.0]])
    start = both * np.full(len(kinds), _launch(device) * (STARTS if device.kind == "gpu" else 1))
    return LayerTimes(*layers, both * compute, both * traffic[0] / memory, both * traffic[1] / memory, start)


def _rate(device: Device, numerics: Numerics, kind: LayerClass) -> float:
    """Operations per second that a kind of layer reaches."""
    rate, unit = device.peak[numerics.of(kind)], numerics.unit(kind)
    plain: LayerClass = "convolution" if unit == "convolution_3x3" else unit
    return rate * share_with_gain(device, plain, rate / device.peak.get("float32", rate))


def _winograd(
    compute: Floats, device: Device, numerics: Numerics, kinds: Sequence[LayerClass], macs: Floats, traffic: Floats
) -> Floats:
    """Seconds of compute, where Winograd's algorithm applies and is faster those that it takes."""
    share = reach_of(device).get("convolution_3x3")
    if share is None or numerics.convolution != "float32":
        return compute
    fast = np.maximum(2.0 * macs / (WINOGRAD_FLOP * device.peak["float32"] * share), WINOGRAD_TRAFFIC * traffic)
    suited = np.array([kind == "convolution_3x3" for kind in kinds])
    return np.where(suited, np.minimum(compute, fast), compute)


def macs_of(network: Network) -> dict[LayerClass, float]:
    """Multiply-adds of the forward pass of one sample, by kind of layer."""
    found: defaultdict[LayerClass, float] = defaultdict(float)
    for layer, cost in zip(network.layers, layer_costs(network), strict=True):
        found[layer_class(layer)] += cost.macs
    return dict(found)


def ideal_seconds(
    macs: Mapping[LayerClass, float], device: Device, numerics: Numerics, *, fewest: bool = False
) -> float | None:
    """Seconds of one sample's forward and backward multiply-adds at peak rates; None where a rate is not known.

    `fewest` counts the operations that Winograd's algorithm needs where it applies, which are fewer.
    """
    rates = {kind: device.peak.get(numerics.of(kind)) for kind in macs}
    if not all(rates.values()):
        return None
    saved = {"convolution_3x3": WINOGRAD_FLOP} if fewest and numerics.convolution == "float32" else {}
    return sum(6.0 * count / saved.get(kind, 1.0) / (rates[kind] or 1.0) for kind, count in macs.items())


def _launch(device: Device) -> float:
    return DEFAULT_LAUNCH if device.launch_overhead is None else device.launch_overhead


def update_seconds(parameters: float, device: Device, *, precision: str = "float32") -> float:
    """Seconds of the optimiser's update, on float32 copies at least; nothing where the bandwidth is not known."""
    if device.memory_bandwidth is None:
        return 0.0
    traffic = UPDATE_TRAFFIC * parameters * max(4, WIDTHS.get(precision, 4))
    seconds = traffic / (device.memory_bandwidth * reach_of(device)["elementwise"]) + _launch(device)
    return seconds / device.quota if device.emulation is None else seconds


def input_unit(network: Network | None) -> tuple[str, int]:
    """Unit and number of units per sample: 1,024 tokens of a text, or one image."""
    if network is None:
        return "samples", 1
    return ("images", 1) if network.input.kind == "image" else ("tokens", network.input.shape[0])


def peak_share(
    macs: Mapping[LayerClass, float] | None,
    devices: Sequence[Device],
    rate: float,
    precision: str,
    *,
    fewest: bool = False,
) -> float | None:
    """Share of the devices' peak that this many samples per second need; None where work or a peak is not known.

    `macs` are multiply-adds of the forward pass of one sample, by kind of layer; `fewest` as in `ideal_seconds`.
    """
    if not macs or any(device.emulation is not None for device in devices):
        return None
    alike = Counter(map(id, devices))
    kinds = {id(device): device for device in devices}
    ideal = {
        key: ideal_seconds(macs, device, numerics_on(device, precision), fewest=fewest) for key, device in kinds.items()
    }
    if not ideal or not all(ideal.values()):
        return None
    return rate / sum(alike[key] / seconds for key, seconds in ideal.items() if seconds)
