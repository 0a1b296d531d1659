"""Training with large batches: how large is useful, how learning rates follow, and optimizers with layer-wise rates.

`from paceline.runtime.large import LinearScaling, Lars, Lamb, NoiseScale`; names are loaded on
first use, since all but the last need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.runtime.large.noise import NoiseScale as NoiseScale
    from paceline.runtime.large.optimizers import Lamb as Lamb
    from paceline.runtime.large.optimizers import Lars as Lars
    from paceline.runtime.large.optimizers import LinearScaling as LinearScaling

_HOMES = {"Lamb": "optimizers", "Lars": "optimizers", "LinearScaling": "optimizers", "NoiseScale": "noise"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline.runtime.large' has no attribute {name!r}")
    return getattr(importlib.import_module(f"paceline.runtime.large.{_HOMES[name]}"), name)
