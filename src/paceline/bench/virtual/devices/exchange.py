"""What one step of a case asks of the machine that plays it: bytes to exchange, and the compute that hides them."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.bench.virtual.devices.dilation import Exchange
from paceline.bench.virtual.devices.timing import device_times
from paceline.spec.cluster import Placed, place
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
    )


def least_tail(case: Case) -> float | None:
    """Seconds that the exchange must go on after the last compute of a step; none where that is not known.

    The gradients of the first layer that has any are ready last, and no all-reduce sends less than 2 (H-1)/H of them
    over the link of each of H hosts.
    """
    strategy = case.strategy
    if case.framework != "pytorch/ddp" or strategy.compression != "none" or strategy.precision != "float32":
        return None
    placed = place(case.cluster, case.ranks, spread=case.placement == "spread")
    hosts = [case.cluster.hosts[number] for number in {item.host for item in placed}]
    size = next(
        (sum(t.elements for t in cost.tensors) * _ELEMENT for cost in layer_costs(case.network) if cost.tensors), 0
    )
    rate = min(host.link.bandwidth * host.nics for host in hosts)
    return max(0.0, 2 * (len(hosts) - 1) / len(hosts) * size / rate - _compute_before_gradients(case, placed))


def _compute_before_gradients(case: Case, placed: Sequence[Placed]) -> float:
    """Backward compute of the layers before the first with gradients, on the slowest device."""
    count = next((n for n, cost in enumerate(layer_costs(case.network)) if cost.tensors), 0)
    return max(
        sum(
            time.backward
            for time in device_times(item.device, case.network, batch=case.batch, precision="float32")[:count]
        )
        for item in placed
    )


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
