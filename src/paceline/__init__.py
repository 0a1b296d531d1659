"""Paceline: performance measurement, prediction and training for distributed deep learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from paceline.runtime.capture import Capture

__all__ = ["__version__", "capture", "load_runs"]

__version__ = "0.1.0"


def load_runs(store: Path | str | None = None, *, study: str | None = None, campaign: str | None = None) -> pa.Table:
    """One row per stored launch as an Arrow table; `.to_pandas()` makes a data frame. See `measurements.tables`."""
    from paceline.measurements.tables import launch_table

    return launch_table(store, study=study, campaign=campaign)


def capture(
    model: Any, optimizer: Any, *, path: Path | str | None = None, name: str | None = None, batch: int | None = None
) -> Capture:
    """Profile the steps of a `with` block of any PyTorch loop, for `paceline predict --profile`. Needs torch."""
    from paceline.runtime.capture import Capture

    return Capture(model, optimizer, path=path, name=name, batch=batch)
