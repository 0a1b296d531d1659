"""How long each layer takes on an emulated device: as stated, as profiled, or from its peak and memory bandwidth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import Unsupported
from paceline.measurements.profile import Profile, read_profile
from paceline.spec.cluster import Device, Emulation, Precision
from paceline.spec.network import LayerCost, Network, layer_costs
from paceline.spec.study import Case

__all__ = ["ATTAINABLE", "LayerTime", "device_times", "emulation_document", "needed_memory", "update_time"]

ATTAINABLE = 0.5
"""Share of a device's peak that its kernels are taken to reach when nothing measured says otherwise."""
_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "tf32": 4, "float16": 2, "bfloat16": 2, "float8": 1}
_STATE_COPIES = 3
"""Weights, gradients and momentum."""
_UPDATE_TRAFFIC = 5
"""Reads of weight, gradient, momentum, and writes of weight and momentum."""


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer for one step of one device."""

    name: str
    forward: float
    backward: float


def device_times(device: Device, network: Network, *, batch: int, precision: Precision) -> tuple[LayerTime, ...]:
    """Seconds of every layer on the device, in order of execution."""
    emulation = device.emulation or Emulation()
    costs = layer_costs(network)
    if emulation.profile is not None:
        return _profiled(read_profile(Path(emulation.profile)), costs, batch=batch, speed=emulation.speed)
    if emulation.forward is None:
        shares = [_roofline(device, cost, batch=batch, precision=precision) for cost in costs]
        forward = sum(shares)
    else:
        shares, forward = _work(costs), emulation.forward
    backward = 2 * forward if emulation.backward is None else emulation.backward
    total = sum(shares) or 1.0
    scale = 1 / total / emulation.speed
    return tuple(
        LayerTime(cost.name, forward * share * scale, backward * share * scale)
        for cost, share in zip(costs, shares, strict=True)
    )


def _profiled(profile: Profile, costs: tuple[LayerCost, ...], *, batch: int, speed: float) -> tuple[LayerTime, ...]:
    """Times of a profile; a layer that it does not name takes none, but it must name every layer with gradients."""
    known = {layer.name: layer for layer in profile.layers}
    missing = next((cost.name for cost in costs if cost.tensors and cost.name not in known), None)
    if missing is not None:
        raise Unsupported(
            f"the profile of {profile.network!r} has no layer {missing!r}",
            hint="take the profile of the network that the study names",
        )
    scale = batch / profile.batch / speed
    return tuple(
        LayerTime(cost.name, known[cost.name].forward * scale, known[cost.name].backward * scale)
        if cost.name in known
        else LayerTime(cost.name, 0.0, 0.0)
        for cost in costs
    )


def emulation_document(devices: Sequence[Device], case: Case) -> list[dict[str, Any]]:
    """What each rank's worker needs to pretend, as JSON data in order of ranks; all devices must be emulated."""
    real = next((device for device in devices if device.emulation is None), None)
    if real is not None:
        raise Unsupported(
            f"device {real.name!r} is real and others of this case are emulated",
            hint="give every device of the cluster an `emulation`, or none",
        )
    return [_document(device, case) for device in devices]


def _document(device: Device, case: Case) -> dict[str, Any]:
    emulation, precision = device.emulation or Emulation(), case.strategy.precision
    times = device_times(device, case.network, batch=case.batch, precision=precision)
    return {
        "layers": [[time.forward, time.backward] for time in times],
        "update": update_time(device, case.network, precision=precision),
        "needed_bytes": needed_memory(case.network, batch=case.batch, precision=precision),
        "memory_bytes": device.memory,
        "jitter": emulation.jitter,
        "straggle": emulation.straggle,
        "straggle_factor": emulation.straggle_factor,
    }


def _work(costs: tuple[LayerCost, ...]) -> list[float]:
    """How a stated total spreads over the layers: by multiply-adds, by elements where nothing is multiplied."""
    work = [float(cost.macs) for cost in costs]
    return work if any(work) else [float(cost.output_elements) for cost in costs]


def _roofline(device: Device, cost: LayerCost, *, batch: int, precision: Precision) -> float:
    peak = device.peak.get(precision)
    if peak is None:
        raise Unsupported(
            f"device {device.name!r} cannot be emulated in {precision}: no peak rate is known for it",
            hint="state `emulation.forward` (seconds of a forward pass), or a peak for this precision",
        )
    moved = (cost.input_elements + cost.output_elements) * batch + cost.parameters
    memory = moved * _BYTES[precision] / device.memory_bandwidth if device.memory_bandwidth else 0.0
    compute = 2 * cost.macs * batch / (peak * ATTAINABLE)
    return max(compute, memory) + (device.launch_overhead or 0.0)


def update_time(device: Device, network: Network, *, precision: Precision) -> float:
    """Seconds of the optimiser's update, which only moves memory; nothing where the bandwidth is not known."""
    if device.memory_bandwidth is None:
        return 0.0
    return _UPDATE_TRAFFIC * network.parameters * _BYTES[precision] / device.memory_bandwidth


def needed_memory(network: Network, *, batch: int, precision: Precision) -> int:
    """Bytes that training takes on a device: weights, gradients, momentum, activations."""
    size = _BYTES[precision]
    activations = sum(cost.activation_bytes(batch, size) for cost in layer_costs(network))
    return _STATE_COPIES * network.parameters * size + activations
