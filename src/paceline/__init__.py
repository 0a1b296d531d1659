"""Paceline: a performance laboratory for distributed deep learning, and the training runtime that grows out of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.measurements.frame import load_runs

__all__ = ["__version__", "load_runs"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load what needs DuckDB and Arrow only when it is used, so that importing the package stays light."""
    if name == "load_runs":
        from paceline.measurements.frame import load_runs

        return load_runs
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
