"""What one step of a case asks of the machine that plays it: bytes to exchange, and the compute that hides them."""

from __future__ import annotations

from paceline.bench.virtual.devices.dilation import Exchange
from paceline.bench.virtual.devices.timing import device_times
from paceline.spec.cluster import place
from paceline.spec.network import layer_costs
from paceline.spec.study import Case

__all__ = ["exchange_of"]

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
