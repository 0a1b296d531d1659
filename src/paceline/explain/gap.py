"""The gap between two cases: a waterfall of named causes that sums exactly to the measured gap.

From the slower step to the faster one, each bar is a difference between measured parts:

    input          io + h2d
    kernels        forward + backward alone, without exchange, as far as it grows with the batch
    fixed overhead the part of it that does not, if the study has several batch sizes; else part of the kernels
    fusion         exposed exchange: effect of another number of exchanges, by the model
    overlap        exposed exchange: effect of overlap, by the model
    server         exposed exchange, where one side uses parameter servers
    link           the rest of the difference in exposed exchange
    update         the optimizer
    unexplained    the rest of the gap, with its interval
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.cases.exchange import GradientExchange, exchange_like
from paceline.explain.findings import Trial
from paceline.measurements.summary import Interval, amount_interval, phases_of
from paceline.units import SECONDS

__all__ = ["Bar", "Gap", "difference", "find_gaps"]

NOTHING: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class Bar:
    """One cause of the gap."""

    cause: str
    seconds: float
    """Seconds of the slower step; negative if the slower case is better in this respect."""
    evidence: str
    interval: Interval | None = None
    trial: Trial | None = None
    """A trial of the slower side that changes only this cause."""
    reverse: Trial | None = None
    """A trial of the faster side that adds this cause, if the slower side cannot remove it."""
    measured_s: Interval | None = None
    """Measured seconds of the cause, if a trial was run."""
    tried: str = ""
    """The side that was changed, or why none could be changed."""


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
    """Bars that sum to the difference of the steps."""
    untrusted: str = ""
    """Why the bars are not to be trusted; empty if they are."""

    @property
    def seconds(self) -> float:
        """The measured gap."""
        return self.slow_step_s.value - self.fast_step_s.value


def find_gaps(cases: Sequence[CaseEvidence], *, most: int = 50) -> tuple[Gap, ...]:
    """For each network and size: gaps between the fastest framework or strategy and the slower ones.

    Largest ratios first, at most `most`.
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
    fixed = _fixed_compute(split)
    return tuple(_explain_gap(slow, fast, fixed=fixed) for slow, fast in pairs[:most])


def _step(case: CaseEvidence) -> float:
    assert case.result.step_s is not None
    return case.result.step_s.value


def _differs(one: CaseEvidence, other: CaseEvidence) -> bool:
    """Whether strategies differ: with one rank there is no exchange."""
    return one.run.ranks > 1 or one.run.framework != other.run.framework or one.run.input != other.run.input


def _explain_gap(slow: CaseEvidence, fast: CaseEvidence, *, fixed: Mapping[str, float] = NOTHING) -> Gap:
    """The waterfall from the slower case to the faster one; `fixed` has the fixed compute of cases by id."""
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
        untrusted=_untrusted(slow, fast),
    )


def _untrusted(*cases: CaseEvidence) -> str:
    doubtful = [case.label for case in cases if not case.result.closes]
    return f"the phases of {' and of '.join(doubtful)} do not close within 5 % of the step" if doubtful else ""


def _bars(slow: CaseEvidence, fast: CaseEvidence, fixed: Mapping[str, float]) -> list[Bar]:
    return [
        _phase_bar("input", ("io", "h2d"), slow, fast, Trial(input="resident")),
        *_compute_bars(slow, fast, fixed),
        *_exchange_bars(slow, fast),
        _phase_bar("update", ("update",), slow, fast, None),
    ]


def _compute_bars(slow: CaseEvidence, fast: CaseEvidence, fixed: Mapping[str, float]) -> list[Bar]:
    """The bar of kernels, and the bar of fixed overhead if it is known for both cases."""
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
    """An interval of the same width around another value."""
    if interval is None:
        return None
    return Interval(value, value - (interval.value - interval.low), value + (interval.high - interval.value))


def _fixed_compute(cases: Sequence[CaseEvidence]) -> dict[str, float]:
    """Seconds of forward and backward that do not depend on the batch, by case, from cases at several batch sizes."""
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        run = case.run
        key = (run.network, run.cluster, run.framework, run.strategy, run.input, run.launcher, run.ranks)
        groups[key].append(case)
    fixed_by_case: dict[str, float] = {}
    for group in groups.values():
        batches = [float(case.run.batch) for case in group]
        compute = [case.result.phases["forward"] + case.result.phases["backward"] for case in group]
        if len(set(batches)) > 1:
            fixed = float(np.polyfit(batches, compute, 1)[1])
            fixed_by_case |= {
                case.run.case_id: min(max(0.0, fixed), own) for case, own in zip(group, compute, strict=True)
            }
    return fixed_by_case


