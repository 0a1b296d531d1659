"""Paceline in the workers of Ray Train.

trainer = TorchTrainer(watched_loop(train_loop_per_worker, name="finetune"), scaling_config=...)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.integrations.watching import Watch
from paceline.measurements.store import default_store

__all__ = ["watched_loop"]


def watched_loop(train_loop_per_worker: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The loop of a worker, watched on every rank; takes the options of `paceline.watch`.

    Workers run in separate folders, so the store is resolved in this process; with several hosts it must be on shared
    storage.
    """
    store = str(Path(options.pop("store", None) or default_store()).absolute())

    @functools.wraps(train_loop_per_worker)  # Ray inspects the signature: a loop may take a configuration
    def loop(*given: Any, **named: Any) -> Any:
        with Watch(store=store, **options):
            return train_loop_per_worker(*given, **named)

    return loop
