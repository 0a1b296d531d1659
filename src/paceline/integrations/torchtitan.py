"""Paceline in torchtitan, in the place of its profiler, which is around the training loop of every rank.

trainer_config.profiler = PacelineProfiler.Config(run="pretrain", every=20)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtitan.tools.profiler import Profiler

from paceline.integrations.watching import Watch

__all__ = ["PacelineProfiler"]


class PacelineProfiler(Profiler):
    """Watches the training loop, in addition to torchtitan's own profiler if it is enabled."""

    @dataclass(kw_only=True, slots=True)
    class Config(Profiler.Config):
        """The options of torchtitan's profiler, and those of `paceline.watch`."""

        run: str = "watched"
        store: str | None = None
        every: int = 1
        quiet: bool = False

    def __init__(self, config: Config, **given: Any) -> None:
        super().__init__(config, **given)
        self.watch = Watch(name=config.run, store=config.store, every=config.every, quiet=config.quiet)

    def __enter__(self) -> PacelineProfiler:
        """Install the hooks."""
        self.watch.__enter__()
        super().__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, at: Any) -> None:
        """Store the run, and print the verdict."""
        super().__exit__(kind, error, at)
        self.watch.__exit__(kind, error, at)
