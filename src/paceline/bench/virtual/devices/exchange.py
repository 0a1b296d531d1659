"""What one step of a case asks of the machine that plays it: bytes to exchange, and the compute that hides them."""

from __future__ import annotations

from paceline.bench.virtual.devices.dilation import Exchange
from paceline.bench.virtual.devices.timing import device_times
from paceline.spec.cluster import Device, Host, place
from paceline.spec.network import layer_costs
from paceline.spec.study import Case

__all__ = ["exchange_of", "least_tail"]

USUAL_BUCKET = 25 * 2**20
_ELEMENT = 4


def exchange_of(case: Case) -> Exchange | None:
    """The case's exchange in emulated time; none for real devices, whose time cannot be dilated."""
    placed = place(case.cluster, case.ranks, spread=case.placement == "spread")
    if any(item.device.emulation is None for item in placed):
        return None
    totals = []
    for item in placed:
        times = device_times(item.device, case.network, batch=case.batch, precision=case.strategy.precision)
        totals.append((sum(time.forward for time in times), sum(time.backward for time in times)))
    forward, backward = min(totals)
    hosts = [case.cluster.hosts[item.host] for item in placed]
    return Exchange(
        ranks=case.ranks,
        rates=tuple(host.link.bandwidth * host.nics for host in hosts),
        buckets=tuple(_buckets(case)),
        backward_s=backward,
        step_s=forward + backward,
        latency=min(host.link.latency for host in hosts),
    )


def least_tail(case: Case, device: Device) -> float | None:
    """Seconds that the exchange must go on after the device's last compute of a step; none where that is not known.

    A layer's gradients cannot leave before its backward pass is over, and no all-reduce sends less than 2 (H-1)/H of
    them over the link of each of H hosts: what is ready late must still pass, and the very last goes around the ring.
    An unsteady device's passes take longer at times; then only the very last are sure to be outstanding.
    """
    strategy, emulation = case.strategy, device.emulation
    if case.framework != "pytorch/ddp" or strategy.compression != "none" or strategy.precision != "float32":
        return None
    unsteady = emulation is not None and bool(emulation.jitter or emulation.straggle)
    times = device_times(device, case.network, batch=case.batch, precision=strategy.precision)
    hosts = _hosts(case)
    least = outstanding = before_end = 0.0
    around = 2 * (len(hosts) - 1) * min(host.link.latency for host in hosts)
    for cost, time in zip(layer_costs(case.network), times, strict=True):
        if cost.tensors and not (unsteady and outstanding):
            outstanding += sum(tensor.elements for tensor in cost.tensors) * _ELEMENT * _seconds_per_byte(hosts)
            least = max(least, outstanding - before_end + around)
            around = 0.0
        before_end += time.backward
    return least


def _hosts(case: Case) -> list[Host]:
    placed = place(case.cluster, case.ranks, spread=case.placement == "spread")
    return [case.cluster.hosts[number] for number in sorted({item.host for item in placed})]


def _seconds_per_byte(hosts: list[Host]) -> float:
    """What the slowest link needs for each byte of gradients, at the least."""
    return 2 * (len(hosts) - 1) / len(hosts) / min(host.link.bandwidth * host.nics for host in hosts)


def _buckets(case: Case) -> list[float]:
    """Bytes of each exchange, in the order in which gradients become ready."""
    limit = USUAL_BUCKET if case.strategy.bucket is None else case.strategy.bucket
    buckets = [0.0]
    for cost in reversed(layer_costs(case.network)):
        for tensor in reversed(cost.tensors):
            size = float(tensor.elements * _ELEMENT)
            if buckets[-1] and buckets[-1] + size > limit:
                buckets.append(0.0)
            buckets[-1] += size
    return buckets
