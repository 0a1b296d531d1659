"""Straight lines through cases of several batches: what does not depend on the batch, and what a sample takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["drawn_lines", "draws", "line_through"]

Floats = NDArray[np.float64]
DRAWS = 1000


def line_through(batches: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Fixed part and time of a sample, of each row of seconds; no sample is free."""
    centred = batches - batches.mean()
    slope = np.maximum(0.0, (seconds * centred).sum(axis=-1) / (centred**2).sum())
    return seconds.mean(axis=-1) - slope * batches.mean(), slope


def draws(samples: Sequence[Sequence[float]], seed: int = 0) -> Floats:
    """One launch of each case drawn at random, again and again: a row for each draw."""
    random = np.random.default_rng(seed)
    return np.stack([random.choice(np.asarray(sample), size=DRAWS) for sample in samples], axis=-1)


def drawn_lines(batches: Floats, samples: Sequence[Sequence[float]]) -> tuple[Floats, Floats]:
    """Lines through launches that are drawn at random, to see how far they spread."""
    return line_through(batches, draws(samples))
