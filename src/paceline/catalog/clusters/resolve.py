"""Resolution of a cluster file to hosts, devices and links; all unknown names are reported at once."""

from __future__ import annotations

from typing import Any

from paceline.catalog.clusters.files import ClusterFile, DeviceEntry, HostEntry, LinkEntry
from paceline.catalog.devices import device, device_names
from paceline.catalog.links import link, link_names
from paceline.errors import InputError, Problem, SpecError, UnknownName
from paceline.spec.cluster import Cluster, Device, Host, Link
from paceline.spec.lines import line_of, locate

__all__ = ["resolved"]

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
    if entry.name not in device_names() and entry.kind is not None:
        return Device(**changes)
    return device(entry.name).model_copy(update=changes)


def _link(entry: LinkEntry) -> Link:
    changes = _given(entry)
    if entry.name not in link_names() and entry.bandwidth is not None:
        return Link(**changes)
    return link(entry.name).model_copy(update=changes)


def _given(entry: DeviceEntry | LinkEntry, *without: str) -> dict[str, Any]:
    """The fields that the entry sets, with their values."""
    fields = [name for name in type(entry).model_fields if name not in without]
    return {name: value for name in fields if (value := getattr(entry, name)) is not None}
