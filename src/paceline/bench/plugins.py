"""Frameworks of other distributions, loaded when they are used: an adapter, and recipes for its environments.

Entry points are read by `paceline.catalog.frameworks`; docs/how-to/add-a-framework.md has a whole example.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.bench.job import Adapter
from paceline.bench.recipes import Recipe
from paceline.bench.recipes.table import RECIPES
from paceline.catalog.frameworks import PluginEntry, is_built_in, plugin_entries, plugin_entry
from paceline.errors import PluginError

__all__ = ["FrameworkPlugin", "load_plugin", "plugin_packages", "plugin_recipes"]

IMPORT_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Exceptions that a third-party module may raise during import."""


@dataclass(frozen=True)
class FrameworkPlugin:
    """What an entry point of the group `paceline.frameworks` names."""

    adapter: Adapter
    recipes: tuple[Recipe, ...] = ()
    """Environments of the plug-in; an adapter may also name one of Paceline's, such as `pytorch`."""


@cache
def load_plugin(name: str, *, built_in: bool) -> FrameworkPlugin | None:
    """The plug-in of a name, none if no distribution offers it; one that cannot be used is an error."""
    entry = plugin_entry(name, built_in=built_in)
    return _loaded(entry) if entry is not None else None


def _loaded(entry: PluginEntry) -> FrameworkPlugin:
    try:
        plugin = entry.point.load()
    except IMPORT_ERRORS as error:
        reason = f"loading {entry.point.value} raised {type(error).__name__}: {error}"
        raise entry.broken(reason, hint=f"correct or uninstall {entry.distribution}") from error
    if not isinstance(plugin, FrameworkPlugin):
        raise entry.broken(f"{entry.point.value} is no FrameworkPlugin", hint="make it one")
    taken = [recipe.name for recipe in plugin.recipes if recipe.name in RECIPES]
    if taken:
        raise entry.broken(f"environment {taken[0]!r} is Paceline's own", hint="give its recipe another name")
    if plugin.adapter.name != entry.name:
        hint = f"call the adapter {entry.name!r}, like its entry point"
        raise entry.broken(f"its adapter is called {plugin.adapter.name!r}", hint=hint)
    return plugin


def plugin_recipes() -> dict[str, Recipe]:
    """The recipes of all plug-ins that can be used."""
    recipes: dict[str, Recipe] = {}
    for name in plugin_entries():
        with contextlib.suppress(PluginError):
            plugin = load_plugin(name, built_in=is_built_in(name))
            recipes |= {recipe.name: recipe for recipe in plugin.recipes} if plugin is not None else {}
    return recipes


def plugin_packages(framework: str) -> tuple[Path, ...]:
    """Packages that the workers of `framework/mode` import in addition to Paceline."""
    name = framework.split("/")[0]
    entry = plugin_entry(name, built_in=is_built_in(name))
    return (entry.package,) if entry is not None else ()
