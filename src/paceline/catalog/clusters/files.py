"""A cluster as its file says it: hosts that may repeat, devices and links by name or with changes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from paceline.spec.cluster import DeviceKind, Emulation, LayerClass, Precision, ReachShare
from paceline.spec.fields import Bandwidth, Bytes, Count, Flops, Name, Noun, Price, Seconds, Share

__all__ = ["ClusterFile", "DeviceEntry", "HostEntry", "LinkEntry"]


def _named(given: Any) -> Any:
    """A bare name is a table with nothing but a name."""
    return {"name": given} if isinstance(given, str) else given


class DeviceEntry(Noun):
    """A device of the catalog with changes, or one of one's own if `kind` is given."""

    name: Name
    count: Annotated[int, Field(ge=1, le=1024)] = 1
    """How many of them the host has."""
    kind: DeviceKind | None = None
    """Needed if the catalog does not know the name."""
    peak: dict[Precision, Flops] | None = None
    """Peak dense compute rate by precision."""
    memory: Bytes | None = None
    """Size of its own memory."""
    memory_bandwidth: Bandwidth | None = None
    """Rate of its own memory."""
    launch_overhead: Seconds | None = None
    """Time that starting one kernel takes when nothing hides it."""
    reach: dict[LayerClass, ReachShare] | None = None
    """Share of peak compute (of memory bandwidth for elementwise layers) that each kind of layer reaches."""
    price: Price | None = None
    """Rent of one device."""
    emulation: Emulation | None = None
    """Given if a rank only pretends to be this device."""
    quota: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of its compute it may really use; below 1 the launcher throttles the rank."""


class LinkEntry(Noun):
    """A link of the catalog with changes, or one of one's own if `bandwidth` is given."""

    name: Name
    bandwidth: Bandwidth | None = None
    """Rate of one direction; needed if the catalog does not know the name."""
    latency: Seconds | None = None
    """One-way time of an empty message."""
    jitter: Seconds | None = None
    """Standard deviation of the latency."""
    loss: Share | None = None
    """Share of packets that are lost."""


class HostEntry(Noun):
    """One host, or `count` equal hosts that are numbered from 1."""

    name: Name
    count: Annotated[int, Field(ge=1, le=65536)] = 1
    """How many equal hosts there are."""
    devices: Annotated[tuple[Annotated[DeviceEntry, BeforeValidator(_named)], ...], Field(min_length=1)]
    """Names or tables; ranks are placed on them in this order."""
    inside: Annotated[LinkEntry, BeforeValidator(_named)]
    """Between two devices of this host."""
    link: Annotated[LinkEntry, BeforeValidator(_named)]
    """From this host to the others."""
    nics: Count = 1
    """Network ports that its devices share."""
    address: str | None = None
    """Where ssh, mpirun or a scheduler finds it; its name if absent."""
    disk: Bandwidth | None = None
    """Rate at which it reads training data."""
    cores: Count | None = None
    """Processor cores that its ranks share."""

    @model_validator(mode="after")
    def _one_address(self) -> HostEntry:
        if self.address is not None and self.count > 1:
            raise ValueError("one address for one host: list hosts with addresses one by one")
        return self


class ClusterFile(Noun):
    """The whole file."""

    name: Name
    title: str = ""
    """A sentence for people."""
    source: str = ""
    """The document that describes it; the catalog's own clusters must have one."""
    host: Annotated[tuple[HostEntry, ...], Field(min_length=1)]
    """Each `[[host]]` of the file, in the order in which ranks are placed."""
