"""A finding: a cause with its evidence, the gain of removing it with an interval, the exact change, and a trial.

A gain is a share of the time per sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.cases.exchange import GradientExchange, exchanges_by_launch, gradient_exchange
from paceline.measurements.summary import Interval, amount_interval

__all__ = [
    "WORTH_SAYING",
    "Change",
    "Finding",
    "Trial",
    "exchange_gain",
    "gain_of",
    "is_shown",
    "ranked",
    "weighty_exchange",
]

Kind = Literal["setting", "code", "purchase", "machine"]
Verdict = Literal["confirmed", "refuted", "within the noise"]


@dataclass(frozen=True)
class Change:
    """A change that removes a cause."""

    kind: Kind
    """Kind of change: a setting, the training script, a purchase, or the machine."""
    what: str
    """The setting, the line of code, or the purchase."""
    warning: str = ""
    """Side effects, such as on accuracy."""


@dataclass(frozen=True)
class Trial:
    """The fields of a case to change in order to test a cause."""

    strategy: dict[str, Any] = field(default_factory=dict)
    threads: int | None = None
    batch: int | None = None
    ranks: int | None = None
    input: str | None = None


@dataclass(frozen=True)
class Finding:
    """One cause of lost time of a case."""

    cause: str
    """Identifier, such as `slow_link`."""
    title: str
    """The finding as a sentence."""
    case_id: str
    case: str
    evidence: tuple[str, ...]
    gain: Interval
    """Predicted share of the time per sample that the change saves, with its interval."""
    change: Change
    trial: Trial | None = None
    """The trial that confirms the finding; None if a change of settings cannot test it."""
    measured_gain: Interval | None = None
    """Measured gain of the trial, if it was run."""
    first: bool = False
    """A condition that affects every other number of the case: listed first, independent of its gain."""
    unknown: str = ""
    """Why the gain cannot be estimated from these launches; empty if it can."""

    @property
    def weight(self) -> float:
        """The gain for ranking, measured if available; discounted for purchases."""
        gain = self.measured_gain or self.gain
        return gain.value * (0.8 if self.change.kind == "purchase" else 1.0)

    @property
    def verdict(self) -> Verdict | None:
        """The result of the trial, if it was run: refuted if the change saves less than is worth a try."""
        gain = self.measured_gain
        if gain is None:
            return None
        if gain.value < AT_LEAST:
            return "refuted"
        return "confirmed" if math.isfinite(gain.low) and gain.low > 0 else "within the noise"


WORTH_SAYING = 0.05
"""Smallest gain of a finding, as a share of the time per sample."""
AT_LEAST = WORTH_SAYING / 2
"""Smallest lower end of the interval of an advised gain; below, the gain may be noise."""


def is_shown(gain: Interval) -> bool:
    """Whether a gain and the lower end of its interval are large enough; one launch has no interval."""
    return gain.value >= WORTH_SAYING and math.isfinite(gain.low) and gain.low >= AT_LEAST


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Conditions first, then the largest gain first."""
    return sorted(findings, key=lambda finding: (not finding.first, -finding.weight))


def gain_of(evidence: CaseEvidence, saved: Interval) -> Interval:
    """Saved seconds as a share of the step; the interval combines both intervals."""
    step = evidence.result.step_s
    assert step is not None
    if not math.isfinite(step.low) or not math.isfinite(saved.low):
        return Interval(_share(saved.value, step.value), float("-inf"), float("inf"))
    return Interval(*(_share(one, other) for one, other in _ends(saved, step)))


def _ends(saved: Interval, step: Interval) -> tuple[tuple[float, float], ...]:
    return (saved.value, step.value), (saved.low, step.high), (saved.high, step.low)


def weighty_exchange(evidence: CaseEvidence) -> GradientExchange | None:
    """The exchange of a case, if its exposed time is large enough for a finding: no change can gain more."""
    step, exchange = evidence.result.step_s, gradient_exchange(evidence)
    return exchange if exchange is not None and step and exchange.exposed >= WORTH_SAYING * step.value else None


def exchange_gain(evidence: CaseEvidence, saved: Callable[[GradientExchange], float]) -> Interval:
    """The gain of a change to the exchange; its interval covers the launches and the unmeasured cost of a call."""
    step, exchange = evidence.result.step_s, gradient_exchange(evidence)
    assert step is not None
    assert exchange is not None
    value = _share(saved(exchange), step.value)
    if value < WORTH_SAYING:
        return Interval(value, 0.0, value)
    gains = [[_share(saved(fit), clean) for fit in fits] for clean, fits in exchanges_by_launch(evidence)]
    low = amount_interval([min(shares) for shares in gains]).low
    high = amount_interval([max(shares) for shares in gains]).high
    return Interval(value, min(value, low), max(value, high))


def _share(seconds: float, step: float) -> float:
    return min(1.0, max(0.0, seconds / step))
