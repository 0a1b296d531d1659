"""Paceline: a performance laboratory for distributed deep learning, and the training runtime that grows out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

__all__ = ["__version__", "load_runs"]

__version__ = "0.1.0"


def load_runs(store: Path | str | None = None, *, study: str | None = None, campaign: str | None = None) -> pa.Table:
    """One row per stored launch as an Arrow table; `.to_pandas()` makes a data frame. See `measurements.frame`."""
    from paceline.measurements import frame

    return frame.load_runs(store, study=study, campaign=campaign)
