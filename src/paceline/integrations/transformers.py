"""Paceline in the Trainer of Hugging Face transformers.

trainer = Trainer(..., callbacks=[PacelineCallback(name="finetune")])
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from paceline.integrations.watching import Watch

__all__ = ["PacelineCallback"]


class PacelineCallback(TrainerCallback):
    """Watches `trainer.train()`; takes the options of `paceline.watch`."""

    def __init__(self, **options: Any) -> None:
        self._options = options
        self.watch: Watch | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Install the hooks."""
        self.watch = Watch(**self._options).__enter__()

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Store the run, and print the verdict."""
        if self.watch is not None:
            self.watch.__exit__(None, None, None)
