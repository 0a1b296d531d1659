"""A step that is being tried, and what is kept of it once it is committed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Attempt", "StepRecord", "chunked"]


@dataclass(frozen=True)
class StepRecord:
    """What one committed step was like on this rank."""

    step: int
    view: int
    samples: int
    """Of all ranks together."""
    shares: tuple[int, ...]
    measured_seconds: float
    """From the end of the step before to the end of this one."""
    measured_compute: float
    """Until this rank's gradients were computed."""


@dataclass
class Attempt:
    """A step that is being tried."""

    size: int
    shares: tuple[int, ...]
    chunks: list[np.ndarray]
    began: float
    done: int = 0


def chunked(indices: np.ndarray, chunk: int | None) -> list[np.ndarray]:
    """A rank's samples in parts that fit into its memory."""
    if len(indices) == 0:
        return []
    return [indices] if chunk is None else np.array_split(indices, -(-len(indices) // chunk))
