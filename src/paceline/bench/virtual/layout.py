"""The layout of a virtual cluster: addresses of its hosts, and rates and latencies of its links in dilated time."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import Unsupported
from paceline.spec.cluster import Cluster, Host, Link

__all__ = ["MOST_HOSTS", "Layout", "VirtualHost", "lay_out", "path_latency", "path_rate"]

MOST_HOSTS = 250
INTERFACE = "eth0"


@dataclass(frozen=True)
class VirtualHost:
    """One host on the virtual network."""

    name: str
    address: str
    port: str
    """Interface of the host at the switch."""
    link: Link
    """Shaped link of all ports of the host together, divided by the dilation."""
    inside: Link


@dataclass(frozen=True)
class Layout:
    """The layout of a cluster: names, addresses and links in dilated time."""

    instance: str
    dilation: float
    seats: tuple[VirtualHost, ...]

    def seat(self, name: str) -> VirtualHost:
        """The seat of a host."""
        return next(seat for seat in self.seats if seat.name == name)


def lay_out(cluster: Cluster, *, instance: str, dilation: float = 1.0) -> Layout:
    """The layout of a cluster; the network number follows from the instance, so that two clusters never share one."""
    if len(cluster.hosts) > MOST_HOSTS:
        raise Unsupported(f"{len(cluster.hosts)} hosts on one virtual switch; at most {MOST_HOSTS} are possible")
    digest = zlib.crc32(instance.encode())
    network = f"10.{64 + digest % 128}.{digest // 128 % 256}"
    seats = tuple(_seat(host, network, number, dilation) for number, host in enumerate(cluster.hosts, start=1))
    return Layout(instance=instance, dilation=dilation, seats=seats)


def _seat(host: Host, network: str, number: int, dilation: float) -> VirtualHost:
    return VirtualHost(
        name=host.name,
        address=f"{network}.{number}",
        port=f"p{number}",
        link=_dilated(host.link, dilation, ports=host.nics),
        inside=_dilated(host.inside, dilation),
    )


def _dilated(link: Link, dilation: float, *, ports: int = 1) -> Link:
    changes = {
        "bandwidth": link.bandwidth * ports / dilation,
        "latency": link.latency * dilation,
        "jitter": link.jitter * dilation,
    }
    return link.model_copy(update=changes)


def path_latency(one: VirtualHost, other: VirtualHost) -> float:
    """One-way latency between two hosts: half of the latency of each link."""
    return (one.link.latency + other.link.latency) / 2


def path_rate(path: Sequence[VirtualHost]) -> float:
    """Bytes per second that a single stream can carry along a path: its narrowest link."""
    return min(seat.link.bandwidth for seat in path)
