"""Paceline in the Trainer of Lightning.

trainer = Trainer(..., callbacks=[PacelineLightningCallback(name="finetune")])
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from paceline.integrations.watching import Watch

__all__ = ["PacelineLightningCallback"]


class PacelineLightningCallback(Callback):
    """Watches `trainer.fit()`; takes the options of `paceline.watch`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.watch: Watch | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Install the hooks."""
        self.watch = Watch(**self._options).__enter__()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Store the run, and print the verdict."""
        self._leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Store the steps until the exception."""
        self._leave()

    def _leave(self) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.__exit__(None, None, None)
