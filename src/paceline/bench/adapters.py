"""Every framework that can be measured, in one table, and what can run here; plug-ins add to the table."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.bench.environments import find_environment, missing_programs, recipe_of
from paceline.bench.frameworks.adapters import (
    DeepSpeed,
    Horovod,
    Jax,
    Keras,
    Mxnet,
    Paddle,
    PyTorch,
    TensorFlow,
)
from paceline.bench.frameworks.adapters_launch import Caffe, CaffeMpi, Chainer, Cntk, OwnScript, Paceline, Singa
from paceline.bench.job import Adapter
from paceline.bench.plugins import load_plugin
from paceline.catalog.frameworks import framework_record, is_built_in, plugin_entries, record_names
from paceline.errors import PluginError, Unsupported

__all__ = ["ADAPTERS", "Availability", "adapter_of", "availability", "environments_of", "missing_environments"]

BUILT_IN = "built in"

_TABLE: tuple[Adapter, ...] = (
    PyTorch(),
    TensorFlow(),
    Jax(),
    Mxnet(),
    Keras(),
    Horovod(),
    DeepSpeed(),
    Paddle(),
    Chainer(),
    Cntk(),
    Caffe(),
    CaffeMpi(),
    Singa(),
    OwnScript(),
    Paceline(),
)
ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in _TABLE}


def adapter_of(framework: str) -> Adapter:
    """The adapter of `framework` or `framework/mode`, Paceline's own or a plug-in's; a name clash is an error."""
    name = framework.split("/")[0]
    plugin = load_plugin(name, built_in=name in ADAPTERS)
    if plugin is not None:
        return plugin.adapter
    if name not in ADAPTERS:
        raise Unsupported(f"no adapter measures {name}", hint=f"measurable frameworks: {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[name]


@dataclass(frozen=True)
class Availability:
    """One framework and its state on this machine."""

    name: str
    title: str
    status: str
    """`ready`, `installable` or `unavailable`."""
    reason: str
    """Why it is not ready, and further notes."""
    modes: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Notes on all its numbers."""
    origin: str = BUILT_IN
    """The distribution that it comes from."""


def availability() -> list[Availability]:
    """All frameworks of the catalog and all plug-ins, by name; a plug-in that cannot be used has a reason."""
    names = sorted({*record_names(), *plugin_entries()})
    return [_state(name) for name in names]


def environments_of(name: str) -> tuple[str, ...]:
    """Names of the environments that a framework, or one of its modes, needs."""
    short, _, mode = name.partition("/")
    adapter = adapter_of(short)
    modes = [mode] if mode else list(framework_record(short).mode)
    return tuple(dict.fromkeys(adapter.environment(each) for each in modes))


def missing_environments(name: str) -> list[str]:
    """Environments that a framework, or one of its modes, needs and that are not installed."""
    return [one for one in environments_of(name) if find_environment(one) is None]


def _state(name: str) -> Availability:
    origin = BUILT_IN if is_built_in(name) else ""
    origin = " and ".join([*([origin] if origin else []), *(e.distribution for e in plugin_entries().get(name, ()))])
    try:
        record, adapter = framework_record(name), adapter_of(name)
    except PluginError as error:
        return Availability(name, name, "unavailable", error.message, origin=origin)
    except Unsupported:
        record = framework_record(name)
        reason = "no adapter runs it; its policy record serves the model"
        return Availability(name, record.title, "unavailable", reason, tuple(record.mode), origin=origin)
    needed = environments_of(name)
    status, reason = _judge(needed)
    labels = tuple(getattr(adapter, "labels", ()))
    return Availability(name, record.title, status, reason, tuple(record.mode), needed, labels, origin)


def _judge(needed: tuple[str, ...]) -> tuple[str, str]:
    lacking = [name for name in needed if find_environment(name) is None]
    notes = "; ".join(recipe_of(name).about for name in needed if recipe_of(name).about)
    if not lacking:
        return "ready", notes
    programs = sorted({program for name in lacking for program in missing_programs(name)})
    if programs:
        return "unavailable", f"needs {', '.join(programs)} on this machine to be installed"
    return "installable", notes or f"not installed yet: {', '.join(lacking)}"
