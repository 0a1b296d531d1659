"""How late progress counts, and how the common parameters move: pure functions over arrays.

A group that started from version u and arrives when the version is v is stale by s = v - u. Its progress is the
difference between the parameters it started from and those it came to.

    divide       progress / (1 + s)
    gap          progress / (1 + |theta_v - theta_u| / mean step length)                (gap-aware, Barkai et al. 2020)
    compensate   progress + lambda * progress^2 * (theta_v - theta_u)                   (DC-ASGD, Zheng et al. 2017)
    discard      nothing if s > limit, else progress
    keep         progress

Delayed Nesterov (Liu et al. 2024): momentum changes only every N updates, from the mean of what came in between, since
momentum is what makes asynchronous updates diverge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.errors import InputError

__all__ = ["Array", "Outer", "OuterState", "Rule", "StaleRule", "outer_step", "weigh"]

Array = np.ndarray
StaleRule = Literal["keep", "divide", "gap", "compensate", "discard"]
RULES = ("keep", "divide", "gap", "compensate", "discard")


@dataclass(frozen=True)
class Rule:
    """How stale progress counts."""

    name: StaleRule = "divide"
    limit: int = 8
    """Staleness beyond which `discard` drops progress."""
    compensation: float = 0.1
    """Lambda of `compensate`."""

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise InputError(f"the staleness rule is {self.name!r}, expected one of {', '.join(RULES)}")


@dataclass(frozen=True)
class Outer:
    """The optimiser of the common parameters."""

    rate: float = 1.0
    momentum: float = 0.0
    delay: int = 1
    """Updates between two changes of the momentum; 1 is plain Nesterov."""


@dataclass
class OuterState:
    """What the optimiser remembers."""

    velocity: Array
    gathered: Array
    count: int = 0


def weigh(progress: Array, *, now: Array, base: Array | None, stale: int, rule: Rule, mean_step: float) -> Array | None:
    """Progress as it counts; None if it is dropped. `base` is None if that version is not remembered any more."""
    if stale <= 0 or rule.name == "keep":
        return progress
    if rule.name == "discard":
        return None if stale > rule.limit else progress
    if rule.name == "divide" or base is None:
        return progress / (1 + stale)
    if rule.name == "gap":
        distance = float(np.linalg.norm(now - base))
        return progress / (1 + distance / mean_step) if mean_step > 0 else progress
    return progress + rule.compensation * progress * progress * (now - base)


def outer_step(theta: Array, progress: Array, state: OuterState, outer: Outer) -> Array:
    """The parameters after one update; the state is changed in place."""
    if outer.momentum == 0:
        return theta - outer.rate * progress
    state.gathered += progress
    state.count += 1
    moved = progress
    if state.count % outer.delay == 0:
        state.velocity *= outer.momentum
        state.velocity += state.gathered / outer.delay
        state.gathered[:] = 0
        moved = progress + outer.momentum * state.velocity
    return theta - outer.rate * moved
