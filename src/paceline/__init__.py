"""Paceline: performance measurement, prediction and training for distributed deep learning.

    import paceline

    paceline.predict(network="resnet50", cluster="dgx-1", batch=64, devices=[1, 8])

The names below are loaded on first use; `paceline.api` documents them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.api import capture, explain, extrapolate, load_runs, load_trace, plan, predict
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
    "plan",
    "predict",
]

__version__ = "0.1.0"

_HOMES = {"Settings": "paceline.runtime.settings", "join": "paceline.runtime.pace"}
"""The modules of names that are not in `paceline.api`."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "paceline.api")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
