"""Arms a Python process that `paceline watch` started: hooks go into PyTorch as soon as the process imports it.

Python 3.9 and the standard library only: this runs at the start of every Python process of the watched command.
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
    """The recorder of this process, if `paceline watch` armed it."""
    return _armed[-1] if _armed else None


def arm() -> None:
    """Watch this process, if `paceline watch` asked for it."""
    folder = os.environ.get(variables.WATCH)
    if folder and os.path.isdir(folder):
        sys.meta_path.insert(0, _AfterTorch(folder))


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as the other finders do, and installs the hooks once its import is complete."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The spec of torch with a loader that tells us; nothing for other modules."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader, self._folder)
        return spec


class _Telling(importlib.abc.Loader):
    """The loader of torch, and then the hooks."""

    def __init__(self, loader: Any, folder: str) -> None:
        self._loader, self._folder = loader, folder

    def create_module(self, spec: Any) -> Any:
        """As the loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does, and then install the hooks."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            _install(self._folder)
        except Exception as error:  # noqa: BLE001
            sys.stderr.write(f"paceline watch: this process is not watched: {type(error).__name__}: {error}\n")


def _install(folder: str) -> None:
    from paceline.runtime.watch.hooks import Hooks

    every = os.environ.get(variables.WATCH_EVERY, "1")
    recorder = Recorder(folder, int(every) if every.isdigit() else 1)
    Hooks(recorder)
    _armed.append(recorder)
    atexit.register(recorder.close)
