"""Cost of each aggregation algorithm (N bytes, P ranks, latency a, s/byte b, reduction s/byte g), vectorised over N.

ring                   2(P-1) a + 2(P-1)/P N b + (P-1)/P N g
halving_doubling       2 log2(P) a + 2(P-1)/P N b + (P-1)/P N g
recursive_doubling     log2(P) (a + N b + N g)
tree                   2 log2(P) (a + N b) + log2(P) N g
reduce_scatter, all_gather   (P-1) a + (P-1)/P N b

Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.spec.cluster import Cluster, Placed

__all__ = ["ALGORITHMS", "Fabric", "allreduce", "fabric_of", "gather_or_scatter", "parameter_server"]

Floats = NDArray[np.float64]
Cost = Callable[[Floats, int, float, float, float], Floats]


def _ring(n: Floats, p: int, a: float, b: float, g: float) -> Floats:
    return 2 * (p - 1) * a + (p - 1) / p * n * (2 * b + g)


def _halving_doubling(n: Floats, p: int, a: float, b: float, g: float) -> Floats:
    cost: Floats = 2 * np.log2(p) * a + (p - 1) / p * n * (2 * b + g)
    return cost


def _recursive_doubling(n: Floats, p: int, a: float, b: float, g: float) -> Floats:
    cost: Floats = np.log2(p) * (a + n * (b + g))
    return cost


def _tree(n: Floats, p: int, a: float, b: float, g: float) -> Floats:
    cost: Floats = np.log2(p) * (2 * (a + n * b) + n * g)
    return cost


ALGORITHMS: dict[str, Cost] = {
    "ring": _ring,
    "halving_doubling": _halving_doubling,
    "recursive_doubling": _recursive_doubling,
    "tree": _tree,
}
"""Algorithms on ranks that are all alike; those that know hosts are built from them below."""


@dataclass(frozen=True)
class Fabric:
    """How P ranks reach each other: hosts, the most ranks of one host, the slowest link inside and between."""

    ranks: int
    hosts: int
    local: int
    inside_latency: float
    inside_per_byte: float
    between_latency: float
    between_per_byte: float
    """Of one network port, in one direction."""
    nics: int = 1
    reduce_per_byte: float = 0.0
    half_size: float = 0.0
    """Bytes at which a message reaches half of the link's rate; 0 means every size is equally efficient."""

    def slowed(self, latency: float, per_byte: float) -> Fabric:
        """The same ranks with all latencies and all seconds per byte multiplied."""
        return replace(
            self,
            inside_latency=self.inside_latency * latency,
            between_latency=self.between_latency * latency,
            inside_per_byte=self.inside_per_byte * per_byte,
            between_per_byte=self.between_per_byte * per_byte,
            reduce_per_byte=self.reduce_per_byte * per_byte,
        )

    @property
    def ports_per_byte(self) -> float:
        """Seconds per byte of all ports of a host together."""
        return self.between_per_byte / self.nics


def fabric_of(
    cluster: Cluster, placed: tuple[Placed, ...], *, reduce_per_byte: float = 0.0, half_size: float = 0.0
) -> Fabric:
    """The fabric of ranks placed on a cluster; unequal links count with the slowest, for every ring passes it."""
    used = sorted({rank.host for rank in placed})
    hosts = [cluster.hosts[index] for index in used]
    local = max(sum(rank.host == index for rank in placed) for index in used)
    return Fabric(
        ranks=len(placed),
        hosts=len(used),
        local=local,
        inside_latency=max(host.inside.latency for host in hosts),
        inside_per_byte=max(1 / host.inside.bandwidth for host in hosts),
        between_latency=max(host.link.latency for host in hosts),
        between_per_byte=max(1 / (host.link.bandwidth * host.nics) for host in hosts) * min(h.nics for h in hosts),
        nics=min(host.nics for host in hosts),
        reduce_per_byte=reduce_per_byte,
        half_size=half_size,
    )


