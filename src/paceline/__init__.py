"""Paceline: performance measurement, prediction and training for distributed deep learning.

    import paceline

    paceline.predict(network="resnet50", cluster="dgx-1", batch=64, devices=[1, 8])

The names below are loaded on first use; `paceline.api` documents them.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

TYPE_CHECKING = False  # of `typing`, whose import would take most of the time before Ctrl-C is heeded
if TYPE_CHECKING:
    from typing import Any

    from paceline.api import capture, explain, extrapolate, load_runs, load_trace, outline, plan, predict
    from paceline.integrations.watching import watch
    from paceline.runtime.group.shards import shard_mesh
    from paceline.runtime.pace import join
    from paceline.runtime.settings import Settings

__all__ = [
    "Settings",
    "__version__",
    "capture",
    "explain",
    "extrapolate",
    "join",
    "load_runs",
    "load_trace",
    "outline",
    "plan",
    "predict",
    "shard_mesh",
    "watch",
]

__version__ = "0.1.0"

_HOMES = {
    "Settings": "paceline.runtime.settings",
    "join": "paceline.runtime.pace",
    "shard_mesh": "paceline.runtime.group.shards",
    "watch": "paceline.integrations.watching",
}
"""The modules of names that are not in `paceline.api`."""


class _FrontDoor(ModuleType):
    """This package, with `explain` bound to the function even after the subpackage of that name was imported."""

    @property
    def explain(self) -> Any:
        """The function of `paceline.api`."""
        return _load("explain")

    @explain.setter
    def explain(self, module: ModuleType) -> None:
        """An import of the subpackage binds its name here; `from paceline.explain import ...` does not need that."""


sys.modules[__name__].__class__ = _FrontDoor


def __getattr__(name: str) -> Any:
    if name == "keras":
        return importlib.import_module("paceline.keras")
    if name not in __all__:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return _load(name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _load(name: str) -> Any:
    try:
        return getattr(importlib.import_module(_HOMES.get(name, "paceline.api")), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from paceline.errors import missing_extra

        raise missing_extra("torch", "torch") from None