def _phase_bar(cause: str, names: tuple[str, ...], slow: CaseEvidence, fast: CaseEvidence, trial: Trial | None) -> Bar:
    ours, theirs = (sum(case.result.phases[name] for name in names) for case in (slow, fast))
    words = f"{' + '.join(names)} alone: {SECONDS.format(ours)} against {SECONDS.format(theirs)}"
    samples = [[sum(phases_of(p)[name] for name in names) for p in case.launches.passes] for case in (slow, fast)]
    return Bar(cause, ours - theirs, words, difference(samples[0], samples[1], ours - theirs), trial)


def _rest_interval(slow: CaseEvidence, fast: CaseEvidence, value: float) -> Interval:
    """The interval of the rest, from the differences of two timings of the complete step in each launch."""
    samples = [[_apart(passes) for passes in case.launches.passes] for case in (slow, fast)]
    return difference(samples[0], samples[1], value)


def _apart(passes: dict[str, float]) -> float:
    return passes["clean"] - max(seconds for name, seconds in passes.items() if name != "clean")


def difference(ours: list[float], theirs: list[float], value: float) -> Interval:
    """Interval of a difference: half-widths add as independent errors do."""
    one, other = amount_interval(ours), amount_interval(theirs)
    below = ((one.value - one.low) ** 2 + (other.high - other.value) ** 2) ** 0.5
    above = ((one.high - one.value) ** 2 + (other.value - other.low) ** 2) ** 0.5
    return Interval(value, value - below, value + above)


def _exchange_bars(slow: CaseEvidence, fast: CaseEvidence) -> list[Bar]:
    """Bars of fusion, overlap, and the rest: servers if one side has them, else link and start-up.

    A side without traced gradients uses those of the other side: the network is the same.
    """
    ours, theirs = slow.result.phases["aggregate"], fast.result.phases["aggregate"]
    samples = [[phases_of(passes)["aggregate"] for passes in case.launches.passes] for case in (slow, fast)]
    interval = difference(samples[0], samples[1], ours - theirs)
    one, other = exchange_like(slow, fast), exchange_like(fast, slow)
    if one is None or other is None:
        words = f"exposed: {SECONDS.format(ours)} against {SECONDS.format(theirs)}"
        return [Bar("exchange", ours - theirs, words, interval)]
    bars = _walk(one, other)
    rest = ours - theirs - sum(bar.seconds for bar in bars)
    served = [case.policy is not None and case.policy.aggregation == "parameter_server" for case in (slow, fast)]
    cause = "server" if served[0] != served[1] else "link and start-up"
    words = f"exposed in all: {SECONDS.format(ours)} against {SECONDS.format(theirs)}; {_rate_words(one, other)}"
    spread = Interval(rest, rest - (interval.value - interval.low), rest + (interval.high - interval.value))
    return [*bars, Bar(cause, rest, words, spread)]


def _walk(one: GradientExchange, other: GradientExchange) -> list[Bar]:
    """Change the exchange of the slower side to that of the faster side: first buckets, then overlap."""
    bars, now = [], one
    if now.last != other.last and len(now.sizes) == len(other.sizes):
        then = replace(now, last=other.last)
        words = f"exchanges a step: {now.num_exchanges} against {then.num_exchanges}, {_becomes(now, then)}"
        bars.append(_changed(now, then, "fusion", words))
        now = then
    if now.overlap != other.overlap:
        then = replace(now, overlap=other.overlap)
        with_, without = ("with", "without") if then.overlap else ("without", "with")
        busy = ": exchanges need the cores that compute" if now.contended else ""
        words = f"{with_} overlap instead of {without}, {_becomes(now, then)}{busy}"
        bars.append(_changed(now, then, "overlap", words))
    return bars


def _becomes(now: GradientExchange, then: GradientExchange) -> str:
    return f"exposed {SECONDS.format(now.exposed)} becomes {SECONDS.format(then.exposed)}"


def _changed(now: GradientExchange, then: GradientExchange, cause: str, words: str) -> Bar:
    def strategy(item: GradientExchange) -> dict[str, Any]:
        return {"overlap": item.overlap} if cause == "overlap" else {"bucket": _bucket(item)}

    return Bar(
        cause,
        now.exposed - then.exposed,
        f"{words} (model)",
        trial=Trial(strategy=strategy(then)),
        reverse=Trial(strategy=strategy(now)),
    )


def _bucket(exchange: GradientExchange) -> int:
    """The bucket size for a trial: 0 if every gradient is sent separately."""
    return 0 if exchange.num_exchanges == len(exchange.sizes) else round(exchange.bucket_limit)


def _rate_words(one: GradientExchange, other: GradientExchange) -> str:
    return (
        f"start-up {SECONDS.format(one.startup)} against {SECONDS.format(other.startup)} an exchange, "
        f"{one.per_byte * 1e9:.3g} against {other.per_byte * 1e9:.3g} ns a byte"
    )
