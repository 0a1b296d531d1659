"""What a rank's group holds from the syncer, for benchmarks that count how often each sample was used."""

from __future__ import annotations

from typing import Any

__all__ = ["syncer_of"]


def syncer_of(pace: Any) -> Any:
    """The group's client of the syncer, with its lease and versions; None where there is one group."""
    return pace._mode._client if pace._mode.synced else None
