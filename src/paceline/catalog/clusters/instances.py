"""Instances of cloud providers, each one host with a price, and clusters of several equal hosts: `p4d.24xlarge x 8`."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from paceline.catalog.clusters.files import ClusterFile, DeviceEntry, HostEntry, LinkEntry
from paceline.errors import InputError
from paceline.spec.cluster import Cluster
from paceline.spec.fields import Count, Name, Noun, Price
from paceline.spec.load import load_noun

__all__ = ["InstanceRecord", "instance_file", "instance_records", "repeated", "times_of"]

FILE = Path(__file__).parent.parent / "instances.toml"
MOST_HOSTS = 65536
_TIMES = re.compile(r"(?P<name>.+?)\s*[x*]\s*(?P<count>\d+)|(?P<first>\d+)\s*[x*]\s*(?P<then>.+)")


class InstanceRecord(Noun):
    """One kind of instance."""

    name: Name
    title: Name
    devices: DeviceEntry
    inside: Name
    link: Name
    nics: Count = 1
    price: Price
    """Of the whole instance."""
    as_of: Annotated[str, Field(pattern=r"^\d{4}-\d{2}$")]
    """Year and month in which the price held."""
    source: Name
    note: str = ""


class _Instances(Noun):
    instance: tuple[InstanceRecord, ...]


@cache
def instance_records() -> dict[str, InstanceRecord]:
    """All instances by name."""
    return {record.name: record for record in load_noun(FILE, _Instances).instance}


def instance_file(name: str) -> ClusterFile:
    """An instance as a cluster of one host; its price is spread over its devices."""
    record = instance_records()[name]
    devices = record.devices.model_copy(update={"price": record.price / record.devices.count})
    host = HostEntry(
        name=name,
        devices=(devices,),
        inside=LinkEntry(name=record.inside),
        link=LinkEntry(name=record.link),
        nics=record.nics,
    )
    source = f"{record.source}; {record.price:g} USD/h in {record.as_of}"
    return ClusterFile(name=name, title=record.title, source=source, host=(host,))


def times_of(text: str) -> tuple[str, int]:
    """`p4d.24xlarge x 8` as name and number; any other text is a name, once."""
    match = _TIMES.fullmatch(text.strip())
    if match is None:
        return text.strip(), 1
    count = int(match["count"] or match["first"])
    if not 1 <= count <= MOST_HOSTS:
        raise InputError(f"cluster {text!r}: got {count} times, expected 1 to {MOST_HOSTS}")
    return match["name"] or match["then"], count


def repeated(cluster: Cluster, count: int) -> Cluster:
    """The same hosts several times, on their links between hosts."""
    if count == 1:
        return cluster
    hosts = tuple(
        host.model_copy(update={"name": f"{host.name}-{number}"})
        for number in range(1, count + 1)
        for host in cluster.hosts
    )
    return Cluster(name=f"{cluster.name} x {count}", hosts=hosts)
