"""Clusters of the catalog by name, and cluster files of users.

A file lists hosts; devices and links are catalog names, or tables that change or replace catalog entries. An instance
of a cloud provider is a cluster of one host. `NAME x N` is a cluster N times.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from paceline.catalog.clusters.files import ClusterFile, resolved
from paceline.catalog.clusters.instances import instance_file, instance_records, repeated, times_of
from paceline.catalog.devices import device_called
from paceline.errors import UnknownName
from paceline.spec.cluster import Cluster
from paceline.spec.load import parse_noun, read_text

__all__ = ["cluster", "cluster_file", "cluster_names", "more_hosts"]

FOLDER = Path(__file__).parent


def cluster_names() -> tuple[str, ...]:
    """Names of all clusters and instances of the catalog."""
    return (*(path.stem for path in sorted(FOLDER.glob("*.toml"))), *instance_records())


def cluster(name: str) -> Cluster:
    """The cluster of this name, or of the file at this path if it ends in .toml; `NAME x N` has its hosts N times."""
    base, count = (name, 1) if name in cluster_names() or name.endswith(".toml") else times_of(name)
    return repeated(_load(Path(base)) if base.endswith(".toml") else _named(base), count)


def cluster_file(name: str) -> ClusterFile:
    """The catalog's file of this name, with title and source."""
    if name in instance_records():
        return instance_file(name)
    if name not in cluster_names():
        having = _with_device(name)
        raise UnknownName("cluster", name, () if having else cluster_names(), otherwise=having)
    path = FOLDER / f"{name}.toml"
    return parse_noun(read_text(path), ClusterFile, str(path))


def more_hosts(cluster: Cluster, devices: int) -> str:
    """How the command line names a cluster of the catalog with this number of devices; empty for other clusters."""
    base, count = times_of(cluster.name)
    times = -(-devices * count // cluster.num_devices)
    return f': --cluster "{base} x {times}"' if base in cluster_names() else ""


@cache
def _named(name: str) -> Cluster:
    return resolved(cluster_file(name), text="", file=name)


def _load(path: Path) -> Cluster:
    text = read_text(path)
    return resolved(parse_noun(text, ClusterFile, str(path)), text=text, file=str(path))


def _with_device(name: str) -> str:
    """Where the device stands that people name instead of a cluster: only they know its hosts and links."""
    if (called := device_called(name)) is None:
        return ""
    hosts = {one: _named(one).hosts for one in cluster_names()}
    having = [one for one, found in hosts.items() if called in {each.name for host in found for each in host.devices}]
    return f"clusters with {called}: {', '.join(having) or 'none'}, or describe yours in a .toml file"
