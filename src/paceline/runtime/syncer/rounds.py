"""The state of one shard of the common parameters: rounds of updates, and rules for stale progress.

A round ends when K groups have arrived, and either all groups have arrived or the grace window since the K-th arrival
is over. Progress is weighted by samples: a group that computed n of the N samples of a round moves the parameters by
n / N of its progress. A group that started from version u and arrives at version v has staleness s = v - u. Its
progress is the difference between its parameters and those from which it started, and counts as

    divide       progress / (1 + s)
    gap          progress / (1 + |theta_v - theta_u| / mean step length)                (gap-aware, Barkai et al. 2020)
    compensate   progress + lambda * progress^2 * (theta_v - theta_u)                   (DC-ASGD, Zheng et al. 2017)
    discard      nothing if s > limit, else progress
    keep         progress

Delayed Nesterov (Liu et al. 2024): momentum changes only every N updates, from the mean progress since the last change,
because momentum makes asynchronous updates diverge.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from paceline.errors import InputError

__all__ = [
    "Array",
    "Arrival",
    "OuterOptimizer",
    "OuterState",
    "RoundPolicy",
    "ShardState",
    "StalenessRule",
    "StalenessRuleName",
    "outer_step",
    "saved_or_exit",
    "weigh",
]

Array = np.ndarray
log = logging.getLogger("paceline.runtime")
StalenessRuleName = Literal["keep", "divide", "gap", "compensate", "discard"]
REMEMBERED = 8
"""Number of versions that are kept for rules that need the parameters from which a group started."""
RULES = ("keep", "divide", "gap", "compensate", "discard")


@dataclass(frozen=True)
class StalenessRule:
    """How stale progress counts; the rule of the first group applies to all groups."""

    name: StalenessRuleName = "divide"
    """`keep`, `divide`, `gap`, `compensate` or `discard`: see the head of this module."""
    limit: int = 8
    """Staleness beyond which `discard` drops progress."""
    compensation: float = 0.1
    """The coefficient lambda of `compensate`."""

    def __post_init__(self) -> None:
        if self.name not in RULES:
            raise InputError(f"the staleness rule is {self.name!r}, expected one of {', '.join(RULES)}")
        if not math.isfinite(self.compensation):
            raise InputError(f"compensation is {self.compensation}, expected a finite number")


@dataclass(frozen=True)
class OuterOptimizer:
    """The optimiser of the common parameters."""

    rate: float = 1.0
    """Factor on the mean progress of a round."""
    momentum: float = 0.0
    """Nesterov momentum; 0 for none."""
    delay: int = 1
    """Number of updates between two changes of the momentum; 1 is plain Nesterov."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.rate) and math.isfinite(self.momentum) and self.delay >= 1):
            raise InputError(f"{self}: expected finite numbers, and a delay of 1 or more")


@dataclass
class OuterState:
    """The state of the optimiser."""

    velocity: Array
    pending: Array
    """Sum of progress since the last change of the momentum."""
    count: int = 0


def weigh(
    progress: Array, *, now: Array, base: Array | None, stale: int, rule: StalenessRule, mean_step: float
) -> Array | None:
    """Progress as weighted by the rule; None if it is dropped. `base` is None if that version is no longer kept."""
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


def outer_step(theta: Array, progress: Array, state: OuterState, outer: OuterOptimizer) -> Array:
    """The parameters after one update; changes the state in place."""
    if outer.momentum == 0:
        return theta - outer.rate * progress
    state.pending += progress
    state.count += 1
    moved = progress
    if state.count % outer.delay == 0:
        state.velocity *= outer.momentum
        state.velocity += state.pending / outer.delay
        state.pending[:] = 0
        moved = progress + outer.momentum * state.velocity
    return theta - outer.rate * moved


@dataclass(frozen=True)
class RoundPolicy:
    """When a round is complete."""

    groups: int = 1
    quorum: int = 1
    """K: number of groups whose progress completes a round."""
    grace: float = 0.0
    """Seconds for which a complete round waits for further groups."""
    rule: StalenessRule = field(default_factory=StalenessRule)
    outer: OuterOptimizer = field(default_factory=OuterOptimizer)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> RoundPolicy:
        """The policy from JSON data."""
        rule, outer = StalenessRule(**plain.get("rule", {})), OuterOptimizer(**plain.get("outer", {}))
        return cls(plain["groups"], plain["quorum"], plain.get("grace", 0.0), rule, outer)


@dataclass(frozen=True)
class Arrival:
    """Progress of a group on this shard."""

    group: str
    sequence: int
    base: int
    """The version from which the group started."""
    samples: int
    progress: Array


