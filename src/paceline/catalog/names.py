"""Names of the catalog and what they mean, gathered for the loader of studies."""

from __future__ import annotations

from paceline.catalog.clusters import cluster, cluster_names
from paceline.catalog.frameworks import framework, framework_names
from paceline.catalog.networks import network, network_names
from paceline.spec.study import Known

__all__ = ["known"]


def known() -> Known:
    """Every name that a study may use."""
    names = {"networks": network_names(), "clusters": cluster_names(), "frameworks": framework_names()}
    return Known(network=network, cluster=cluster, framework=framework, names=names)
