"""A cluster as its file says it: hosts that may repeat, devices and links by name or with changes."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from paceline.spec.cluster import DeviceKind, Emulation, Precision
from paceline.spec.fields import Bandwidth, Bytes, Count, Flops, Name, Noun, Price, Seconds, Share

__all__ = ["ClusterFile", "DeviceEntry", "HostEntry", "LinkEntry"]


def _named(given: Any) -> Any:
    """A bare name is a table with nothing but a name."""
    return {"name": given} if isinstance(given, str) else given


class DeviceEntry(Noun):
    """A device of the catalog with changes, or one of one's own if `kind` is given."""

    name: Name
    count: Annotated[int, Field(ge=1, le=1024)] = 1
    kind: DeviceKind | None = None
    peak: dict[Precision, Flops] | None = None
    memory: Bytes | None = None
    memory_bandwidth: Bandwidth | None = None
    launch_overhead: Seconds | None = None
    price: Price | None = None
    emulation: Emulation | None = None
    quota: Annotated[float, Field(gt=0, le=1)] | None = None


class LinkEntry(Noun):
    """A link of the catalog with changes, or one of one's own if `bandwidth` is given."""

    name: Name
    bandwidth: Bandwidth | None = None
    latency: Seconds | None = None
    jitter: Seconds | None = None
    loss: Share | None = None


class HostEntry(Noun):
    """One host, or `count` equal hosts that are numbered from 1."""

    name: Name
    count: Annotated[int, Field(ge=1, le=65536)] = 1
    devices: Annotated[tuple[Annotated[DeviceEntry, BeforeValidator(_named)], ...], Field(min_length=1)]
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
