"""Cost of all-reduce under NCCL: for each message the algorithm and protocol that its tuner expects to complete first.

Candidates are a ring and a double binary tree, each under three protocols (LL, LL128, Simple), and NVLS on hosts whose
switch reduces (NVSwitch of NVLink 4 and 5). P ranks on H hosts of m, base and hop latencies per protocol:

ring   base + 2(P-H) inside + 2(H-1) network (1.4 times that between hosts under Simple),  2(P-1)/P N b / share
tree   base + 2(m-1) inside + 2 log2(H) network,                                           2 N b / share
NVLS   25 us on one host,                                                                  N b / share

NVIDIA/nccl 2.30 at 5067397, src/graph/tuning.cc: latencies in microseconds and shares of the bus bandwidth. It caps
LL, and trees of old devices, by bandwidths per channel, which are left out, as are trees of NVLS between hosts and
switches of the network that add numbers up (SHARP): no record of the catalog says where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from paceline.cost.collective import Fabric
    from paceline.spec.cluster import Cluster, Placed

__all__ = ["NcclChoice", "bus_between", "nccl_allreduce", "nccl_gather", "simple_hops"]

Floats = NDArray[np.float64]
US = 1e-6

BASE = {"ring": (6.6, 14.0, 8.4), "double_tree": (6.8, 14.0, 8.4)}
HOPS = {
    ("ring", "nvlink"): (0.6, 1.9, 3.4),
    ("ring", "pcie"): (1.0, 2.5, 5.7),
    ("ring", "network"): (2.7, 4.0, 14.0),
    ("double_tree", "nvlink"): (0.6, 1.25, 4.0),
    ("double_tree", "pcie"): (1.0, 1.9, 4.0),
    ("double_tree", "network"): (5.0, 8.5, 14.0),
}
"""By algorithm and wire, for LL, LL128 and Simple."""
SHARE = {"ring": (0.5, 0.92, 1.0), "double_tree": (1 / 3.8, 0.92 * 0.92, 0.92)}
"""Share of the bus bandwidth: half of LL are flags, 8 of 128 bytes of LL128; a tree reaches 0.92 of a ring."""
LL128, SIMPLE = 1, 2
PLATEAU = 1.4
"""Factor on the latency of a ring between hosts under Simple, for messages of medium size."""
NVLS_SHARE = {"nvlink4": 0.85, "nvlink5": 0.74}
NVLS_LATENCY = 25.0
LEAST = {"nvlink": 0.6 * US, "pcie": 1.0 * US, "network": 2.7 * US}
"""Latency of a wire that the hops contain; a link that states a longer one adds the rest to every hop."""
NO_BUS = "loopback"
"""Devices that communicate only through the kernel have no bus for NCCL (Apple's)."""


class NcclChoice(NamedTuple):
    """Seconds of each message that wait for latencies, seconds that carry bytes, and the algorithm of each."""

    late: Floats
    wide: Floats
    algorithm: NDArray[np.str_]


def bus_between(cluster: Cluster, placed: Sequence[Placed]) -> str | None:
    """The link inside the hosts of these ranks, if all are GPUs that NCCL supports; PCI Express if any host has it."""
    if any(rank.device.kind != "gpu" or rank.device.emulation is not None for rank in placed):
        return None
    names = sorted({cluster.hosts[rank.host].inside.name for rank in placed})
    return None if NO_BUS in names else min(names, key=lambda name: (name.startswith("nvlink"), name))


def _wire(bus: str) -> str:
    return "nvlink" if bus.startswith("nvlink") else "pcie"


def _hops(fabric: Fabric, algorithm: str, protocol: int) -> tuple[float, float]:
    """Seconds of a hop inside a host and of one between hosts."""
    wire = _wire(fabric.nccl or "")
    inside = US * HOPS[algorithm, wire][protocol] + max(0.0, fabric.inside_latency - LEAST[wire])
    between = US * HOPS[algorithm, "network"][protocol] + max(0.0, fabric.between_latency - LEAST["network"])
    return inside, between


def simple_hops(fabric: Fabric) -> tuple[float, float]:
    """Hops inside and between hosts under the protocol for large messages."""
    return _hops(fabric, "ring", SIMPLE)


def _protocols(fabric: Fabric) -> tuple[int, ...]:
    """LL128 needs NVLink's order of writes."""
    return tuple(one for one in range(3) if one != LL128 or _wire(fabric.nccl or "") == "nvlink")


def _slowest(fabric: Fabric) -> float:
    inside = fabric.inside_per_byte if fabric.local > 1 else 0.0
    return max(inside, fabric.between_per_byte if fabric.hosts > 1 else 0.0)


def _ring(fabric: Fabric, n: Floats, protocol: int, rounds: int) -> tuple[float, Floats]:
    """Seconds of `rounds` times around the ring: 2 all-reduce, 1 gathers or scatters."""
    p, h = fabric.ranks, fabric.hosts
    inside, between = _hops(fabric, "ring", protocol)
    late = US * BASE["ring"][protocol] + rounds * ((p - h) * inside + (h - 1) * between)
    stuck = PLATEAU if protocol == SIMPLE and h > 1 and rounds > 1 else 1.0
    return stuck * late, rounds * (p - 1) / p * n * _slowest(fabric) / SHARE["ring"][protocol]


def _tree(fabric: Fabric, n: Floats, protocol: int) -> tuple[float, Floats]:
    inside, between = _hops(fabric, "double_tree", protocol)
    hops = (fabric.local - 1) * inside + float(np.log2(fabric.hosts)) * between
    late = US * BASE["double_tree"][protocol] + 2 * hops
    return late, 2 * n * _slowest(fabric) / SHARE["double_tree"][protocol]


def nccl_allreduce(fabric: Fabric, n: Floats, algorithm: str | None = None) -> NcclChoice:
    """For each message the fastest of all candidates, or of the candidates of one algorithm."""
    candidates: list[tuple[str, float, Floats]] = []
    for protocol in _protocols(fabric):
        if algorithm in (None, "ring"):
            candidates.append(("ring", *_ring(fabric, n, protocol, 2)))
        if algorithm in (None, "double_tree"):
            candidates.append(("double_tree", *_tree(fabric, n, protocol)))
    share = NVLS_SHARE.get(fabric.nccl or "")
    if algorithm is None and share and fabric.hosts == 1:  # never the fastest of two ranks
        candidates.append(("nvls", US * NVLS_LATENCY, n * fabric.inside_per_byte / share))
    return _first(candidates, n)


def nccl_gather(fabric: Fabric, n: Floats) -> NcclChoice:
    """One reduce-scatter or all-gather: a ring, since trees do all-reduces only."""
    return _first([("ring", *_ring(fabric, n, protocol, 1)) for protocol in _protocols(fabric)], n)


def _first(candidates: Sequence[tuple[str, float, Floats]], n: Floats) -> NcclChoice:
    late = np.array([np.full_like(n, one[1]) for one in candidates])
    wide = np.array([one[2] for one in candidates])
    best = np.argmin(late + wide, axis=0)
    names = np.array([one[0] for one in candidates])
    taken = best[None, ...]
    return NcclChoice(np.take_along_axis(late, taken, 0)[0], np.take_along_axis(wide, taken, 0)[0], names[best])
