"""Installs the hooks of `paceline watch` in a Python process, as soon as the process imports a framework.

Python 3.9 and the standard library only, because this runs at the start of every Python process of the watched command.
"""

from __future__ import annotations

import atexit
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from paceline import variables
from paceline.runtime.watch.recorder import Recorder

__all__ = ["arm", "armed"]

_armed: list[Recorder] = []


def armed() -> Recorder | None:
    """The recorder of this process; None if `paceline watch` has installed no hooks."""
    return _armed[-1] if _armed else None


def arm() -> None:
    """Prepare the hooks in this process, if `paceline watch` started it."""
    folder = os.environ.get(variables.WATCH)
    if folder and os.path.isdir(folder):
        sys.meta_path.insert(0, _AfterImport(folder))


class _AfterImport(importlib.abc.MetaPathFinder):
    """An import finder that delegates to the other finders, and installs the hooks after the import of a framework."""

    def __init__(self, folder: str) -> None:
        self._folder, self._wanted = folder, {"torch", "keras", "jax", "tensorflow"}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of a framework, with a loader that installs the hooks; None for other modules."""
        if fullname not in self._wanted:
            return None
        self._wanted.discard(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._folder)
        return spec


class _Telling(importlib.abc.Loader):
    """A loader that runs the loader of a framework, and then installs the hooks."""

    def __init__(self, loader: Any, folder: str) -> None:
        self._loader, self._folder = loader, folder

    def create_module(self, spec: Any) -> Any:
        """Delegate to the framework's loader."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Delegate to the framework's loader, and then install the hooks."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            _install(self._folder, module)
        except Exception as error:  # noqa: BLE001
            sys.stderr.write(f"paceline watch: this process is not watched: {type(error).__name__}: {error}\n")


def _install(folder: str, module: ModuleType) -> None:
    if not _armed:
        every = os.environ.get(variables.WATCH_EVERY, "1")
        _armed.append(Recorder(folder, int(every) if every.isdecimal() else 1))
        atexit.register(_armed[0].close)
    if module.__name__ == "torch":
        from paceline.runtime.watch.hooks import Hooks

        Hooks(_armed[0])
        return
    from paceline.runtime.watch.graphs import GraphHooks, KerasHooks

    if module.__name__ == "keras":
        KerasHooks(_armed[0], module)
    elif module.__name__ == "jax":
        GraphHooks(_armed[0], "jax/data_parallel", module).jitted(module, "jit")
    else:
        GraphHooks(_armed[0], "tensorflow/multiworker", module).called(type(module.function(lambda: None)))