def allreduce(fabric: Fabric, size: Floats, algorithm: str | None = None) -> Floats:
    """Seconds of one all-reduce of each size; without algorithm, a flat ring as NCCL and Gloo run it."""
    n = np.asarray(size, dtype=np.float64)
    if fabric.ranks == 1:
        return np.zeros_like(n)
    n = n + np.where(n > 0, fabric.half_size, 0.0)
    if algorithm == "hierarchical":
        return _hierarchical(fabric, n)
    if algorithm == "double_tree":
        return _double_tree(fabric, n)
    latency, per_byte = _flat_links(fabric)
    return ALGORITHMS[algorithm or "ring"](n, fabric.ranks, latency, per_byte, fabric.reduce_per_byte)


def _flat_links(fabric: Fabric) -> tuple[float, float]:
    """Mean latency of a hop and seconds per byte of the slowest hop of a ring through all ranks."""
    if fabric.hosts == 1:
        return fabric.inside_latency, fabric.inside_per_byte
    crossing = fabric.hosts / fabric.ranks
    latency = crossing * fabric.between_latency + (1 - crossing) * fabric.inside_latency
    inside = fabric.inside_per_byte if fabric.local > 1 else 0.0
    return latency, max(inside, fabric.ports_per_byte)


def _hierarchical(fabric: Fabric, n: Floats) -> Floats:
    """Reduce-scatter inside, all-reduce of each share between hosts over shared ports, all-gather inside."""
    g = fabric.reduce_per_byte
    total = np.zeros_like(n)
    if fabric.local > 1:
        total = total + _ring(n, fabric.local, fabric.inside_latency, fabric.inside_per_byte, g)
    if fabric.hosts > 1:
        total = total + _ring(n, fabric.hosts, fabric.between_latency, fabric.ports_per_byte, g / fabric.local)
    return total


def _double_tree(fabric: Fabric, n: Floats) -> Floats:
    """Two trees, each with half of the bytes. Sanders, Speck and Träff, Two-tree algorithms, 2009."""
    hops = 2 * np.log2(max(fabric.hosts, 1)) * fabric.between_latency
    hops += 2 * (fabric.local - 1) * fabric.inside_latency
    inside = fabric.inside_per_byte if fabric.local > 1 else 0.0
    slowest = max(inside, fabric.ports_per_byte if fabric.hosts > 1 else 0.0)
    cost: Floats = hops + n * (2 * slowest + fabric.reduce_per_byte)
    return cost


def gather_or_scatter(fabric: Fabric, size: Floats) -> Floats:
    """Seconds of one reduce-scatter or all-gather of each size by a flat ring."""
    n = np.asarray(size, dtype=np.float64)
    if fabric.ranks == 1:
        return np.zeros_like(n)
    latency, per_byte = _flat_links(fabric)
    n = n + np.where(n > 0, fabric.half_size, 0.0)
    p = fabric.ranks
    cost: Floats = (p - 1) * latency + (p - 1) / p * n * per_byte
    return cost


def parameter_server(fabric: Fabric, size: Floats, *, servers: int) -> Floats:
    """Seconds to push gradients and pull parameters; 0 servers means one beside every host's workers.

    Separate servers: max(2 N b of a host's port with its workers, 2 P N b / servers) + 2 a. Co-located: every port
    carries 2 (hosts-1)/hosts N for each of its workers.
    """
    n = np.asarray(size, dtype=np.float64)
    if fabric.ranks == 1:
        return np.zeros_like(n)
    n = n + np.where(n > 0, fabric.half_size, 0.0)
    if fabric.hosts == 1:
        return 2 * fabric.inside_latency + 2 * n * fabric.inside_per_byte * (fabric.local - 1)
    port = fabric.ports_per_byte
    if servers == 0:
        return 2 * fabric.between_latency + 2 * (fabric.hosts - 1) / fabric.hosts * n * port * fabric.local
    worker = 2 * n * port * fabric.local
    server = 2 * fabric.ranks * n * port / servers
    return np.maximum(worker, server) + 2 * fabric.between_latency
