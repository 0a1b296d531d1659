"""Paceline in scripts that use Hugging Face accelerate.

accelerator = Accelerator(log_with=[PacelineTracker(run="finetune")]); accelerator.init_trackers("project"); ...
"""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from paceline.integrations.watching import Watch

__all__ = ["PacelineTracker"]


class PacelineTracker(GeneralTracker):
    """Watches from `init_trackers()` to `end_training()` on every rank; takes the options of `paceline.watch`."""

    name = "paceline"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run: str = "watched", **options: Any) -> None:
        super().__init__()
        self._options = {"name": run, **options}
        self.watch: Watch | None = None

    @property
    def tracker(self) -> Watch | None:
        """The object of `accelerator.get_tracker("paceline", unwrap=True)`."""
        return self.watch

    def start(self) -> None:
        """Install the hooks."""
        self.watch = Watch(**self._options).__enter__()

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Nothing: Paceline detects the model itself."""

    def log(self, values: dict[str, Any], step: int | None = None, **rest: Any) -> None:
        """Nothing: Paceline times the steps itself."""

    def finish(self) -> None:
        """Store the run, and print the verdict."""
        if self.watch is not None:
            self.watch.__exit__(None, None, None)
