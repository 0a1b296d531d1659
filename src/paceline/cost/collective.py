"""Cost of each aggregation algorithm (N bytes, P ranks, latency a, s/byte b, reduction s/byte g), vectorised over N.

ring                   2(P-1) a + 2(P-1)/P N b + (P-1)/P N g
halving_doubling       2 log2(P) a + 2(P-1)/P N b + (P-1)/P N g
recursive_doubling     log2(P) (a + N b + N g)
tree                   2 log2(P) (a + N b) + log2(P) N g
reduce_scatter, all_gather   (P-1) a + (P-1)/P N b

Without an algorithm the library chooses: NCCL for each message (`nccl.py`); Gloo uses a ring; MPI is assumed to use a
ring (Open MPI does for messages as large as gradients, and uses other algorithms for small ones).

Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.cost.nccl import bus_between, nccl_allreduce, nccl_gather, simple_hops

if TYPE_CHECKING:
    from paceline.spec.cluster import Cluster, Host, Placed

__all__ = [
    "ALGORITHMS",
    "Endpoint",
    "Fabric",
    "allreduce",
    "allreduce_parts",
    "bus_factor",
    "chosen_algorithms",
    "endpoint_of",
    "fabric_between",
    "fabric_of",
    "gather_or_scatter",
    "gather_parts",
    "parameter_server",
    "syncer_round",
]

Floats = NDArray[np.float64]
Parts = tuple[Floats, Floats]
"""Seconds that wait for latencies, and seconds that carry bytes."""
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
"""Algorithms on equal ranks; hierarchical algorithms, which distinguish hosts, are composed of them below."""


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
    """Seconds per byte of all network ports of a host together, in one direction."""
    reduce_per_byte: float = 0.0
    nccl: str | None = None
    """The link inside hosts, if NCCL exchanges, whose own latencies then hold; none under another library."""

    def slowed(self, latency: float, per_byte: float) -> Fabric:
        """The fabric with all latencies of links, and all seconds per byte, multiplied."""
        return replace(
            self,
            inside_latency=self.inside_latency * latency,
            between_latency=self.between_latency * latency,
            inside_per_byte=self.inside_per_byte * per_byte,
            between_per_byte=self.between_per_byte * per_byte,
            reduce_per_byte=self.reduce_per_byte * per_byte,
        )


class Endpoint(NamedTuple):
    """The attachment of a rank: its host, and bandwidth and latency inside the host and to other hosts."""

    host: int | str
    inside: tuple[float, float]
    link: tuple[float, float]
    """Bandwidth of all ports of the host together, and latency."""


def fabric_between(ranks: Sequence[Endpoint]) -> Fabric:
    """The fabric between some ranks; the slowest link counts, because every ring passes it."""
    hosts = [rank.host for rank in ranks]
    counts = Counter(hosts)
    return Fabric(
        ranks=len(ranks),
        hosts=len(counts),
        local=max(counts.values()),
        inside_latency=max(rank.inside[1] for rank in ranks),
        inside_per_byte=max(1 / rank.inside[0] for rank in ranks),
        between_latency=max(rank.link[1] for rank in ranks),
        between_per_byte=max(1 / rank.link[0] for rank in ranks),
    )


def endpoint_of(host: Host, index: int | str) -> Endpoint:
    """The endpoint of every rank of a host."""
    inside = (host.inside.bandwidth, host.inside.latency)
    return Endpoint(index, inside, (host.link.bandwidth * host.nics, host.link.latency))


def fabric_of(cluster: Cluster, placed: Sequence[Placed], *, nccl: bool = False) -> Fabric:
    """The fabric of ranks placed on a cluster; `nccl` if NCCL exchanges wherever it can."""
    fabric = fabric_between([endpoint_of(cluster.hosts[rank.host], rank.host) for rank in placed])
    return replace(fabric, nccl=bus_between(cluster, placed)) if nccl else fabric


def bus_factor(collective: str, ranks: int) -> float:
    """Bus bandwidth over the bandwidth of one rank's buffer, as nccl-tests defines it: bytes over a link per byte."""
    share = (ranks - 1) / max(ranks, 1)
    return {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share}.get(collective, 1.0)


def allreduce(fabric: Fabric, size: ArrayLike, algorithm: str | None = None) -> Floats:
    """Seconds of one all-reduce of each size; without `algorithm`, by the algorithm that the library chooses."""
    late, wide = allreduce_parts(fabric, size, algorithm)
    return late + wide


