"""Clusters of the catalog by name, and cluster files of users.

A file lists hosts; devices and links are catalog names, or tables that change or replace catalog entries. An instance
of a cloud provider is a cluster of one host. `NAME x N` is a cluster N times; `4x rtx-4090 over 25gbe x 8` is eight
hosts of four devices; ` + ` joins unequal hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from paceline.catalog.clusters.composed import hosts_written, instance_file, instance_records, repeated, times_of
from paceline.catalog.clusters.files import ClusterFile, resolved
from paceline.errors import InputError, UnknownName
from paceline.spec.cluster import Cluster
from paceline.spec.load import parse_noun, read_text

__all__ = ["cluster", "cluster_file", "cluster_names", "is_composed", "more_hosts", "usual_counts", "wide_enough"]

FOLDER = Path(__file__).parent
OTHERWISE = 'write its devices, such as "4x rtx-4090" or "4x rtx-4090 over 25gbe x 8", or describe it in a .toml file'


def cluster_names() -> tuple[str, ...]:
    """Names of all clusters and instances of the catalog."""
    return (*(path.stem for path in sorted(FOLDER.glob("*.toml"))), *instance_records())


def cluster(name: str) -> Cluster:
    """The cluster of this name, or of the file at this path if it ends in .toml, or of devices.

    `NAME x N` has the hosts of a cluster N times; `4x rtx-4090 over 25gbe x 8` is eight hosts of four devices;
    `2x a100 + 4x rtx-3090 over 10gbe` is two unequal hosts.
    """
    if name in cluster_names():
        return _named(name)
    if len(parts := name.split(" + ")) > 1:
        return _joined(name, parts)
    if not name.endswith(".toml") and (written := hosts_written(name)) is not None:
        return repeated(resolved(written.file(), text="", file=name), written.hosts)
    base, count = (name, 1) if name.endswith(".toml") else times_of(name)
    return repeated(_load(Path(base)) if base.endswith(".toml") else _named(base), count)


def _joined(name: str, parts: Sequence[str]) -> Cluster:
    """Clusters side by side; devices without a link of their own are on the link that is stated last."""
    stated = [written.link for part in parts if (written := hosts_written(part)) is not None and written.link]
    hosts = []
    for number, part in enumerate(parts, start=1):
        written = hosts_written(part)
        if written is not None and written.link is None:
            if not stated:
                raise InputError(
                    f"cluster {name!r}: the network between its hosts is missing",
                    hint=f'name a link: --cluster "{name} over 25gbe"; `paceline catalog links` lists all',
                )
            part = f"{part} over {stated[-1]}"
        hosts += [host.model_copy(update={"name": f"{number}-{host.name}"}) for host in cluster(part.strip()).hosts]
    return Cluster(name=" + ".join(part.strip() for part in parts), hosts=tuple(hosts))


def is_composed(name: str) -> bool:
    """Whether a cluster is no entry of the catalog but several: hosts of an entry, or devices."""
    if name in cluster_names() or " + " in name:
        return " + " in name
    written = hosts_written(name)
    return times_of(name)[0] in cluster_names() or (
        written is not None and (written.count > 1 or written.link is not None)
    )


def cluster_file(name: str) -> ClusterFile:
    """The catalog's file of this name, with title and source."""
    if name in instance_records():
        return instance_file(name)
    if name not in cluster_names():
        raise UnknownName("cluster", name, cluster_names(), otherwise=OTHERWISE)
    path = FOLDER / f"{name}.toml"
    return parse_noun(read_text(path), ClusterFile, str(path))


def wide_enough(name: str, devices: int) -> str:
    """The cluster's name, with as many of its host as the devices need; only entries of one host are repeated."""
    if name not in cluster_names() or name == "local" or len(_named(name).hosts) > 1:
        return name
    times = -(-devices // _named(name).num_devices)
    return f"{name} x {times}" if times > 1 else name


def usual_counts(given: Cluster | Path | str) -> tuple[int, ...]:
    """1, 2, 4 and 8 devices as far as a cluster has them, and all devices of a smaller one."""
    found = given if isinstance(given, Cluster) else cluster(wide_enough(str(given), 8))
    most = min(8, found.num_devices)
    return tuple(sorted({count for count in (1, 2, 4, most) if count <= most}))


def more_hosts(cluster: Cluster, devices: int) -> str:
    """How the command line names a cluster of the catalog with this number of devices; empty for other clusters."""
    base, count = times_of(cluster.name)
    times = -(-devices * count // cluster.num_devices)
    if base in cluster_names():
        return f': --cluster "{base} x {times}"'
    written = hosts_written(cluster.name)
    return f': --cluster "{written.more(devices)}"' if written else ""


@cache
def _named(name: str) -> Cluster:
    return resolved(cluster_file(name), text="", file=name)


def _load(path: Path) -> Cluster:
    text = read_text(path)
    return resolved(parse_noun(text, ClusterFile, str(path)), text=text, file=str(path))