class ShardState:
    """The state of one shard; not thread-safe, so the shard calls it under its lock."""

    def __init__(self, policy: RoundPolicy) -> None:
        self._policy = policy
        self._groups = policy.groups
        self.version = 0
        self.theta: Array | None = None
        self._state: OuterState | None = None
        self._applied: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        """Samples of the last progress of each active group; their sum is the samples of a round."""
        self._waiting: dict[str, Arrival] = {}
        self._reached_at: float | None = None
        self._history: deque[tuple[int, Array]] = deque(maxlen=REMEMBERED)
        self._step_lengths: deque[float] = deque(maxlen=32)
        self.staleness: list[int] = []
        """Staleness of every applied update, in order."""
        self.dropped = 0

    def start(self, theta: Array, rule: StalenessRule | None = None, outer: OuterOptimizer | None = None) -> None:
        """Start with the parameters of the first group as the first version, and with its rules."""
        if self.theta is None:
            self._policy = replace(self._policy, rule=rule or self._policy.rule, outer=outer or self._policy.outer)
            self.theta = theta.copy()
            self._state = OuterState(np.zeros_like(theta), np.zeros_like(theta))
            self._remember()

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Add progress to the round; progress that was already applied is ignored."""
        if arrival.sequence <= self._applied.get(arrival.group, 0):
            return
        self._samples[arrival.group] = arrival.samples
        self._waiting[arrival.group] = arrival
        if self._reached_at is None and len(self._waiting) >= min(self._policy.quorum, self._groups):
            self._reached_at = now

    def forget(self, group: str) -> None:
        """A group starts again: its exchanges count from one, and its pending progress is dropped."""
        self._waiting.pop(group, None)
        if not self._waiting:
            self._reached_at = None
        self._applied.pop(group, None)

    def leave(self, group: str) -> None:
        """A group failed or left: until it arrives again, rounds count without its samples."""
        self._samples.pop(group, None)

    def settled(self, group: str, sequence: int) -> bool:
        """Whether a group's progress was applied or dropped."""
        return sequence <= self._applied.get(group, 0)

    def has(self, group: str, sequence: int) -> bool:
        """Whether a group's progress was received, even if its round is not complete."""
        waiting = self._waiting.get(group)
        return self.settled(group, sequence) or (waiting is not None and waiting.sequence == sequence)

    def advance(self, now: float) -> bool:
        """Complete the round if it is due; returns whether it was."""
        if self._reached_at is None:
            return False
        everybody = len(self._waiting) >= self._groups
        if not everybody and now - self._reached_at < self._policy.grace:
            return False
        self._update(list(self._waiting.values()))
        self._waiting, self._reached_at = {}, None
        return True

    def retune(self, quorum: int) -> None:
        """Set the number of groups that complete a round."""
        self._policy = replace(self._policy, quorum=quorum)
        self.count(self._groups)

    def count(self, groups: int) -> None:
        """Set the number of groups that take part."""
        self._groups = max(1, groups)
        if self._reached_at is None and len(self._waiting) >= min(self._policy.quorum, self._groups):
            self._reached_at = 0.0 if self._waiting else None

    def _update(self, arrivals: list[Arrival]) -> None:
        assert self.theta is not None
        assert self._state is not None
        total = sum({**self._samples, **{arrival.group: arrival.samples for arrival in arrivals}}.values())
        progress = np.zeros_like(self.theta)
        for arrival in sorted(arrivals, key=lambda item: item.group):
            counted = self._weighed(arrival)
            if counted is not None:
                progress += counted * (arrival.samples / total)
            self._applied[arrival.group] = arrival.sequence
        moved = outer_step(self.theta, progress, self._state, self._policy.outer)
        if self._policy.rule.name == "gap":
            self._step_lengths.append(float(np.linalg.norm(moved - self.theta)))
        self.theta = moved
        self.version += 1
        self._remember()

    def _weighed(self, arrival: Arrival) -> Array | None:
        assert self.theta is not None
        stale = self.version - arrival.base
        base = next((theta for version, theta in self._history if version == arrival.base), None)
        mean = float(np.mean(self._step_lengths)) if self._step_lengths else 0.0
        rule = self._policy.rule
        counted = weigh(arrival.progress, now=self.theta, base=base, stale=stale, rule=rule, mean_step=mean)
        if counted is None:
            self.dropped += 1
        else:
            self.staleness.append(stale)
        return counted

    def _remember(self) -> None:
        assert self.theta is not None
        self._history.append((self.version, self.theta))  # updates make new arrays

    def facts(self) -> dict[str, Any]:
        """The state without arrays, as JSON data."""
        return {
            "version": self.version,
            "applied": dict(self._applied),
            "samples": dict(self._samples),
            "quorum": self._policy.quorum,
            "rule": vars(self._policy.rule),
            "outer": vars(self._policy.outer),
            "count": self._state.count if self._state is not None else 0,
        }

    def arrays(self) -> dict[str, Array]:
        """The parameters and, with momentum, the state of the optimiser."""
        if self.theta is None or self._state is None:
            return {}
        state = {"velocity": self._state.velocity, "pending": self._state.pending}
        return {"theta": self.theta, **(state if self._policy.outer.momentum else {})}

    def restore(self, facts: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Load a saved state."""
        theta = self.theta = arrays["theta"]
        velocity, pending = (arrays.get(name, np.zeros_like(theta)) for name in ("velocity", "pending"))
        self._state = OuterState(velocity.copy(), pending.copy(), facts["count"])
        self.version, self._applied, self._samples = facts["version"], dict(facts["applied"]), dict(facts["samples"])
        rule, outer = StalenessRule(**facts["rule"]), OuterOptimizer(**facts["outer"])
        self._policy = replace(self._policy, quorum=facts["quorum"], rule=rule, outer=outer)
        self._remember()


@contextlib.contextmanager
def saved_or_exit(path: str) -> Iterator[None]:
    """A context for writing: a shard that cannot write exits, because every acknowledged update must be on disk.

    A shard that continued from memory would lose acknowledged updates at its next crash. A restarted shard continues
    from the last state on disk, and groups repeat unanswered requests.
    """
    try:
        yield
    except OSError as error:
        log.critical("%s cannot be written, so this shard ends: %s", path, error)
        os._exit(1)
