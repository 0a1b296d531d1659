"""Links by name, from one record each; rates are per direction."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from paceline.catalog.figures import Figure
from paceline.errors import UnknownName
from paceline.spec.cluster import Link
from paceline.spec.fields import Bandwidth, Name, Seconds, SpecModel
from paceline.spec.load import load_spec

__all__ = ["LinkFigures", "LinkRecord", "link", "link_names", "link_record"]

FOLDER = Path(__file__).parent


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
    if name not in _records():
        raise UnknownName("link", name, _records())
    return _records()[name]


def link(name: str) -> Link:
    """The link of this name, as a spec model."""
    figures = link_record(name).figure
    latency = figures.latency.value if figures.latency else 0.0
    return Link(name=name, bandwidth=figures.bandwidth.value, latency=latency)
