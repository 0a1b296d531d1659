"""Catalog entries as plain documents, for the command line, JSON output and the reference pages."""

from __future__ import annotations

from typing import Any

from paceline.catalog.clusters import cluster, cluster_file, cluster_names, entry_name, is_composed
from paceline.catalog.devices import DeviceRecord, device_by_alias, device_names, device_record, reach_figures
from paceline.catalog.figures import Figure, ShareFigure
from paceline.catalog.frameworks import framework_record, record_names
from paceline.catalog.links import LinkRecord, link_by_alias, link_names, link_record
from paceline.catalog.published import published_networks
from paceline.errors import UnknownName
from paceline.spec.cluster import Cluster
from paceline.spec.fields import TEXT
from paceline.spec.network import LayerCost, Network, layer_costs

__all__ = ["SECTIONS", "describe", "describe_network", "entry_names", "section"]

Document = dict[str, Any]

SECTIONS = {
    "devices": device_names,
    "links": link_names,
    "clusters": cluster_names,
    "frameworks": record_names,
}
"""The sections of the catalog other than networks, with their names."""


def describe_network(network: Network, batch: int) -> Document:
    """Shapes, parameters and costs of every layer and of the network, for a batch, in float32."""
    layers = [_layer(cost, batch) for cost in layer_costs(network)]
    totals = {key: sum(layer[key] for layer in layers) for key in _COUNTED}
    published = published_networks().get(network.name)
    return {
        "name": network.name,
        "input": network.input.model_dump(mode="json"),
        "batch": batch,
        "digest": network.digest,
        **totals,
        "published": published.model_dump(mode="json") if published else None,
        "layers": layers,
    }


_COUNTED = ("parameters", "multiply_adds", "activation_bytes", "gradient_bytes")


def _layer(cost: LayerCost, batch: int) -> Document:
    return {
        "name": cost.name,
        "kind": cost.kind,
        "shape": list(cost.shape),
        "parameters": cost.parameters,
        "multiply_adds": cost.macs * batch,
        "activation_bytes": cost.activation_bytes(batch),
        "gradient_bytes": cost.gradient_bytes(),
    }


def section(name: str) -> list[Document]:
    """All entries of one section of the catalog."""
    if name not in SECTIONS:
        raise UnknownName("part of the catalog", name, SECTIONS)
    return [describe(entry) for entry in SECTIONS[name]()]


def describe(name: str) -> Document:
    """One device, link, cluster (also "4x t4"), framework or cluster file, with every figure and its source."""
    if name.endswith(".toml") or is_composed(name):
        return _cluster(cluster(name))
    if (link := link_by_alias(name)) is not None:
        return _with_figures("link", link_record(link))
    if entry_name(name) is None and device_by_alias(name) is not None:
        record = device_record(name)
        return _with_figures("device", record, reach=reach_figures(record))
    if entry_name(name) is not None:
        given = cluster_file(name)
        return {**_cluster(cluster(name)), "title": given.title, "source": given.source}
    if name in record_names():
        return {"section": "framework", **framework_record(name).model_dump(mode="json", context=TEXT)}
    raise UnknownName("entry of the catalog", name, entry_names(), otherwise="`paceline catalog` lists all")


def entry_names() -> tuple[str, ...]:
    """The sections and all their entries."""
    return (*SECTIONS, *(entry for names in SECTIONS.values() for entry in names()))


def _cluster(cluster: Cluster) -> Document:
    """Hosts with their devices and links; equal devices of a host are listed once with their number."""
    hosts = []
    for host in cluster.hosts:
        names = [device.name for device in host.devices]
        counted = [{"name": name, "count": names.count(name)} for name in dict.fromkeys(names)]
        links = {"inside": host.inside.name, "link": host.link.name, "nics": host.nics}
        hosts.append({"name": host.name, "devices": counted, **links})
    return {"section": "cluster", "name": cluster.name, "num_devices": cluster.num_devices, "hosts": hosts}


def _with_figures(kind: str, record: DeviceRecord | LinkRecord, **more: Any) -> Document:
    data = record.model_dump(mode="json", context=TEXT, exclude={"figure"})
    return {"section": kind, **data, "figures": _figures("", {**dict(record.figure), **more})}


def _figures(prefix: str, given: dict[str, Any]) -> list[Document]:
    """All figures of a nested table, named by their path."""
    figures = []
    for name, value in given.items():
        place = f"{prefix}.{name}" if prefix else name
        if isinstance(value, Figure | ShareFigure):
            figures.append({"figure": place, **value.model_dump(mode="json", context=TEXT)})
        elif isinstance(value, dict):
            figures += _figures(place, value)
    return figures
