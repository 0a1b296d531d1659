"""Sets of time: unions of very many intervals in bounded memory, and the split of a window between phases."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Cover", "Division", "Floats", "Gathering", "divide"]

Floats = NDArray[np.float64]
PENDING = 1 << 19
"""Intervals that are added before they are merged."""
MOST = 1 << 21
"""Merged intervals that are kept; beyond, the shortest half of the gaps is closed."""


@dataclass(frozen=True)
class Cover:
    """Disjoint intervals in order."""

    starts: Floats
    ends: Floats

    def within(self, begin: float, end: float) -> Cover:
        """The part between two times."""
        first = int(np.searchsorted(self.ends, begin, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left"))
        starts, ends = self.starts[first:last], self.ends[first:last]
        return Cover(np.clip(starts, begin, end), np.clip(ends, begin, end))

    def holds(self, times: Floats) -> NDArray[np.bool_]:
        """Whether each time is inside an interval."""
        if not self.starts.size:
            return np.zeros(times.shape, dtype=bool)
        place = np.searchsorted(self.starts, times, side="right") - 1
        return (place >= 0) & (times < self.ends[np.maximum(place, 0)])

    @property
    def seconds(self) -> float:
        """Length of all intervals."""
        return float(np.sum(self.ends - self.starts))


EMPTY = Cover(np.empty(0), np.empty(0))


class Gathering:
    """The union of intervals that arrive in any order."""

    def __init__(self) -> None:
        self._starts, self._ends = array("d"), array("d")
        self._merged = EMPTY
        self.closed_s = 0.0
        """Length of the gaps that were closed to bound memory; zero unless there are millions of intervals."""

    def add(self, start: float, end: float) -> None:
        """Add one interval."""
        self._starts.append(start)
        self._ends.append(end)
        if len(self._starts) >= PENDING:
            self._merge()

    def extend(self, starts: Floats, ends: Floats) -> None:
        """Add many intervals at once."""
        for first in range(0, starts.size, PENDING):
            self._starts.frombytes(starts[first : first + PENDING].tobytes())
            self._ends.frombytes(ends[first : first + PENDING].tobytes())
            self._merge()

    def cover(self) -> Cover:
        """The union of all intervals so far."""
        if self._starts:
            self._merge()
        return self._merged

    def _merge(self) -> None:
        starts = np.concatenate([self._merged.starts, np.frombuffer(self._starts)])
        ends = np.concatenate([self._merged.ends, np.frombuffer(self._ends)])
        self._starts, self._ends = array("d"), array("d")
        order = np.argsort(starts, kind="stable")
        starts, ends = starts[order], np.maximum.accumulate(ends[order])
        self._merged = _joined(starts, ends, starts[1:] - ends[:-1], 0.0)
        if self._merged.starts.size > MOST:
            gaps = self._merged.starts[1:] - self._merged.ends[:-1]
            least = float(np.median(gaps))
            self.closed_s += float(gaps[gaps <= least].sum())
            self._merged = _joined(self._merged.starts, self._merged.ends, gaps, least)


def _joined(starts: Floats, ends: Floats, gaps: Floats, least: float) -> Cover:
    """Neighbours with at most this gap as one interval."""
    apart = np.flatnonzero(gaps > least)
    return Cover(starts[np.concatenate([[0], apart + 1])], ends[np.concatenate([apart, [ends.size - 1]])])


@dataclass(frozen=True)
class Division:
    """A window of time, divided between phases."""

    seconds: dict[str, float]
    """Length by phase; what several phases cover counts for the first."""
    pieces: tuple[tuple[str, float, float], ...]
    """Phase, start and end of each piece, in order."""


def divide(covers: Mapping[str, Cover], order: Sequence[str], begin: float, end: float) -> Division:
    """Divide a window between phases, the first of `order` that covers a time has it."""
    parts = {phase: covers[phase].within(begin, end) for phase in order if phase in covers}
    edges = np.unique(np.concatenate([[begin, end], *(e for part in parts.values() for e in (part.starts, part.ends))]))
    middles, owner = (edges[:-1] + edges[1:]) / 2, np.full(max(0, edges.size - 1), -1)
    for number, phase in reversed(list(enumerate(parts))):
        owner[parts[phase].holds(middles)] = number
    lengths, names = np.diff(edges), list(parts)
    seconds = {phase: float(lengths[owner == number].sum()) for number, phase in enumerate(names)}
    changes = np.flatnonzero(np.diff(owner)) + 1
    firsts, lasts = np.concatenate([[0], changes]), np.concatenate([changes, [owner.size]])
    pieces = tuple(
        (names[owner[first]], float(edges[first]), float(edges[last]))
        for first, last in zip(firsts, lasts, strict=True)
        if owner.size and owner[first] >= 0
    )
    return Division(seconds, pieces)
