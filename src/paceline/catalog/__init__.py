"""Data shipped with the product: networks, devices, links, clusters, frameworks, published figures."""

from paceline.catalog.clusters import cluster, cluster_names
from paceline.catalog.devices import device, device_names
from paceline.catalog.frameworks import FrameworkRecord, Policy, framework, framework_names, policy, resolve
from paceline.catalog.links import link, link_names
from paceline.catalog.networks import network, network_names
from paceline.spec.study import Catalog

__all__ = [
    "FrameworkRecord",
    "Policy",
    "cluster",
    "cluster_names",
    "device",
    "device_names",
    "framework",
    "framework_names",
    "link",
    "link_names",
    "network",
    "network_names",
    "policy",
    "resolve",
    "shipped_catalog",
]


def shipped_catalog() -> Catalog:
    """The lookup of all names that a study may use."""
    names = {"networks": network_names(), "clusters": cluster_names(), "frameworks": framework_names()}
    return Catalog(network=network, cluster=cluster, framework=framework, names=names)
