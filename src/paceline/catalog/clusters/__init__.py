"""Clusters of the catalog by name, and cluster files of users.

A file lists hosts; devices and links are catalog names, or tables that change or replace catalog entries.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from paceline.catalog.clusters.files import ClusterFile, resolved
from paceline.errors import UnknownName
from paceline.spec.cluster import Cluster
from paceline.spec.load import parse_noun, read_text

__all__ = ["cluster", "cluster_file", "cluster_names"]

FOLDER = Path(__file__).parent


def cluster_names() -> tuple[str, ...]:
    """Names of all clusters of the catalog."""
    return tuple(path.stem for path in sorted(FOLDER.glob("*.toml")))


def cluster(name: str) -> Cluster:
    """The cluster of this name, or of the file at this path if it ends in .toml."""
    return _load(Path(name)) if name.endswith(".toml") else _named(name)


def cluster_file(name: str) -> ClusterFile:
    """The catalog's file of this name, with title and source."""
    path = _path(name)
    return parse_noun(read_text(path), ClusterFile, str(path))


@cache
def _named(name: str) -> Cluster:
    return _load(_path(name))


def _path(name: str) -> Path:
    if name not in cluster_names():
        raise UnknownName("cluster", name, cluster_names())
    return FOLDER / f"{name}.toml"


def _load(path: Path) -> Cluster:
    text = read_text(path)
    return resolved(parse_noun(text, ClusterFile, str(path)), text=text, file=str(path))
