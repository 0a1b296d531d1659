"""Links by name, from one record each; rates are per direction."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from paceline.catalog.figures import Figure
from paceline.errors import UnknownName
from paceline.spec.cluster import Link
from paceline.spec.fields import Bandwidth, Name, Seconds, SpecModel
from paceline.spec.load import load_spec

__all__ = ["LinkFigures", "LinkRecord", "link", "link_by_alias", "link_names", "link_record"]

FOLDER = Path(__file__).parent


OTHERWISE = "`paceline catalog links` lists all; a .toml file states another with its bandwidth"
OTHER_NAMES = {
    "gigabit": "1gbe", "ndr200": "infiniband-hdr", "hdr200": "infiniband-hdr", "ndr400": "infiniband-ndr",
    "slingshot": "slingshot-11", "opa": "omni-path", "omnipath": "omni-path",
}  # fmt: skip
"""What people call links otherwise."""
ON_INSTANCES = "EFA has the rate of its instance: name the instance, such as p4d.24xlarge x 2, or the rate: 4x 100gbe"
_NOISE = {"infiniband", "ib", "mellanox", "nvidia", "cray", "hpe", "intel", "network", "interconnect"}
_ETHERNET = {"ethernet", "eth", "roce", "rocev2", "rdma", "tcp"}
_ETHERNET_RATE = re.compile(r"(\d+)\s*(?:gbe|gige|g|gb|gbit|gbps|gigabit)")


class LinkFigures(SpecModel):
    """Figures of a link."""

    bandwidth: Figure[Bandwidth]
    """Nominal rate per direction; programs reach less."""
    latency: Figure[Seconds] | None = None
    """One-way latency of an empty message; by default zero."""


class LinkRecord(SpecModel):
    """A link with its figures and their sources."""

    name: Name
    title: Name
    figure: LinkFigures


@cache
def _records() -> dict[str, LinkRecord]:
    records = [load_spec(path, LinkRecord) for path in sorted(FOLDER.glob("*.toml"))]
    return {record.name: record for record in records}


def link_names() -> tuple[str, ...]:
    """Names of all links."""
    return tuple(_records())


def link_record(name: str) -> LinkRecord:
    """The record of a link, with sources."""
    known = link_by_alias(name)
    if known is None:
        raise UnknownName("link", name, _records(), otherwise=ON_INSTANCES if name.lower() == "efa" else OTHERWISE)
    return _records()[known]


def link_by_alias(name: str) -> str | None:
    """The catalog name of a link by what people call it: "InfiniBand NDR", "25 GbE", "100G RoCE"; None if unknown."""
    if name in _records():
        return name
    plain = name.replace("/s", "").lower() if "B/s" not in name else name  # 100 GB/s is no rate of Ethernet
    words = [word for word in re.split(r"[^a-z0-9]+", plain.lower()) if word]
    rest = [word for word in words if word not in _NOISE | _ETHERNET]
    text, joined = " ".join(rest), "-".join(rest)
    rate = _ETHERNET_RATE.fullmatch(text) if not set(words) & _NOISE and "B/s" not in name else None
    pcie = re.fullmatch(r"pcie(?: express)? ?(?:gen ?)?(\d)(?: 0)?(?: ?x16)?", text)
    tried = (
        OTHER_NAMES.get(joined),
        f"{rate[1]}gbe" if rate else None,
        joined,
        f"infiniband-{joined}",
        "-".join(words),
        "".join(rest),
        f"pcie{pcie[1]}-x16" if pcie else None,
    )
    return next((known for known in tried if known in _records()), None)


def link(name: str) -> Link:
    """The link of this name, as a spec model."""
    record = link_record(name)
    figures = record.figure
    latency = figures.latency.value if figures.latency else 0.0
    return Link(name=record.name, bandwidth=figures.bandwidth.value, latency=latency)
