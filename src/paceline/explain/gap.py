"""Why one case is slower than another: a waterfall of named causes that sums exactly to the measured gap.

From the slower step to the faster one, each bar is a difference between measured parts:

    input          io + h2d
    kernels        forward + backward alone, without exchange, as far as it grows with the batch
    fixed overhead the part of it that does not, where a study has several batches; else it is among the kernels
    fusion         exposed exchange: what the model says that another number of exchanges changes
    overlap        exposed exchange: what the model says that overlap changes
    server         exposed exchange, where one side uses parameter servers
    link           what is left of the difference in exposed exchange
    update         the optimiser
    unexplained    what is left of the whole gap, with its interval
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from paceline.explain.advice.finding import Trial
from paceline.explain.evidence import CaseEvidence
from paceline.explain.waterfall import Bar, difference, exchange_bars
from paceline.measurements.summary import Interval, phases_of
from paceline.units import SECONDS

__all__ = ["Gap", "explain_gap", "find_gaps", "fixed_compute"]

NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Gap:
    """Two cases that differ in framework or strategy only."""

    slow: str
    fast: str
    slow_id: str
    fast_id: str
    slow_step_s: Interval
    fast_step_s: Interval
    bars: tuple[Bar, ...]
    """They sum to the difference of the steps."""

    @property
    def seconds(self) -> float:
        """The measured gap."""
        return self.slow_step_s.value - self.fast_step_s.value


def find_gaps(cases: Sequence[CaseEvidence], *, most: int = 50) -> tuple[Gap, ...]:
    """For each network and size that several frameworks or strategies ran: slower ones against the fastest.

    The largest ratios first, so many at most.
    """
    split = [case for case in cases if case.result.step_s is not None and case.result.phases]
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in split:
        run = case.run
        groups[run.network, run.cluster, run.ranks, run.batch, run.launcher].append(case)
    pairs = []
    for group in groups.values():
        fastest = min(group, key=_step)
        pairs += [(slow, fastest) for slow in group if slow is not fastest and _differs(slow, fastest)]
    pairs.sort(key=lambda pair: _step(pair[1]) / _step(pair[0]))
    fixed = fixed_compute(split)
    return tuple(explain_gap(slow, fast, fixed=fixed) for slow, fast in pairs[:most])


def _step(case: CaseEvidence) -> float:
    assert case.result.step_s is not None
    return case.result.step_s.value


def _differs(one: CaseEvidence, other: CaseEvidence) -> bool:
    """One rank does not exchange: a strategy makes no difference there."""
    return one.run.ranks > 1 or one.run.framework != other.run.framework or one.run.input != other.run.input


def explain_gap(slow: CaseEvidence, fast: CaseEvidence, *, fixed: Mapping[str, float] = NOTHING) -> Gap:
    """The waterfall from the slower case to the faster one; `fixed` says what of a case's compute is so, by its id."""
    assert slow.result.step_s is not None
    assert fast.result.step_s is not None
    bars = [bar for bar in _bars(slow, fast, fixed) if bar.seconds or bar.reverse is not None]
    total = slow.result.step_s.value - fast.result.step_s.value
    rest = total - sum(bar.seconds for bar in bars)
    bars.append(Bar("unexplained", rest, "what no phase accounts for", _rest_interval(slow, fast, rest)))
    return Gap(
        slow=slow.label,
        fast=fast.label,
        slow_id=slow.run.case_id,
        fast_id=fast.run.case_id,
        slow_step_s=slow.result.step_s,
        fast_step_s=fast.result.step_s,
        bars=tuple(bars),
    )


def _bars(slow: CaseEvidence, fast: CaseEvidence, fixed: Mapping[str, float]) -> list[Bar]:
    return [
        _phase_bar("input", ("io", "h2d"), slow, fast, Trial(input="resident")),
        *_compute_bars(slow, fast, fixed),
        *exchange_bars(slow, fast),
        _phase_bar("update", ("update",), slow, fast, None),
    ]


def _compute_bars(slow: CaseEvidence, fast: CaseEvidence, fixed: Mapping[str, float]) -> list[Bar]:
    """Kernels, and apart from them what does not depend on the batch, where it is known of both."""
    threads = fast.run.machine.threads
    trial = Trial(threads=threads) if threads != slow.run.machine.threads else None
    whole = _phase_bar("kernels", ("forward", "backward"), slow, fast, trial)
    ours, theirs = fixed.get(slow.run.case_id), fixed.get(fast.run.case_id)
    if ours is None or theirs is None:
        return [whole]
    words = f"of that, whatever the batch: {SECONDS.format(ours)} against {SECONDS.format(theirs)}"
    rest = whole.seconds - (ours - theirs)
    kernels = replace(whole, seconds=rest, interval=_moved(whole.interval, rest))
    return [kernels, Bar("fixed overhead", ours - theirs, f"{words} (line through the batches of this study)")]


def _moved(interval: Interval | None, value: float) -> Interval | None:
    """The same width about another value."""
    if interval is None:
        return None
    return Interval(value, value - (interval.value - interval.low), value + (interval.high - interval.value))


def fixed_compute(cases: Sequence[CaseEvidence]) -> dict[str, float]:
    """Seconds of forward and backward that do not depend on the batch, by case, where a study has several batches."""
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        run = case.run
        key = (run.network, run.cluster, run.framework, run.strategy, run.input, run.launcher, run.ranks)
        groups[key].append(case)
    found: dict[str, float] = {}
    for group in groups.values():
        batches = [float(case.run.batch) for case in group]
        compute = [case.result.phases["forward"] + case.result.phases["backward"] for case in group]
        if len(set(batches)) > 1:
            fixed = float(np.polyfit(batches, compute, 1)[1])
            found |= {case.run.case_id: min(max(0.0, fixed), own) for case, own in zip(group, compute, strict=True)}
    return found


def _phase_bar(cause: str, names: tuple[str, ...], slow: CaseEvidence, fast: CaseEvidence, trial: Trial | None) -> Bar:
    ours, theirs = (sum(case.result.phases[name] for name in names) for case in (slow, fast))
    words = f"{' + '.join(names)} alone: {SECONDS.format(ours)} against {SECONDS.format(theirs)}"
    samples = [[sum(phases_of(p)[name] for name in names) for p in case.launches.passes] for case in (slow, fast)]
    return Bar(cause, ours - theirs, words, difference(samples[0], samples[1], ours - theirs), trial)


def _rest_interval(slow: CaseEvidence, fast: CaseEvidence, value: float) -> Interval:
    """How far two timings of the same whole step lay apart in each launch."""
    samples = [[_apart(passes) for passes in case.launches.passes] for case in (slow, fast)]
    return difference(samples[0], samples[1], value)


def _apart(passes: dict[str, float]) -> float:
    return passes["clean"] - max(seconds for name, seconds in passes.items() if name != "clean")
