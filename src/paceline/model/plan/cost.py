"""What a device takes for n samples of a network, and how many it can hold: the inputs of a plan.

    seconds(n) = a + b * n         the line through the roofline (model.compute) of a small and a large batch

A device whose memory bandwidth is not known is taken to be limited by its compute rate alone: a is the start of every
layer's kernels, b = 3 * 2 * macs / reached rate, backward counted as two forwards. An emulated device takes what its
emulation says. A device without a compute rate cannot be planned for.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.cost.roofline import DEFAULT_LAUNCH
from paceline.cost.split import Cost
from paceline.errors import Unsupported
from paceline.model.compute import roofline
from paceline.spec.cluster import Device
from paceline.spec.network import Network, layer_costs

__all__ = ["Workload", "device_cost", "workload"]

COMPUTE_REACH = 0.7
USABLE = 0.9
"""Share of the memory that tensors may take; the rest is the framework's."""
COPIES = 4
"""Parameters, gradients, and two of the optimiser."""


@dataclass(frozen=True)
class Workload:
    """A network as a plan needs it."""

    name: str
    macs: float
    layers: int
    gradient_bytes: float
    activation_bytes: float
    """Per sample."""
    network: Network | None = None
    """Its layers, where they are known."""


def workload(network: Network) -> Workload:
    """The totals of a network, in float32."""
    costs = layer_costs(network)
    return Workload(
        name=network.name,
        macs=float(sum(cost.macs for cost in costs)),
        layers=len(costs),
        gradient_bytes=float(sum(cost.gradient_bytes() for cost in costs)),
        activation_bytes=float(sum(cost.activation_bytes(1) for cost in costs)),
        network=network,
    )


def device_cost(device: Device, work: Workload, *, batch: int) -> Cost:
    """The cost of a step on a device; `batch` is what an emulation's times are stated for."""
    chunk = _chunk(device, work)
    emulation = device.emulation
    if emulation is not None and emulation.forward is not None:
        backward = 2 * emulation.forward if emulation.backward is None else emulation.backward
        seconds = (emulation.forward + backward) / emulation.speed
        return Cost(0.0, seconds / batch / device.quota, chunk)
    if not device.peak:
        raise Unsupported(
            f"device {device.name!r} has no compute rate, so nothing can be planned for it",
            hint="give it `peak = { float32 = ... }` in the cluster file, or an emulation with forward times",
        )
    slower = 1 / (device.quota * (emulation.speed if emulation else 1.0))
    a, b = _line(device, work, min(batch, chunk or batch))
    return Cost(a * slower, b * slower, chunk)


def _line(device: Device, work: Workload, batch: int) -> tuple[float, float]:
    """Constant and slope of the seconds of a step."""
    precision = "float32" if "float32" in device.peak else max(device.peak, key=lambda name: device.peak[name])
    if work.network is None or device.memory_bandwidth is None:
        launch = device.launch_overhead if device.launch_overhead is not None else DEFAULT_LAUNCH
        return 3 * work.layers * launch, 3 * 2 * work.macs / (device.peak[precision] * COMPUTE_REACH)
    few, many = max(1, batch // 4), max(2, batch)
    small, large = (roofline(work.network, device, n, precision=precision).compute for n in (few, many))
    b = (large - small) / (many - few)
    return max(0.0, small - b * few), b


def _chunk(device: Device, work: Workload) -> int | None:
    if device.memory is None:
        return None
    free = device.memory * USABLE - COPIES * work.gradient_bytes
    chunk = int(free // work.activation_bytes) if work.activation_bytes else None
    if chunk is not None and chunk < 1:
        raise Unsupported(
            f"{work.name} does not fit into the memory of {device.name!r}, not even one sample",
            hint="leave the device out, or choose a smaller network",
        )
    return chunk
