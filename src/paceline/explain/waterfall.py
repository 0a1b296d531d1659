"""One bar of a gap, and the bars of the exchange: its difference walked through the model one cause at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from paceline.explain.advice.finding import Trial
from paceline.explain.evidence import CaseEvidence
from paceline.explain.exchange import Exchange, exchange_like
from paceline.measurements.summary import Interval, median_interval, phases_of
from paceline.units import SECONDS

__all__ = ["Bar", "difference", "exchange_bars"]


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
    reverse: Trial | None = None
    """A run of the faster side that has this cause, where the slower side cannot be without it."""
    measured_s: Interval | None = None
    """What the cause really takes of the step, where a run showed it."""
    tried: str = ""
    """Which side was changed, or why none could be."""


def difference(ours: list[float], theirs: list[float], value: float) -> Interval:
    """Interval of a difference: half-widths add as independent errors do."""
    one, other = median_interval(ours), median_interval(theirs)
    below = ((one.value - one.low) ** 2 + (other.high - other.value) ** 2) ** 0.5
    above = ((one.high - one.value) ** 2 + (other.value - other.low) ** 2) ** 0.5
    return Interval(value, value - below, value + above)


def exchange_bars(slow: CaseEvidence, fast: CaseEvidence) -> list[Bar]:
    """Fusion, overlap, and what is left: of servers where one side has them, else of link and start-up.

    A side that traced no gradients is given those of the other: the network is the same.
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


def _walk(one: Exchange, other: Exchange) -> list[Bar]:
    """From the slower side's exchange towards the faster side's: its buckets first, then its overlap."""
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


def _becomes(now: Exchange, then: Exchange) -> str:
    return f"exposed {SECONDS.format(now.exposed)} becomes {SECONDS.format(then.exposed)}"


def _changed(now: Exchange, then: Exchange, cause: str, words: str) -> Bar:
    def strategy(item: Exchange) -> dict[str, Any]:
        return {"overlap": item.overlap} if cause == "overlap" else {"bucket": _bucket(item)}

    return Bar(
        cause,
        now.exposed - then.exposed,
        f"{words} (model)",
        trial=Trial(strategy=strategy(then)),
        reverse=Trial(strategy=strategy(now)),
    )


def _bucket(exchange: Exchange) -> int:
    """The size to ask for: nothing where every gradient travels by itself."""
    return 0 if exchange.num_exchanges == len(exchange.sizes) else round(exchange.bucket_limit)


def _rate_words(one: Exchange, other: Exchange) -> str:
    return (
        f"start-up {SECONDS.format(one.startup)} against {SECONDS.format(other.startup)} an exchange, "
        f"{one.per_byte * 1e9:.3g} against {other.per_byte * 1e9:.3g} ns a byte"
    )
