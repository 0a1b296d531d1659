"""Clusters of the catalog by name, and cluster files of users.

A file lists hosts; devices and links are catalog names, or tables that change or replace catalog entries. An instance
of a cloud provider is a cluster of one host. `NAME x N` is a cluster N times; `4x rtx-4090 over 25gbe x 8` is eight
hosts of four devices, with `over 4x 25gbe x 8` through four ports each; ` + ` joins unequal hosts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from paceline.catalog.clusters.files import ClusterFile, DeviceEntry, HostEntry, LinkEntry, resolved
from paceline.catalog.devices import device_by_alias, device_names, device_record, unsaid
from paceline.catalog.links import link_record
from paceline.errors import InputError, UnknownName
from paceline.spec.cluster import Cluster
from paceline.spec.fields import Count, Name, Price, SpecModel
from paceline.spec.load import load_spec, parse_spec, read_text

__all__ = [
    "HostsExpression",
    "InstanceRecord",
    "cluster",
    "cluster_file",
    "cluster_names",
    "default_counts",
    "entry_name",
    "instance_file",
    "instance_records",
    "is_composed",
    "more_hosts",
    "parse_hosts_expression",
    "repeated",
    "times_of",
    "wide_enough",
]

FOLDER = Path(__file__).parent
OTHERWISE = (
    '`paceline catalog` lists all; write devices as "4x rtx-4090" or "4x rtx-4090 over 25gbe x 8"; '
    "a .toml file describes any other device by its peak, memory and memory_bandwidth"
)


def cluster_names() -> tuple[str, ...]:
    """Names of all clusters and instances of the catalog."""
    return (*(path.stem for path in sorted(FOLDER.glob("*.toml"))), *instance_records())


def cluster(name: str) -> Cluster:
    """The cluster of this name, or of the file at this path if it ends in .toml, or of devices.

    `NAME x N` has the hosts of a cluster N times; `4x rtx-4090 over 25gbe x 8` is eight hosts of four devices;
    `2x a100 + 4x rtx-3090 over 10gbe` is two unequal hosts.
    """
    if known := entry_name(name):
        return _named(known)
    if len(parts := name.split(" + ")) > 1:
        return _joined(name, parts)
    if not name.endswith(".toml") and (written := parse_hosts_expression(name)) is not None:
        return repeated(resolved(written.file(), text="", file=name), written.hosts)
    base, count = (name, 1) if name.endswith(".toml") else times_of(name)
    if base.endswith(".toml"):
        return repeated(_load(Path(base)), count)
    if known := entry_name(base):
        return repeated(_named(known), count)
    raise _unknown(name)


def _unknown(name: str) -> InputError:
    """The error of a text that is no cluster: it shows the part that should be a name."""
    written = _HOSTS.fullmatch(name.strip())
    known = (*cluster_names(), *device_names())
    return UnknownName("cluster or device", written["device"] if written else name, known, otherwise=OTHERWISE)


def entry_name(name: str) -> str | None:
    """The entry of the catalog that a name means: `DGX A100` is dgx-a100, and Standard_ND96asr_v4 is nd96asr-v4."""
    if name in cluster_names():
        return name
    return _squashed_names().get(_squashed(name.lower().removeprefix("standard_")))


@cache
def _squashed_names() -> dict[str, str]:
    return {_squashed(name): name for name in cluster_names()}


def _squashed(name: str) -> str:
    return re.sub(r"[\s._-]", "", name)


def _joined(name: str, parts: Sequence[str]) -> Cluster:
    """Joined clusters; hosts without a stated link use the link that is stated last."""
    stated = [written.link for part in parts if (written := parse_hosts_expression(part)) is not None and written.link]
    hosts = []
    for number, part in enumerate(parts, start=1):
        written = parse_hosts_expression(part)
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
    if entry_name(name) or " + " in name:
        return " + " in name
    written = parse_hosts_expression(name)
    return entry_name(times_of(name)[0]) is not None or (
        written is not None and (written.count > 1 or written.link is not None)
    )


def cluster_file(name: str) -> ClusterFile:
    """The catalog's file of this name, with title and source."""
    known = entry_name(name)
    if known is None:
        raise _unknown(name)
    if known in instance_records():
        return instance_file(known)
    path = FOLDER / f"{known}.toml"
    return parse_spec(read_text(path), ClusterFile, str(path))


