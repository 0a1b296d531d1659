"""The content of a cluster file (hosts with a count, devices and links by name or as tables) and its resolution.

Resolving reports all unknown names at once.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from paceline.catalog.devices import device, device_by_alias
from paceline.catalog.links import link, link_names
from paceline.errors import InputError, Problem, SpecError, UnknownName
from paceline.spec.cluster import Cluster, Device, DeviceKind, Emulation, Host, LayerClass, Link, Precision, ReachShare
from paceline.spec.fields import Bandwidth, Bytes, Count, Flops, Name, Price, Seconds, Share, SpecModel, Watts
from paceline.spec.lines import line_of, locate

__all__ = ["ClusterFile", "DeviceEntry", "HostEntry", "LinkEntry", "resolved"]


def _named(given: Any) -> Any:
    """Convert a name to a table with that name."""
    return {"name": given} if isinstance(given, str) else given


class DeviceEntry(SpecModel):
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
    power: Watts | None = None
    """Power of one device under load."""
    emulation: Emulation | None = None
    """Present if ranks emulate this device."""
    quota: Annotated[float, Field(gt=0, le=1)] | None = None
    """Share of the device that the rank may use; below 1 the launcher throttles the rank."""


class LinkEntry(SpecModel):
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


class HostEntry(SpecModel):
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


class ClusterFile(SpecModel):
    """The content of a cluster file."""

    name: Name
    title: str = ""
    """Description for reports."""
    source: str = ""
    """The document that describes the cluster; required for clusters of the catalog."""
    host: Annotated[tuple[HostEntry, ...], Field(min_length=1)]
    """Each `[[host]]` of the file, in the order in which ranks are placed."""


MAX_DEVICES = 1_000_000
"""A cluster with more devices is refused as a probable mistake."""


def resolved(given: ClusterFile, *, text: str, file: str) -> Cluster:
    """The cluster that a file describes."""
    problems = _problems(given, text, file)
    if problems:
        raise SpecError(file, problems)
    hosts = tuple(host for entry in given.host for host in _hosts(entry))
    return Cluster(name=given.name, hosts=hosts)


def _problems(given: ClusterFile, text: str, file: str) -> list[Problem]:
    places = locate(text)
    problems = []
    for index, host in enumerate(given.host):
        named: list[tuple[str, DeviceEntry | LinkEntry]] = [("inside", host.inside), ("link", host.link)]
        named += [(f"devices[{number}]", entry) for number, entry in enumerate(host.devices)]
        for field, entry in named:
            error = _error(entry)
            if error is not None:
                line = line_of(("host", index, field.partition("[")[0]), places)
                what = "a link" if isinstance(entry, LinkEntry) else "a device"
                place = f"host[{index}].{field}"
                problems.append(Problem(file, line, place, repr(entry.name), f"{what} of the catalog", error.hint))
    return problems + _too_many(given, file) + _twice(given, file, places)


def _error(entry: DeviceEntry | LinkEntry) -> InputError | None:
    try:
        _device(entry) if isinstance(entry, DeviceEntry) else _link(entry)
    except UnknownName as error:
        return error
    return None


def _too_many(given: ClusterFile, file: str) -> list[Problem]:
    total = sum(host.count * entry.count for host in given.host for entry in host.devices)
    if total <= MAX_DEVICES:
        return []
    return [Problem(file, None, "host", f"{total} devices", f"at most {MAX_DEVICES}", None)]


def _twice(given: ClusterFile, file: str, places: dict[Any, int]) -> list[Problem]:
    seen: set[str] = set()
    problems = []
    for index, entry in enumerate(given.host):
        names = _names(entry)
        twice = seen.intersection(names)
        if twice:
            line = line_of(("host", index, "name"), places)
            place = f"host[{index}].name"
            problems.append(Problem(file, line, place, repr(min(twice)), "a unique host name", None))
        seen.update(names)
    return problems


def _names(entry: HostEntry) -> list[str]:
    return [entry.name] if entry.count == 1 else [f"{entry.name}{number}" for number in range(1, entry.count + 1)]


def _hosts(entry: HostEntry) -> list[Host]:
    devices = tuple(device for item in entry.devices for device in [_device(item)] * item.count)
    first = Host(
        name=entry.name,
        devices=devices,
        inside=_link(entry.inside),
        link=_link(entry.link),
        nics=entry.nics,
        address=entry.address,
        disk=entry.disk,
        cores=entry.cores,
    )
    return [first.model_copy(update={"name": name}) for name in _names(entry)]


def _device(entry: DeviceEntry) -> Device:
    changes = _given(entry, "count")
    if entry.kind is not None and device_by_alias(entry.name) is None:
        return Device(**changes)
    return device(entry.name).model_copy(update={**changes, "name": device(entry.name).name})


def _link(entry: LinkEntry) -> Link:
    changes = _given(entry)
    if entry.name not in link_names() and entry.bandwidth is not None:
        return Link(**changes)
    return link(entry.name).model_copy(update=changes)


def _given(entry: DeviceEntry | LinkEntry, *without: str) -> dict[str, Any]:
    """The fields that the entry sets, with their values."""
    fields = [name for name in type(entry).model_fields if name not in without]
    return {name: value for name in fields if (value := getattr(entry, name)) is not None}
