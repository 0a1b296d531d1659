"""Emulation of a case: the layer times for the workers, and the load of a step on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.bench.virtual.dilation import ExchangeLoad
from paceline.catalog import resolve
from paceline.cost.buckets import bucket_bytes, policy_buckets
from paceline.cost.collective import allreduce, bus_factor, fabric_of
from paceline.cost.memory import memory_limit, memory_of
from paceline.cost.precision import numerics_on
from paceline.cost.roofline import LayerTimes, device_times, measured_times, update_seconds
from paceline.errors import Unsupported
from paceline.measurements.profile import read_profile
from paceline.spec.cluster import Device, Emulation, Host, Placed, place
from paceline.spec.network import Network, layer_costs
from paceline.spec.study import Case

__all__ = ["emulated_seconds", "emulation_document", "exchange_load", "least_tail"]

Floats = NDArray[np.float64]

_ELEMENT = 4


def emulated_seconds(device: Device, network: Network, *, batch: int, precision: str = "float32") -> Floats:
    """Forward and backward seconds of every layer on the device, in order of execution."""
    emulation = device.emulation or Emulation()
    if emulation.profile is None:
        return device_times(network, device, precision=precision).at(batch)
    return _profiled(Path(emulation.profile), network, speed=emulation.speed).at(batch)


def _profiled(path: Path, network: Network, *, speed: float) -> LayerTimes:
    """Times of a profile; a layer that it does not name takes none, but it must name every layer with gradients."""
    profile = read_profile(path)
    times, costs = measured_times(profile.rows, batch=profile.batch).slowed(1 / speed), layer_costs(network)
    known = {name: index for index, name in enumerate(times.names)}
    missing = next((cost.name for cost in costs if cost.tensors and cost.name not in known), None)
    if missing is not None:
        raise Unsupported(
            f"the profile of {profile.network!r} has no layer {missing!r}",
            hint="take the profile of the network that the study names",
        )
    order = [known.get(cost.name, -1) for cost in costs]
    there = np.array([index >= 0 for index in order])
    parts = [getattr(times, part)[:, order] * there for part in ("compute", "memory", "fixed", "launch")]
    return LayerTimes(tuple(c.name for c in costs), tuple(times.gradients[index] for index in order), *parts)


def emulation_document(devices: Sequence[Device], case: Case) -> list[dict[str, Any]]:
    """The emulation parameters of each rank's worker as JSON data; all devices must be emulated."""
    real = next((device for device in devices if device.emulation is None), None)
    if real is not None:
        raise Unsupported(
            f"device {real.name!r} is real and others of this case are emulated",
            hint="give every device of the cluster an `emulation`, or none",
        )
    return [_document(device, case) for device in devices]


def _document(device: Device, case: Case) -> dict[str, Any]:
    emulation, policy = device.emulation or Emulation(), resolve(case.framework, case.strategy)
    precision, shards = policy.precision, (policy.shard_stage or 0, case.ranks)
    use = memory_of(case.network, case.batch, numerics=numerics_on(device, precision), shards=shards)
    return {
        "layers": emulated_seconds(device, case.network, batch=case.batch, precision=precision).T.tolist(),
        "update": update_seconds(case.network.parameters, device, precision=precision),
        "needed_bytes": round(use.total),
        "memory_bytes": memory_limit(device),
        "jitter": emulation.jitter,
        "straggle": emulation.straggle,
        "straggle_factor": emulation.straggle_factor,
    }


def exchange_load(case: Case) -> ExchangeLoad | None:
    """The case's exchange in emulated time; none for real devices, whose time cannot be dilated."""
    placed = _placed(case)
    if any(item.device.emulation is None for item in placed):
        return None
    precision = resolve(case.framework, case.strategy).precision
    times = [emulated_seconds(item.device, case.network, batch=case.batch, precision=precision) for item in placed]
    fastest = min(times, key=lambda seconds: float(seconds.sum()))
    hosts = [case.cluster.hosts[item.host] for item in placed]
    return ExchangeLoad(
        ranks=case.ranks,
        rates=tuple(host.link.bandwidth * host.nics for host in hosts),
        buckets=tuple(_buckets(case, placed, fastest[1])),
        backward_s=float(fastest[1].sum()),
        step_s=float(fastest.sum()),
        latency=min(host.link.latency for host in hosts),
    )


def _buckets(case: Case, placed: Sequence[Placed], backward: Floats) -> list[float]:
    """Bytes of each exchange, in the order in which gradients become ready."""
    rows = zip(reversed(layer_costs(case.network)), np.cumsum(backward[::-1]).tolist(), strict=True)
    known = [(float(t.elements * _ELEMENT), at) for cost, at in rows for t in reversed(cost.tensors)]
    sizes, ready = [size for size, _ in known], [at for _, at in known]
    fabric, policy = fabric_of(case.cluster, placed), resolve(case.framework, case.strategy)
    return bucket_bytes(
        sizes, policy_buckets(policy, sizes, ready, lambda many: allreduce(fabric, np.array(many), policy.algorithm))
    )


def least_tail(case: Case, device: Device) -> float | None:
    """Minimum seconds of exchange after the last compute of a step; None if unknown.

    The gradients of a layer cannot be sent before its backward pass ends, and no all-reduce sends less than 2 (H-1)/H
    of them over the link of each of H hosts: gradients that are ready late must still be sent, and the last goes around
    the ring. With jitter a pass may take longer; then only the last gradients are certain to be outstanding.
    """
    strategy, emulation = case.strategy, device.emulation
    if case.framework != "pytorch/ddp" or strategy.compression != "none":
        return None
    precision = resolve(case.framework, strategy).precision
    if numerics_on(device, precision).weight != _ELEMENT:
        return None
    unsteady = emulation is not None and bool(emulation.jitter or emulation.straggle)
    backward = emulated_seconds(device, case.network, batch=case.batch, precision=precision)[1].tolist()
    hosts = [case.cluster.hosts[number] for number in sorted({item.host for item in _placed(case)})]
    least = outstanding = before_end = 0.0
    around = 2 * (len(hosts) - 1) * min(host.link.latency for host in hosts)
    for cost, seconds in zip(layer_costs(case.network), backward, strict=True):
        if cost.tensors and not (unsteady and outstanding):
            outstanding += cost.parameters * _ELEMENT * _seconds_per_byte(hosts)
            least = max(least, outstanding - before_end + around)
            around = 0.0
        before_end += seconds
    return least


def _placed(case: Case) -> tuple[Placed, ...]:
    return place(case.cluster, case.ranks, spread=case.placement == "spread")


def _seconds_per_byte(hosts: list[Host]) -> float:
    """Minimum seconds per byte of gradients on the slowest link."""
    return bus_factor("all_reduce", len(hosts)) / min(host.link.bandwidth * host.nics for host in hosts)
