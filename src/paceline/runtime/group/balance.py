"""Load balancing: shares of the batch from the measured cost of steps.

Every rank holds the estimates of all ranks and computes the shares itself; equal estimates give equal shares.

The cost of a step on a rank is fitted to its past steps: seconds = a + b * samples.

The estimate follows lasting changes and ignores single slow steps. A change is lasting if three consecutive steps agree
on it and it exceeds the usual scatter: a single straggling step changes nothing, and a slowed device is detected after
three steps. The estimate includes its uncertainty; the split changes only if the predicted gain is larger.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.cost.split import Cost, proportional_split, split_batch

__all__ = ["Balance", "CostEstimate", "UnitBalance"]


WINDOW = 32
AGREEING = 3
LASTING = 0.15
"""Relative deviation from the estimate that counts as a change, if it lasts."""
SCATTERS = 2.0
"""The same in multiples of the usual scatter; the larger of both limits applies."""
UNKNOWN = 0.1
"""Assumed relative scatter while too few steps were observed."""
ENOUGH = 6
"""Number of steps from which scatter is estimated."""
LEAST = 0.02
"""Lower bound of the estimated relative scatter."""
CLEARLY = 2.0
"""Number of standard errors above which the constant part is significant."""
QUIET = 0.05
"""Scatter above which no constant part is estimated: a host that was busy for a while would look like one."""
NORMAL = 1.4826
"""Ratio of the standard deviation of normal noise to its median absolute deviation."""
SPREAD = 0.2
"""Relative difference of batch sizes from which the constant part is estimated separately."""


class CostEstimate:
    """The running estimate of the cost of a step on one rank."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=WINDOW)
        self._shared: deque[float] = deque(maxlen=AGREEING)
        """Factors by which all ranks deviated alike in the newest steps."""
        self._a = 0.0
        self._b = 0.0
        self._scatter = UNKNOWN
        """Relative scatter of the step time."""
        self._warming = True
        """Whether only the very first step was observed, which includes one-time costs."""

    @property
    def known(self) -> bool:
        """Whether any step was observed."""
        return self._b > 0

    def cost(self, *, chunk: int | None = None, least: int = 0) -> Cost:
        """The estimate, with the limits of this rank."""
        return Cost(self._a, self._b, chunk=chunk, least=least)

    @property
    def doubt(self) -> float:
        """Relative standard error of the step time at the present batch size."""
        count = len(self._seen)
        scatter = self._scatter if count >= ENOUGH else max(self._scatter, UNKNOWN)
        return scatter / max(1, count) ** 0.5

    def observe(self, samples: int, seconds: float, *, shared: float = 1.0) -> bool:
        """Update the estimate with one step; return whether a lasting change was detected.

        `shared` is the deviation that all ranks have in common. It is no change of this rank, and is followed slowly.
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
        """Discard old observations; the next steps determine the estimate."""
        self._seen.clear()

    def plain(self) -> list[float]:
        """The estimate as numbers."""
        return [self._a, self._b]

    def assume(self, numbers: Sequence[float]) -> None:
        """Start from the estimate of another process."""
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
        """Keep only the steps since the change, and the ratio of the constant part to the part per sample."""
        recent = list(self._seen)[-AGREEING:]
        ratio = statistics.median(seconds / (self._a + self._b * samples) for samples, seconds in recent)
        self._a, self._b = self._a * ratio, self._b * ratio
        self._seen.clear()
        self._seen.extend(recent)

    def _fit(self) -> None:
        """Fit the line through the step time at the present batch size; other sizes give the constant part, if they
        can."""
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
        """The constant part in seconds, if it is significant at batch sizes far from the present one; otherwise 0."""
        far = [(x, y) for x, y in self._seen if abs(x - size) > SPREAD * max(x, size)]
        if len(far) < 2 or self._scatter > QUIET:
            return self._a
        reach = sum((x - size) ** 2 for x, _ in far)
        slope = sum((x - size) * (y - seconds) for x, y in far) / reach
        error = max(self._scatter, LEAST) * seconds * size / reach**0.5
        constant = max(0.0, seconds - slope * size)
        return constant if constant > CLEARLY * error else self._a


TRY_AGAIN = 50
"""Number of steps without samples after which a rank gets one sample, to test whether it has recovered."""
GAIN = 0.005
"""Relative gain that new shares must promise; it must also exceed the uncertainty of the estimates."""
APART = 3.0
"""Number of standard errors of their difference above which the costs of two ranks are unequal."""

REMEMBERED = 64
ENOUGH_TO_STRAGGLE = 20
"""Number of steps from which the share of straggling steps is estimated."""
STRAGGLES = 2.0
"""A step that takes this many times the expected seconds is a straggling step."""


class Balance:
    """The split of the batches of one view."""

    def __init__(
        self,
        ids: Sequence[str],
        *,
        chunks: Sequence[int | None],
        least: int = 0,
        fixed: bool = False,
        split: Sequence[int] = (),
    ) -> None:
        """`split`: samples of each rank until costs are known; ignored if its length is not the number of ranks."""
        self._ids, self._chunks, self._least, self._fixed = list(ids), list(chunks), least, fixed
        self._first = [float(n) for n in split] if len(split) == len(ids) and any(split) else [1.0] * len(ids)
        self._estimates = {name: CostEstimate() for name in self._ids}
        self._decided: dict[int, tuple[int, ...]] = {}
        """Shares by the size of a step; kept until other shares are clearly better."""
        self._idle = dict.fromkeys(self._ids, 0)
        self._ratios: dict[str, deque[float]] = {name: deque(maxlen=REMEMBERED) for name in self._ids}
        """Ratios of measured to expected seconds of the newest steps, by rank."""

    def shares(self, total: int) -> tuple[int, ...]:
        """Samples of each rank in a step of `total` samples by the present estimates; changes no state."""
        if self._fixed or not self._learnt:
            return proportional_split(self._first, total, least=[self._lowest(total)] * len(self._ids))
        return self._with_a_trial(self._decided.get(total) or self._solved(total))

    def decide(self, total: int) -> tuple[int, ...]:
        """Decide the shares of a coming step; they stay until other shares are clearly better.

        All ranks must call this at the same step, because the decision depends on the estimates at that time.
        """
        if self._learnt and total not in self._decided:
            self._decided[total] = self._solved(total)
        return self.shares(total)

    @property
    def _learnt(self) -> bool:
        return any(estimate.known for estimate in self._estimates.values())

    def _solved(self, total: int) -> tuple[int, ...]:
        return split_batch(self._distinct_costs(total), total).samples

    def _lowest(self, total: int) -> int:
        """Minimum samples of every rank; 0 if there are too few samples for all, as in the last step of an epoch."""
        return self._least if total >= self._least * len(self._ids) else 0

    def learn(self, shares: Sequence[int], seconds: Sequence[float]) -> None:
        """Update the estimates with the step time of each rank; drop shares if others are clearly better."""
        shared = self._shared(shares, seconds)
        for name, samples, time in zip(self._ids, shares, seconds, strict=True):
            if samples and self._idle[name] >= TRY_AGAIN:
                self._estimates[name].forget()
            self._idle[name] = 0 if samples else self._idle[name] + 1
            self._note(name, samples, time, shared)
        gain = max(GAIN, *self._doubts())
        self._decided = {
            total: kept
            for total, kept in self._decided.items()
            if _still_good(self._distinct_costs(total), kept, total, gain)
        }

    def _doubts(self) -> list[float]:
        """Relative standard error of each rank's cost; unknown ranks get the largest one of the others."""
        known = [estimate.doubt for estimate in self._estimates.values() if estimate.known]
        return [estimate.doubt if estimate.known else max(known) for estimate in self._estimates.values()]

    def _distinct_costs(self, total: int) -> list[Cost]:
        """The cost of each rank; costs whose difference is within its error are made equal."""
        doubts, share = self._doubts(), max(1, total // len(self._ids))
        costs = [replace(cost, least=self._lowest(total)) for cost in self.costs()]
        each = [cost.seconds(share) for cost in costs]
        order = sorted(range(len(each)), key=each.__getitem__)
        alike: list[list[int]] = []
        for index in order:
            first = alike[-1][0] if alike else index
            doubt = math.hypot(doubts[first], doubts[index])
            if alike and each[index] <= each[first] * (1 + APART * doubt):
                alike[-1].append(index)
            else:
                alike.append([index])
        settled = list(costs)
        for members in alike:
            a = statistics.fmean(costs[index].a for index in members)
            b = statistics.fmean(costs[index].b for index in members)
            for index in members:
                settled[index] = replace(costs[index], a=a, b=b)
        return settled

    def _shared(self, shares: Sequence[int], seconds: Sequence[float]) -> float:
        """The deviation that all ranks have in common, as from a busy host; no split can compensate it."""
        rows = zip(self._estimates.values(), shares, seconds, strict=True)
        off = [time / estimate.cost().seconds(n) for estimate, n, time in rows if n and time > 0 and estimate.known]
        if len(off) < 2:
            return 1.0
        return max(min(off), 1.0) if max(off) > 1 else max(off)

    def _note(self, name: str, samples: int, time: float, shared: float) -> None:
        """Update the estimate of a rank and its ratio of measured to expected time; a lasting change resets the
        ratios."""
        estimate, ratios = self._estimates[name], self._ratios[name]
        if estimate.known and samples:
            ratios.append(time / estimate.cost().seconds(samples))
        if estimate.observe(samples, time, shared=shared):
            ratios.clear()

    def straggling(self) -> list[tuple[float, float]]:
        """Share of straggling steps of each rank, and their relative length; a share of 0 while too few steps were
        seen."""
        return [_straggling(self._ratios[name]) for name in self._ids]

    def _with_a_trial(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        """Move one sample from the rank with most samples to each rank that had none for `TRY_AGAIN` steps."""
        tried = list(shares)
        for index, name in enumerate(self._ids):
            if tried[index] == 0 and self._idle[name] >= TRY_AGAIN:
                tried[tried.index(max(tried))] -= 1
                tried[index] = 1
        return tuple(tried)

    def costs(self) -> list[Cost]:
        """The cost of each rank; a rank without steps gets the mean cost."""
        known = [estimate.plain() for estimate in self._estimates.values() if estimate.known]
        average = [sum(column) / len(known) for column in zip(*known, strict=True)]
        return [
            estimate.cost(chunk=chunk, least=self._least)
            if estimate.known
            else Cost(average[0], average[1], chunk, self._least)
            for estimate, chunk in zip(self._estimates.values(), self._chunks, strict=True)
        ]

    def plain(self) -> dict[str, Any]:
        """The estimates as JSON data."""
        return {name: estimate.plain() for name, estimate in self._estimates.items() if estimate.known}

    def assume(self, estimates: dict[str, Sequence[float]]) -> None:
        """Start from the estimates of an earlier view."""
        for name, numbers in estimates.items():
            if name in self._estimates:
                self._estimates[name].assume(numbers)


class UnitBalance:
    """The split between units, with the methods of a `Balance`. Ranks of a unit get equal shares, as they wait for each
    other in every layer."""

    def __init__(
        self,
        units: Sequence[Sequence[int]],
        ids: Sequence[str],
        *,
        fixed: bool,
        split: Sequence[int],
    ) -> None:
        self._units, self._size = units, len(ids)
        parts = [sum(split[rank] for rank in unit) for unit in units] if len(split) == len(ids) else []
        whole = parts or [len(unit) for unit in units]
        names = [ids[unit[0]] for unit in units]
        self._between = Balance(names, chunks=[None] * len(units), fixed=fixed, split=whole)

    def shares(self, total: int) -> tuple[int, ...]:
        """Samples of each rank in a step of `total` samples by the present estimates."""
        return self._inside(self._between.shares(total))

    def decide(self, total: int) -> tuple[int, ...]:
        """Decide the shares of a coming step."""
        return self._inside(self._between.decide(total))

    def _inside(self, parts: Sequence[int]) -> tuple[int, ...]:
        shares = [0] * self._size
        for unit, samples in zip(self._units, parts, strict=True):
            for place, rank in enumerate(unit):
                shares[rank] = (samples + len(unit) - 1 - place) // len(unit)
        return tuple(shares)

    def learn(self, shares: Sequence[int], seconds: Sequence[float]) -> None:
        """Update the estimates with the step time of each rank."""
        self._between.learn(
            [sum(shares[rank] for rank in unit) for unit in self._units],
            [max(seconds[rank] for rank in unit) for unit in self._units],
        )

    def costs(self) -> list[Cost]:
        """The cost of each rank in terms of its own samples."""
        found = [Cost(0.0, 0.0)] * self._size
        for unit, cost in zip(self._units, self._between.costs(), strict=True):
            for rank in unit:
                found[rank] = Cost(cost.a, cost.b * len(unit))
        return found

    def plain(self) -> dict[str, Any]:
        """The estimates as JSON data."""
        return self._between.plain()

    def assume(self, estimates: dict[str, Sequence[float]]) -> None:
        """Start from the estimates of an earlier view."""
        self._between.assume(estimates)

    def straggling(self) -> list[tuple[float, float]]:
        """No shares: straggling ranks cannot be distinguished inside a unit."""
        return [(0.0, 1.0)] * self._size


def _still_good(costs: Sequence[Cost], shares: Sequence[int], total: int, gain: float) -> bool:
    kept = max(cost.seconds(samples) for cost, samples in zip(costs, shares, strict=True))
    # The best split into fractional samples is a lower bound for every split; most calls are decided by it.
    together = (total + sum(cost.a / cost.b for cost in costs)) / sum(1 / cost.b for cost in costs)
    if kept <= together * (1 + gain) and all(shares):
        return True
    return kept <= split_batch(costs, total).seconds * (1 + gain)


def _straggling(ratios: Sequence[float]) -> tuple[float, float]:
    late = [ratio for ratio in ratios if ratio > STRAGGLES]
    if len(ratios) < ENOUGH_TO_STRAGGLE or not late:
        return 0.0, 1.0
    return len(late) / len(ratios), statistics.median(late)
