"""Every framework that can be measured, in one table."""

from __future__ import annotations

from paceline.bench.frameworks.paceline.adapter import Paceline
from paceline.bench.frameworks.pytorch.adapter import PyTorch
from paceline.bench.job import Adapter
from paceline.errors import Unsupported

__all__ = ["ADAPTERS", "adapter_of"]

ADAPTERS: dict[str, Adapter] = {adapter.name: adapter for adapter in (Paceline(), PyTorch())}


def adapter_of(framework: str) -> Adapter:
    """The adapter of `framework` or `framework/mode`."""
    name = framework.split("/")[0]
    if name not in ADAPTERS:
        raise Unsupported(f"{name} cannot be measured yet", hint=f"these can: {', '.join(sorted(ADAPTERS))}")
    return ADAPTERS[name]
