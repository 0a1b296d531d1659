"""Shares of the batch, solved from what steps have cost, and solved again when that changes.

Every rank holds the estimates of all ranks and solves by itself: equal numbers in, equal shares out.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.cost.split import Cost, proportional_split, split_batch
from paceline.runtime.cost import Estimate

__all__ = ["Balance"]

TRY_AGAIN = 50
"""Steps without samples after which a rank gets one, to see whether it has recovered."""
GAIN = 0.005
"""Shares change only for a step that is predicted to be this much shorter, and by more than the doubt about it."""
APART = 3.0
"""Standard errors of their difference by which two ranks are told apart."""

REMEMBERED = 64
ENOUGH = 20
"""Steps from which a share of stragglers can be told."""
STRAGGLES = 2.0
"""Times the expected seconds that make a step a straggler."""


class Balance:
    """The split of one view's batches."""

    def __init__(
        self, ids: Sequence[str], *, chunks: Sequence[int | None], least: int = 0, fixed: bool = False
    ) -> None:
        self._ids, self._chunks, self._least, self._fixed = list(ids), list(chunks), least, fixed
        self._estimates = {name: Estimate() for name in self._ids}
        self._shares: dict[int, tuple[int, ...]] = {}
        self._idle = dict.fromkeys(self._ids, 0)
        self._ratios: dict[str, deque[float]] = {name: deque(maxlen=REMEMBERED) for name in self._ids}
        """Measured over expected seconds of the newest steps."""

    def shares(self, total: int) -> tuple[int, ...]:
        """Samples of each rank in a step of so many."""
        if self._fixed or not any(estimate.known for estimate in self._estimates.values()):
            return proportional_split([1.0] * len(self._ids), total)
        if total not in self._shares:
            self._shares[total] = split_batch(self._told_apart(total), total).samples
        return self._with_a_trial(self._shares[total])

    def learn(self, shares: Sequence[int], seconds: Sequence[float]) -> None:
        """Take in what a step cost each rank; drop shares that would be clearly beaten."""
        shared = self._shared(shares, seconds)
        for name, samples, time in zip(self._ids, shares, seconds, strict=True):
            if samples and self._idle[name] >= TRY_AGAIN:
                self._estimates[name].forget()
            self._idle[name] = 0 if samples else self._idle[name] + 1
            self._note(name, samples, time, shared)
        gain = max(GAIN, *self._doubts())
        self._shares = {
            total: kept
            for total, kept in self._shares.items()
            if _still_good(self._told_apart(total), kept, total, gain)
        }

    def _doubts(self) -> list[float]:
        """Relative standard error of each rank's cost; of the least known one where nothing is known."""
        known = [estimate.doubt for estimate in self._estimates.values() if estimate.known]
        return [estimate.doubt if estimate.known else max(known) for estimate in self._estimates.values()]

    def _told_apart(self, total: int) -> list[Cost]:
        """Each rank's cost, where ranks that cannot be told apart beyond doubt are taken for equal."""
        costs, doubts, share = self.costs(), self._doubts(), max(1, total // len(self._ids))
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
        found = list(costs)
        for members in alike:
            a = statistics.fmean(costs[index].a for index in members)
            b = statistics.fmean(costs[index].b for index in members)
            for index in members:
                found[index] = replace(costs[index], a=a, b=b)
        return found

    def _shared(self, shares: Sequence[int], seconds: Sequence[float]) -> float:
        """By how much all ranks were off in the same direction: the host was busy, and no split helps against that."""
        rows = zip(self._estimates.values(), shares, seconds, strict=True)
        off = [time / estimate.cost().seconds(n) for estimate, n, time in rows if n and time > 0 and estimate.known]
        if len(off) < 2:
            return 1.0
        return max(min(off), 1.0) if max(off) > 1 else max(off)

    def _note(self, name: str, samples: int, time: float, shared: float) -> None:
        """Learn, and remember how far off the step was; after a lasting change that says nothing any more."""
        estimate, ratios = self._estimates[name], self._ratios[name]
        if estimate.known and samples:
            ratios.append(time / estimate.cost().seconds(samples))
        if estimate.observe(samples, time, shared=shared):
            ratios.clear()

    def straggling(self) -> list[tuple[float, float]]:
        """Share of straggling steps of each rank and how much longer they take; no share while few were seen."""
        return [_straggling(self._ratios[name]) for name in self._ids]

    def _with_a_trial(self, shares: tuple[int, ...]) -> tuple[int, ...]:
        """One sample for each rank that had none for long, from whoever has most."""
        tried = list(shares)
        for index, name in enumerate(self._ids):
            if tried[index] == 0 and self._idle[name] >= TRY_AGAIN:
                tried[tried.index(max(tried))] -= 1
                tried[index] = 1
        return tuple(tried)

    def costs(self) -> list[Cost]:
        """Each rank's cost; a rank that has not stepped yet is taken for an average one."""
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
        """Start from what an earlier view had learnt."""
        for name, numbers in estimates.items():
            if name in self._estimates:
                self._estimates[name].assume(numbers)


def _still_good(costs: Sequence[Cost], shares: Sequence[int], total: int, gain: float) -> bool:
    kept = max(cost.seconds(samples) for cost, samples in zip(costs, shares, strict=True))
    # With parts of samples all would finish together, and no whole split is quicker: mostly that settles it.
    together = (total + sum(cost.a / cost.b for cost in costs)) / sum(1 / cost.b for cost in costs)
    if kept <= together * (1 + gain) and all(shares):
        return True
    return kept <= split_batch(costs, total).seconds * (1 + gain)


def _straggling(ratios: Sequence[float]) -> tuple[float, float]:
    late = [ratio for ratio in ratios if ratio > STRAGGLES]
    if len(ratios) < ENOUGH or not late:
        return 0.0, 1.0
    return len(late) / len(ratios), statistics.median(late)
