"""What a step costs a rank, learnt from the steps it has done: seconds = a + b * samples.

The estimate follows real change and ignores accidents. A lasting change is one that three steps in a row agree on and
that is larger than the usual scatter, so a single straggling step moves nothing and a slowed device is known after
three. How far the estimate can be trusted is part of it: whoever acts on it should gain more than that.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

from paceline.cost.split import Cost

__all__ = ["Estimate"]

WINDOW = 32
AGREEING = 3
LASTING = 0.15
"""Relative distance from the estimate that counts as a change, if it lasts."""
SCATTERS = 2.0
"""The same in times of the usual scatter, where that is more."""
UNKNOWN = 0.1
"""Scatter that is taken for granted while too few steps were seen to tell."""
ENOUGH = 6
"""Steps from which scatter can be told."""
LEAST = 0.02
"""Scatter below which nothing is believed to be."""
CLEARLY = 2.0
"""Standard errors that make a constant part more than noise."""
QUIET = 0.05
"""Scatter beyond which no constant part is looked for: a host that was busy for a while would look like one."""
NORMAL = 1.4826
"""Standard deviation of normal noise over its median distance."""
SPREAD = 0.2
"""Batch sizes must differ by this share before the constant part can be told from the part per sample."""


class Estimate:
    """The running estimate of one rank's cost."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._shared: deque[float] = deque(maxlen=AGREEING)
        """Factors by which the newest steps were off for all ranks alike."""
        self._a = 0.0
        self._b = 0.0
        self._scatter = UNKNOWN
        """Of the seconds of a step, relative."""
        self._warming = True
        """Whether the only step seen is the first of all, which also pays for what happens once."""

    @property
    def known(self) -> bool:
        """Whether any step was seen."""
        return self._b > 0

    def cost(self, *, chunk: int | None = None, least: int = 0) -> Cost:
        """The estimate, with the limits of this rank."""
        return Cost(self._a, self._b, chunk=chunk, least=least)

    @property
    def doubt(self) -> float:
        """Relative standard error of what the present batch size takes."""
        count = len(self._seen)
        scatter = self._scatter if count >= ENOUGH else max(self._scatter, UNKNOWN)
        return scatter / max(1, count) ** 0.5

    def observe(self, samples: int, seconds: float, *, shared: float = 1.0) -> bool:
        """Learn from one step; a step without samples says nothing. Says whether the cost has changed for good.

        What all ranks share is no change of this one: it is followed slowly, and by all at the same pace.
        """
        if samples <= 0 or seconds <= 0:
            return False
        if self._warming and self.known:
            self._seen.clear()
            self._warming = False
        self._seen.append((samples, seconds))
        self._shared.append(shared)
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
        alone = zip(recent, self._shared, strict=True)
        ratios = [seconds / (self._a + self._b * samples) / shared for (samples, seconds), shared in alone]
        far = 1 + max(LASTING, SCATTERS * self._scatter)
        return min(ratios) > far or max(ratios) < 1 / far

    def _forget(self) -> None:
        """Keep the steps since the change, and the shape of the cost."""
        recent = list(self._seen)[-AGREEING:]
        ratio = statistics.median(seconds / (self._a + self._b * samples) for samples, seconds in recent)
        self._a, self._b = self._a * ratio, self._b * ratio
        self._seen.clear()
        self._seen.extend(recent)

    def _fit(self) -> None:
        """A line through what the present batch size takes; its constant is from other sizes if those tell one."""
        now = self._seen[-1][0]
        near = [(size, seconds) for size, seconds in self._seen if abs(size - now) <= SPREAD / 2 * now]
        used = near if len(near) >= min(AGREEING, len(self._seen) / 2) else list(self._seen)
        size = statistics.fmean(size for size, _ in used)
        seconds = size * statistics.median(seconds / size for size, seconds in used)
        self._a = min(self._constant(size, seconds), 0.9 * seconds)
        self._b = statistics.median((seconds - self._a) / size for size, seconds in used)
        if self._b <= 0:
            self._a, self._b = 0.0, seconds / size
        self._scatter = NORMAL * statistics.median(
            abs(seconds / (self._a + self._b * size) - 1) for size, seconds in used
        )

    def _constant(self, size: float, seconds: float) -> float:
        """Seconds that do not depend on the batch, if sizes far from this one show them beyond doubt."""
        far = [(x, y) for x, y in self._seen if abs(x - size) > SPREAD * max(x, size)]
        if len(far) < 2 or self._scatter > QUIET:
            return self._a
        reach = sum((x - size) ** 2 for x, _ in far)
        slope = sum((x - size) * (y - seconds) for x, y in far) / reach
        error = max(self._scatter, LEAST) * seconds * size / reach**0.5
        found = max(0.0, seconds - slope * size)
        return found if found > CLEARLY * error else self._a
