"""A finding: a cause with its evidence, what removing it would gain, the exact change, and a trial that shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.measurements.summary import Interval

__all__ = ["Change", "Finding", "Trial"]

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