def wide_enough(name: str, devices: int) -> str:
    """The cluster's name, with as many of its host as the devices need; only entries of one host are repeated."""
    known = entry_name(name)
    if known is None or known == "local" or len(_named(known).hosts) > 1:
        return name
    times = -(-devices // _named(known).num_devices)
    return f"{known} x {times}" if times > 1 else known


def default_counts(given: Cluster | Path | str) -> tuple[int, ...]:
    """1, 2, 4 and 8 devices, up to the size of the cluster, and all of its devices."""
    chosen = given if isinstance(given, Cluster) else cluster(wide_enough(str(given), 8))
    most = chosen.num_devices
    return tuple(sorted({count for count in (1, 2, 4, 8, most) if count <= most}))


def more_hosts(cluster: Cluster, devices: int) -> str:
    """How the command line names a cluster of the catalog with this number of devices; empty for other clusters."""
    base, count = times_of(cluster.name)
    times = -(-devices * count // cluster.num_devices)
    if base in cluster_names():
        return f': --cluster "{base} x {times}"'
    written = parse_hosts_expression(cluster.name)
    return f': --cluster "{written.more(devices)}"' if written else ""


@cache
def _named(name: str) -> Cluster:
    return resolved(cluster_file(name), text="", file=name)


def _load(path: Path) -> Cluster:
    text = read_text(path)
    return resolved(parse_spec(text, ClusterFile, str(path)), text=text, file=str(path))


FILE = Path(__file__).parent.parent / "instances.toml"
MOST_HOSTS = 65536
MOST_DEVICES = 64
"""Largest number of devices of one host."""
ALONE = "loopback"
"""Between ranks of a host whose device has no link to a second one; there is no second one."""
_BY = r"(?:\s+[xX]\s*|\s*[*\u00d7]\s*)"
_OVER = rf"(?:\s+over\s+(?:(?P<ports>\d+)\s*[xX*\u00d7]\s*)?(?P<link>\S.*?)(?:{_BY}(?P<hosts>\d+))?)?"
_TIMES = re.compile(rf"(?P<name>.+?){_BY}(?P<count>\d+)|(?P<first>\d+)\s*[xX*\u00d7]\s*(?P<then>.+)")
_HOSTS = re.compile(rf"(?:(?P<before>\d+)\s*[xX*\u00d7]\s*)?(?P<device>\S.*?)(?:{_BY}(?P<after>\d+))?(?P<over>{_OVER})")
_HOSTS_CLOSER = re.compile(rf"(?:(?P<before>\d+)\s+)?(?P<device>\S.*?)(?:\s*[xX]\s*(?P<after>\d+))?(?P<over>{_OVER})")
"""Also "4 t4" and "t4x4"; tried last, since an x and numbers are parts of names."""


class InstanceRecord(SpecModel):
    """One kind of instance."""

    name: Name
    title: Name
    devices: DeviceEntry
    inside: Name
    link: Name
    nics: Count = 1
    price: Price | None = None
    """Of the whole instance."""
    as_of: Annotated[str, Field(pattern=r"^\d{4}-\d{2}$")] | None = None
    """Year and month in which the price held; required with a price."""
    source: Name
    note: str = ""


class _Instances(SpecModel):
    instance: tuple[InstanceRecord, ...]


@cache
def instance_records() -> dict[str, InstanceRecord]:
    """All instances by name."""
    return {record.name: record for record in load_spec(FILE, _Instances).instance}


def instance_file(name: str) -> ClusterFile:
    """An instance as a cluster of one host; its price is spread over its devices."""
    record = instance_records()[name]
    price = None if record.price is None else record.price / record.devices.count
    devices = record.devices.model_copy(update={"price": price})
    host = HostEntry(
        name=name,
        devices=(devices,),
        inside=LinkEntry(name=record.inside),
        link=LinkEntry(name=record.link),
        nics=record.nics,
    )
    stated = "no price known" if record.price is None else f"{record.price:g} USD/h in {record.as_of}"
    source = f"{record.source}; {stated}"
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


@dataclass(frozen=True)
class HostsExpression:
    """Equal hosts of one kind of device."""

    text: str
    """The devices as the user wrote them."""
    device: str
    count: int
    """Number of devices in each host."""
    link: str | None
    """Between hosts."""
    hosts: int
    ports: int = 1
    """Of each host on the link between hosts."""

    def written(self, count: int, hosts: int) -> str:
        """The same device and link in other numbers."""
        each = self.device if count == 1 else f"{count}x {self.device}"
        ports = f"{self.ports}x " if self.ports > 1 else ""
        over = f" over {ports}{self.link or '25gbe'}" if self.link or hosts > 1 else ""
        return f"{each}{over}" + (f" x {hosts}" if hosts > 1 else "")

    def file(self) -> ClusterFile:
        """A cluster file with one of the hosts."""
        inside = device_record(self.device).inside
        if inside is None and self.count > 1:
            raise InputError(
                f"cluster {self.text!r}: no link between two {self.device} of one host is known",
                hint=f'one in each host: --cluster "{self.written(1, self.count)}", or describe it in a .toml file',
            )
        host = HostEntry(
            name=self.device,
            devices=(DeviceEntry(name=self.device, count=self.count),),
            inside=LinkEntry(name=inside.link if inside else ALONE),
            link=LinkEntry(name=self.link or (inside.link if inside else ALONE)),
            nics=self.ports,
        )
        return ClusterFile(name=self.written(self.count, 1), host=(host,))

    def more(self, devices: int) -> str:
        """Words for a cluster with this number of devices: a fuller host up to eight, then more hosts."""
        if self.hosts == 1 and devices <= 8 and device_record(self.device).inside is not None:
            return self.written(devices, 1)
        return self.written(self.count, -(-devices // self.count))


def parse_hosts_expression(text: str) -> HostsExpression | None:
    """The hosts that a text writes as devices; None if it names no device of the catalog."""
    match = next((found for form in (_HOSTS, _HOSTS_CLOSER) if _device_of(found := form.fullmatch(text.strip()))), None)
    if match is None:
        return None
    several = match["before"] and match["after"]
    count = int(match["before"] or match["after"] or 1)
    hosts = int(match["hosts"] or (match["after"] if several else 1))
    link = link_record(match["link"]).name if match["link"] else None
    written = HostsExpression(text, str(_device_of(match)), count, link, hosts, int(match["ports"] or 1))
    counted = ("devices in a host", count, MOST_DEVICES), ("hosts", hosts, MOST_HOSTS), ("ports", written.ports, 64)
    for what, number, most in counted:
        if not 1 <= number <= most:
            raise InputError(f"cluster {text!r}: got {number} {what}, expected 1 to {most}")
    if several and link is None:
        raise InputError(
            f"cluster {text!r}: the network between its hosts is missing",
            hint=f'name a link: --cluster "{written.written(count, hosts)}"; `paceline catalog links` lists all',
        )
    return written


def _device_of(match: re.Match[str] | None) -> str | None:
    """The device of an expression; "8 hosts of rtx-4090" is not one rtx-4090."""
    device = device_by_alias(match["device"]) if match else None
    return device if match and device and "+" not in match["device"] and not unsaid(match["device"], device) else None
