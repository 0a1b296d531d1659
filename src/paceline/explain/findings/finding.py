"""A finding: a cause with its evidence, the gain of removing it with an interval, the exact change, and a trial.

A gain is a share of the time per sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.cases.exchange import GradientExchange, exchanges_by_launch, gradient_exchange
from paceline.measurements.summary import Interval, median_interval

__all__ = [
    "WORTH_SAYING",
    "Change",
    "Finding",
    "Trial",
    "exchange_gain",
    "gain_of",
    "is_shown",
    "weighty_exchange",
]

Kind = Literal["setting", "code", "purchase", "machine"]


@dataclass(frozen=True)
class Change:
    """What to do, exactly."""

    kind: Kind
    """A setting of the study or framework, a line of the training script, money, or care for the machine."""
    what: str
    """The flag, the line, or what to buy."""
    warning: str = ""
    """What else it changes, such as accuracy."""


@dataclass(frozen=True)
class Trial:
    """A run that changes only the cause: fields of the case to replace, for whoever runs campaigns."""

    strategy: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None
    batch: int | None = None
    ranks: int | None = None
    input: str | None = None


@dataclass(frozen=True)
class Finding:
    """One reason why a case is not faster."""

    cause: str
    """A fixed word, such as `slow_link`."""
    title: str
    """The finding as a sentence."""
    case_id: str
    case: str
    evidence: tuple[str, ...]
    gain: Interval
    """Share of the time per sample that the change would save, predicted, with its interval."""
    change: Change
    trial: Trial | None = None
    """How to confirm it here; None if it cannot be tried by changing settings alone."""
    measured_gain: Interval | None = None
    """The gain of the trial, where it was run."""

    @property
    def weight(self) -> float:
        """For ranking: the gain, discounted where the change costs money."""
        return self.gain.value * (0.8 if self.change.kind == "purchase" else 1.0)


WORTH_SAYING = 0.05
"""Share of the time per sample below which a gain is not worth a finding."""
AT_LEAST = WORTH_SAYING / 2
"""Where the interval of a gain that is advised must begin: what is lower may be nothing but noise."""


def is_shown(gain: Interval) -> bool:
    """Whether a gain is worth a finding and its whole interval says so; one launch has none and shows nothing."""
    return gain.value >= WORTH_SAYING and math.isfinite(gain.low) and gain.low >= AT_LEAST


def gain_of(evidence: CaseEvidence, saved: Interval) -> Interval:
    """The share of the step that saved seconds are; both intervals together."""
    step = evidence.result.step_s
    assert step is not None
    if not math.isfinite(step.low) or not math.isfinite(saved.low):
        return Interval(_share(saved.value, step.value), float("-inf"), float("inf"))
    return Interval(*(_share(one, other) for one, other in _ends(saved, step)))


def _ends(saved: Interval, step: Interval) -> tuple[tuple[float, float], ...]:
    return (saved.value, step.value), (saved.low, step.high), (saved.high, step.low)


def weighty_exchange(evidence: CaseEvidence) -> GradientExchange | None:
    """The exchange of a case, if all of its exposed time is worth a finding: no change to it can gain more."""
    step, exchange = evidence.result.step_s, gradient_exchange(evidence)
    return exchange if exchange is not None and step and exchange.exposed >= WORTH_SAYING * step.value else None


def exchange_gain(evidence: CaseEvidence, saved: Callable[[GradientExchange], float]) -> Interval:
    """The gain of a change to the exchange: over launches, and over what a call may cost, which was not measured."""
    step, exchange = evidence.result.step_s, gradient_exchange(evidence)
    assert step is not None
    assert exchange is not None
    value = _share(saved(exchange), step.value)
    if value < WORTH_SAYING:
        return Interval(value, 0.0, value)
    found = [[_share(saved(fit), clean) for fit in fits] for clean, fits in exchanges_by_launch(evidence)]
    low = median_interval([min(shares) for shares in found]).low
    high = median_interval([max(shares) for shares in found]).high
    return Interval(value, min(value, low), max(value, high))


def _share(seconds: float, step: float) -> float:
    return min(1.0, max(0.0, seconds / step))