def allreduce_parts(fabric: Fabric, size: ArrayLike, algorithm: str | None = None) -> Parts:
    """The seconds of each all-reduce, as (latency part, byte part)."""
    n = np.asarray(size, dtype=np.float64)
    if fabric.nccl is None:
        return _plain(fabric.slowed(1.0, 0.0), n, algorithm), _plain(fabric.slowed(0.0, 1.0), n, algorithm)
    if fabric.ranks > 1 and algorithm in (None, "ring", "double_tree"):
        return nccl_allreduce(fabric, n, algorithm)[:2]
    inside, between = simple_hops(fabric)
    return allreduce_parts(
        replace(fabric, nccl=None, inside_latency=inside, between_latency=between), n, algorithm or "ring"
    )


def chosen_algorithms(fabric: Fabric, sizes: Floats, algorithm: str | None = None) -> list[str]:
    """The algorithm of each all-reduce."""
    if algorithm is not None or fabric.nccl is None or fabric.ranks == 1:
        return [algorithm or "ring"] * len(sizes)
    return [str(name) for name in nccl_allreduce(fabric, sizes).algorithm]


def _plain(fabric: Fabric, n: Floats, algorithm: str | None) -> Floats:
    if fabric.ranks == 1:
        return np.zeros_like(n)
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
    return latency, max(inside, fabric.between_per_byte)


def _hierarchical(fabric: Fabric, n: Floats) -> Floats:
    """Reduce-scatter inside, all-reduce of each share between hosts over shared ports, all-gather inside."""
    g = fabric.reduce_per_byte
    inside = _ring(n, fabric.local, fabric.inside_latency, fabric.inside_per_byte, g)
    return inside + _ring(n, fabric.hosts, fabric.between_latency, fabric.between_per_byte, g / fabric.local)


def _double_tree(fabric: Fabric, n: Floats) -> Floats:
    """Two trees, each with half of the bytes. Sanders, Speck and Träff, Two-tree algorithms, 2009."""
    hops = 2 * np.log2(fabric.hosts) * fabric.between_latency
    hops += 2 * (fabric.local - 1) * fabric.inside_latency
    inside = fabric.inside_per_byte if fabric.local > 1 else 0.0
    slowest = max(inside, fabric.between_per_byte if fabric.hosts > 1 else 0.0)
    cost: Floats = hops + n * (2 * slowest + fabric.reduce_per_byte)
    return cost


def gather_or_scatter(fabric: Fabric, size: Floats) -> Floats:
    """Seconds of one reduce-scatter or all-gather of each size by a flat ring."""
    late, wide = gather_parts(fabric, size)
    return late + wide


def gather_parts(fabric: Fabric, size: Floats) -> Parts:
    """Cost of a gather, as latency part and byte part."""
    n = np.asarray(size, dtype=np.float64)
    if fabric.ranks == 1:
        return np.zeros_like(n), np.zeros_like(n)
    if fabric.nccl is not None:
        return nccl_gather(fabric, n)[:2]
    latency, per_byte = _flat_links(fabric)
    p = fabric.ranks
    return np.full_like(n, (p - 1) * latency), (p - 1) / p * n * per_byte


def parameter_server(fabric: Fabric, size: Floats, *, servers: int) -> Floats:
    """Seconds to push gradients and pull parameters; 0 servers means one co-located server on every host.

    Separate servers: max(2 N b of a host's port with its workers, 2 P N b / servers) + 2 a. Co-located: every port
    carries 2 (hosts-1)/hosts N for each of its workers.
    """
    n = np.asarray(size, dtype=np.float64)
    if fabric.ranks == 1:
        return np.zeros_like(n)
    if fabric.hosts == 1:
        return 2 * fabric.inside_latency + 2 * n * fabric.inside_per_byte * (fabric.local - 1)
    port = fabric.between_per_byte
    if servers == 0:
        return 2 * fabric.between_latency + 2 * (fabric.hosts - 1) / fabric.hosts * n * port * fabric.local
    return 2 * n * port * max(fabric.local, fabric.ranks / servers) + 2 * fabric.between_latency


def syncer_round(size: float, *, bandwidth: float, latency: float, sharing: int = 1) -> float:
    """Seconds in which a group hands all parameters to a sharded syncer and takes them back over a shared link."""
    return 2 * size * sharing / bandwidth + 4 * latency
