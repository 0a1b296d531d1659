"""What a step costs a rank, learnt from the steps it has done: seconds = a + b * samples.

The estimate follows real change and ignores accidents. A lasting change is one that three steps in a row agree on, so
a single straggling step moves nothing and a slowed device is known after three.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from paceline.spec.split import Cost

__all__ = ["Estimate"]

WINDOW = 16
AGREEING = 3
LASTING = 0.15
"""Relative distance from the estimate that counts as a change, if it lasts."""
SPREAD = 0.2
"""Batch sizes must differ by this share before the constant part can be told from the part per sample."""


class Estimate:
    """The running estimate of one rank's cost."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._a = 0.0
        self._b = 0.0
        self._warming = True
        """Whether the only step seen is the first of all, which also pays for what happens once."""

    @property
    def known(self) -> bool:
        """Whether any step was seen."""
        return self._b > 0

    def cost(self, *, chunk: int | None = None, least: int = 0) -> Cost:
        """The estimate, with the limits of this rank."""
        return Cost(self._a, self._b, chunk=chunk, least=least)

    def observe(self, samples: int, seconds: float) -> bool:
        """Learn from one step; a step without samples says nothing. Says whether the cost has changed for good."""
        if samples <= 0 or seconds <= 0:
            return False
        if self._warming and self.known:
            self._seen.clear()
            self._warming = False
        self._seen.append((samples, seconds))
        changed = self.known and self._changed()
        if changed:
            self._forget()
        self._fit()
        return changed

    def forget(self) -> None:
        """What was seen is long ago; the next steps alone decide."""
        self._seen.clear()

    def plain(self) -> list[float]:
        """The estimate as numbers."""
        return [self._a, self._b]

    def assume(self, numbers: Sequence[float]) -> None:
        """Start from an estimate made elsewhere."""
        self._a, self._b = numbers
        self._seen.clear()
        self._warming = False

    def _changed(self) -> bool:
        recent = list(self._seen)[-AGREEING:]
        if len(recent) < AGREEING:
            return False
        ratios = [seconds / (self._a + self._b * samples) for samples, seconds in recent]
        return min(ratios) > 1 + LASTING or max(ratios) < 1 / (1 + LASTING)

    def _forget(self) -> None:
        """Keep the steps since the change, and the shape of the cost."""
        recent = list(self._seen)[-AGREEING:]
        ratio = statistics.median(seconds / (self._a + self._b * samples) for samples, seconds in recent)
        self._a, self._b = self._a * ratio, self._b * ratio
        self._seen.clear()
        self._seen.extend(recent)

    def _fit(self) -> None:
        """A line through what the present batch size takes; its slope is from other sizes if some were seen."""
        by_size: dict[int, list[float]] = {}
        for samples, seconds in self._seen:
            by_size.setdefault(samples, []).append(seconds)
        points = [(float(size), statistics.median(times), len(times)) for size, times in by_size.items()]
        now = self._seen[-1][0]
        size, seconds = _centre([point for point in points if abs(point[0] - now) <= SPREAD / 2 * now])
        slope = _slope(points, size, seconds)
        if slope is None:
            self._a = min(self._a, 0.9 * seconds)
        else:
            self._a = min(max(seconds - slope * size, 0.0), 0.9 * seconds)
        self._b = (seconds - self._a) / size


def _centre(points: Sequence[tuple[float, float, int]]) -> tuple[float, float]:
    weight = sum(count for _, _, count in points)
    return (
        sum(size * count for size, _, count in points) / weight,
        sum(seconds * count for _, seconds, count in points) / weight,
    )


def _slope(points: Sequence[tuple[float, float, int]], size: float, seconds: float) -> float | None:
    """Weighted least squares through one point that is given; None where sizes hardly differ from it."""
    far = [point for point in points if abs(point[0] - size) > SPREAD * max(point[0], size)]
    if not far:
        return None
    above = sum(count * (x - size) * (y - seconds) for x, y, count in far)
    return above / sum(count * (x - size) ** 2 for x, _, count in far)
