"""Availability of the frameworks of the catalog on this machine: state and requirements."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.adapters import ADAPTERS
from paceline.bench.environments import RECIPES, find_environment, missing_programs
from paceline.catalog.frameworks import FrameworkRecord, framework_names, framework_record

__all__ = ["Availability", "availability", "environments_of"]


@dataclass(frozen=True)
class Availability:
    """One framework and its state on this machine."""

    name: str
    title: str
    status: str
    """`ready`, `installable` or `unavailable`."""
    reason: str
    """Why it is not ready, and further notes."""
    modes: tuple[str, ...]
    environments: tuple[str, ...]
    labels: tuple[str, ...]
    """Notes on all its numbers."""


def availability() -> list[Availability]:
    """All frameworks of the catalog, by name."""
    names = sorted({name.split("/")[0] for name in framework_names()})
    return [_state(framework_record(name)) for name in names]


def environments_of(name: str) -> tuple[str, ...]:
    """Names of the environments that a framework, or one of its modes, needs."""
    short, _, mode = name.partition("/")
    adapter = ADAPTERS[short]
    modes = [mode] if mode else list(framework_record(short).mode)
    return tuple(dict.fromkeys(adapter.environment(each) for each in modes))


def _state(record: FrameworkRecord) -> Availability:
    adapter = ADAPTERS.get(record.name)
    modes = tuple(record.mode)
    if adapter is None:
        reason = "no adapter runs it; its policy record serves the model"
        return Availability(record.name, record.title, "unavailable", reason, modes, (), ())
    needed = environments_of(record.name)
    labels = tuple(getattr(adapter, "labels", ()))
    status, reason = _judge(needed)
    return Availability(record.name, record.title, status, reason, modes, needed, labels)


def _judge(needed: tuple[str, ...]) -> tuple[str, str]:
    lacking = [name for name in needed if find_environment(name) is None]
    notes = "; ".join(RECIPES[name].about for name in needed if RECIPES[name].about)
    if not lacking:
        return "ready", notes
    programs = sorted({program for name in lacking for program in missing_programs(name)})
    if programs:
        return "unavailable", f"needs {', '.join(programs)} on this machine to be installed"
    return "installable", notes or f"not installed yet: {', '.join(lacking)}"
