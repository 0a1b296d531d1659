"""Frameworks of other distributions: entry points of the group `paceline.frameworks`, each with a record beside it.

    [project.entry-points."paceline.frameworks"]
    plain = "paceline_plain.plugin:framework"

The record of the framework `plain` is the file `plain.toml` in the top-level package, here `paceline_plain`. Names and
records are read without importing anything; the object itself is loaded when the framework is measured.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from paceline.errors import PluginError

__all__ = ["GROUP", "PluginEntry", "plugin_entries", "plugin_entry"]

GROUP = "paceline.frameworks"


@dataclass(frozen=True)
class PluginEntry:
    """One framework that a distribution offers."""

    name: str
    distribution: str
    """Name and version."""
    point: EntryPoint

    @property
    def package(self) -> Path:
        """The folder of the top-level package, which holds the record and the worker."""
        top = self.point.module.partition(".")[0]
        spec = importlib.util.find_spec(top)
        if spec is None or not spec.submodule_search_locations:
            raise self.broken(f"package {top!r} is not there", hint=f"reinstall {self.distribution}")
        return Path(next(iter(spec.submodule_search_locations)))

    @property
    def record_path(self) -> Path:
        """The file of the record."""
        path = self.package / f"{self.name}.toml"
        if not path.is_file():
            raise self.broken(f"its record {path} is not there", hint=f"ship {path.name} as data of the package")
        return path

    def broken(self, reason: str, *, hint: str) -> PluginError:
        """The error that says which distribution is to blame."""
        return PluginError(f"framework {self.name!r} of distribution {self.distribution}: {reason}", hint=hint)


@cache
def plugin_entries() -> dict[str, tuple[PluginEntry, ...]]:
    """Everything that is offered, by name; a name with several entries cannot be used."""
    offered: dict[str, list[PluginEntry]] = defaultdict(list)
    for point in entry_points(group=GROUP):
        distribution = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "unknown"
        offered[point.name].append(PluginEntry(point.name, distribution, point))
    return {name: tuple(entries) for name, entries in sorted(offered.items())}


def plugin_entry(name: str, *, built_in: bool) -> PluginEntry | None:
    """The entry of a name, none if no distribution offers it; a clash of names is an error."""
    entries = plugin_entries().get(name, ())
    if not entries:
        return None
    sources = [*(["Paceline itself"] if built_in else []), *(entry.distribution for entry in entries)]
    if len(sources) > 1:
        raise PluginError(
            f"framework {name!r} is offered by {' and by '.join(sources)}",
            hint=f"uninstall one of them: pip uninstall {entries[-1].distribution.split()[0]}",
        )
    return entries[0]
