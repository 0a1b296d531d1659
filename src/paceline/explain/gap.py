"""Why one case is slower than another: a waterfall of named causes that sums exactly to the measured gap.

From the slower step to the faster one, each bar is a difference between measured parts:

    input          io + h2d
    kernels        forward + backward alone, without exchange
    fusion         exposed exchange: what the model says that another number of exchanges changes
    overlap        exposed exchange: what the model says that overlap changes
    server         exposed exchange, where one side uses parameter servers
    link           what is left of the difference in exposed exchange
    update         the optimiser
    unexplained    what is left of the whole gap, with its interval
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.explain.advice.finding import Trial
from paceline.explain.evidence import CaseEvidence
from paceline.explain.exchange import Exchange, exchange_of
from paceline.measurements.summary import Interval, median_interval, phases_of
from paceline.units import SECONDS

__all__ = ["Bar", "Gap", "explain_gap", "find_gaps"]


@dataclass(frozen=True)
class Bar:
    """One cause of the gap."""

    cause: str
    seconds: float
    """How much of the slower step it takes; negative where the slower one is better."""
    evidence: str
    interval: Interval | None = None
    trial: Trial | None = None
    """A run of the slower side that changes only this cause."""
    measured_s: float | None = None
    """What that run really saved, where it was made."""


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
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        run = case.run
        if case.result.step_s is not None and case.result.phases:
            groups[run.network, run.cluster, run.ranks, run.batch, run.launcher].append(case)
    pairs = []
    for group in groups.values():
        fastest = min(group, key=_step)
        pairs += [(slow, fastest) for slow in group if slow is not fastest and _differs(slow, fastest)]
    pairs.sort(key=lambda pair: _step(pair[1]) / _step(pair[0]))
    return tuple(explain_gap(slow, fast) for slow, fast in pairs[:most])


def _step(case: CaseEvidence) -> float:
    assert case.result.step_s is not None
    return case.result.step_s.value


def _differs(one: CaseEvidence, other: CaseEvidence) -> bool:
    """One rank does not exchange: a strategy makes no difference there."""
    return one.run.ranks > 1 or one.run.framework != other.run.framework or one.run.input != other.run.input


def explain_gap(slow: CaseEvidence, fast: CaseEvidence) -> Gap:
    """The waterfall from the slower case to the faster one."""
    assert slow.result.step_s is not None
    assert fast.result.step_s is not None
    bars = [bar for bar in _bars(slow, fast) if abs(bar.seconds) > 0]
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


def _bars(slow: CaseEvidence, fast: CaseEvidence) -> list[Bar]:
    return [
        _phase_bar("input", ("io", "h2d"), slow, fast, Trial(input="resident")),
        _phase_bar("kernels", ("forward", "backward"), slow, fast, None),
        *_exchange_bars(slow, fast),
        _phase_bar("update", ("update",), slow, fast, None),
    ]


def _phase_bar(cause: str, names: tuple[str, ...], slow: CaseEvidence, fast: CaseEvidence, trial: Trial | None) -> Bar:
    ours, theirs = (sum(case.result.phases[name] for name in names) for case in (slow, fast))
    words = f"{' + '.join(names)} alone: {SECONDS.format(ours)} against {SECONDS.format(theirs)}"
    samples = [[sum(phases_of(p)[name] for name in names) for p in case.launches.passes] for case in (slow, fast)]
    return Bar(cause, ours - theirs, words, _difference(samples[0], samples[1], ours - theirs), trial)


def _difference(ours: list[float], theirs: list[float], value: float) -> Interval:
    """Interval of a difference: half-widths add as independent errors do."""
    one, other = median_interval(ours), median_interval(theirs)
    below = ((one.value - one.low) ** 2 + (other.high - other.value) ** 2) ** 0.5
    above = ((one.high - one.value) ** 2 + (other.value - other.low) ** 2) ** 0.5
    return Interval(value, value - below, value + above)


def _rest_interval(slow: CaseEvidence, fast: CaseEvidence, value: float) -> Interval:
    samples = [[phases_of(passes)["other"] for passes in case.launches.passes] for case in (slow, fast)]
    return _difference(samples[0], samples[1], value)


def _exchange_bars(slow: CaseEvidence, fast: CaseEvidence) -> list[Bar]:
    """The difference in exposed exchange, walked through the model one cause at a time."""
    ours, theirs = slow.result.phases["aggregate"], fast.result.phases["aggregate"]
    total = ours - theirs
    one, other = exchange_of(slow), exchange_of(fast)
    if one is None or other is None:
        return [Bar("exchange", total, f"exposed: {SECONDS.format(ours)} against {SECONDS.format(theirs)}")]
    bars, now = [], one
    if now.last != other.last and len(now.sizes) == len(other.sizes):
        now, bar = _changed(now, replace(now, last=other.last), "fusion")
        bars.append(bar)
    if now.overlap != other.overlap:
        now, bar = _changed(now, replace(now, overlap=other.overlap), "overlap")
        bars.append(bar)
    served = [case.policy is not None and case.policy.aggregation == "parameter_server" for case in (slow, fast)]
    rest = total - sum(bar.seconds for bar in bars)
    if rest:
        cause = "server" if served[0] != served[1] else "link and start-up"
        bars.append(Bar(cause, rest, _rate_words(one, other), trial=None))
    return bars


def _changed(now: Exchange, then: Exchange, cause: str) -> tuple[Exchange, Bar]:
    words = {
        "overlap": f"exposed {SECONDS.format(now.exposed)} as it is, {SECONDS.format(then.exposed)} if overlap changed",
        "fusion": f"exchanges a step: {now.num_exchanges} against {then.num_exchanges}, "
        f"exposed {SECONDS.format(now.exposed)} becomes {SECONDS.format(then.exposed)}",
    }
    changes: dict[str, dict[str, Any]] = {
        "overlap": {"overlap": then.overlap},
        "fusion": {"bucket": round(then.bucket_limit)},
    }
    bar = Bar(cause, now.exposed - then.exposed, words[cause] + " (model)", trial=Trial(strategy=changes[cause]))
    return then, bar


def _rate_words(one: Exchange, other: Exchange) -> str:
    return (
        f"start-up {SECONDS.format(one.startup)} against {SECONDS.format(other.startup)} an exchange, "
        f"{one.per_byte * 1e9:.3g} against {other.per_byte * 1e9:.3g} ns a byte"
    )
