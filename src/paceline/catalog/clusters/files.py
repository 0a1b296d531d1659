"""The content of a cluster file: hosts with a count, devices and links by name or as tables."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from paceline.spec.cluster import DeviceKind, Emulation, LayerClass, Precision, ReachShare
from paceline.spec.fields import Bandwidth, Bytes, Count, Flops, Name, Noun, Price, Seconds, Share

__all__ = ["ClusterFile", "DeviceEntry", "HostEntry", "LinkEntry"]


def _named(given: Any) -> Any:
    """Convert a name to a table with that name."""
    return {"name": given} if isinstance(given, str) else given


class DeviceEntry(Noun):
    """A catalog device with changed fields, or a user-defined device if `kind` is given."""

    name: Name
    count: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of these devices in the host."""
    kind: DeviceKind | None = None
    """Required if the name is not in the catalog."""
    peak: dict[Precision, Flops] | None = None
    """Peak dense compute rate by precision."""
    memory: Bytes | None = None
    """Memory size."""
    memory_bandwidth: Bandwidth | None = None
    """Memory bandwidth."""
    launch_overhead: Seconds | None = None
    """Time to launch one kernel when the launch is not hidden by other work."""
    reach: dict[LayerClass, ReachShare] | None = None
    """Share of peak compute (of memory bandwidth for elementwise layers) that each kind of layer reaches."""
    price: Price | None = None
    """Price of one device."""
    emulation: Emulation | None = None
    """Present if ranks emulate this device."""
    quota: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the device that the rank may use; below 1 the launcher throttles the rank."""


class LinkEntry(Noun):
    """A catalog link with changed fields, or a user-defined link if `bandwidth` is given."""

    name: Name
    bandwidth: Bandwidth | None = None
    """Rate per direction; required if the name is not in the catalog."""
    latency: Seconds | None = None
    """One-way latency of an empty message."""
    jitter: Seconds | None = None
    """Standard deviation of the latency."""
    loss: Share | None = None
    """Packet loss rate."""


class HostEntry(Noun):
    """One host, or `count` equal hosts that are numbered from 1."""

    name: Name
    count: Annotated[int, Field(ge=1, le=65536)] = 1
    """Number of equal hosts."""
    devices: Annotated[tuple[Annotated[DeviceEntry, BeforeValidator(_named)], ...], Field(min_length=1)]
    """Names or tables; ranks are placed on them in this order."""
    inside: Annotated[LinkEntry, BeforeValidator(_named)]
    """Link between two devices of this host."""
    link: Annotated[LinkEntry, BeforeValidator(_named)]
    """Link from this host to the other hosts."""
    nics: Count = 1
    """Number of network ports, shared by the devices."""
    address: str | None = None
    """Host name or address for ssh, mpirun or a scheduler; by default `name`."""
    disk: Bandwidth | None = None
    """Rate at which the host reads training data."""
    cores: Count | None = None
    """Number of processor cores, shared by the ranks."""

    @model_validator(mode="after")
    def _one_address(self) -> HostEntry:
        if self.address is not None and self.count > 1:
            raise ValueError("one address for one host: list hosts with addresses one by one")
        return self


class ClusterFile(Noun):
    """The content of a cluster file."""

    name: Name
    title: str = ""
    """Description for reports."""
    source: str = ""
    """The document that describes the cluster; required for clusters of the catalog."""
    host: Annotated[tuple[HostEntry, ...], Field(min_length=1)]
    """Each `[[host]]` of the file, in the order in which ranks are placed."""
