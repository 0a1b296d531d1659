"""One shard of the common parameters: who may update it, when a round is complete, and what is kept on disk.

A round ends when K groups have arrived and either all have or the grace window since the K-th is over. Progress is
weighed by samples: a group that did n of the N samples that all groups do per round moves the parameters by n / N of
its progress. An update is on disk before anybody is told of it, so a killed shard comes back without losing any; a
group that asks again is recognised by its sequence number and never counted twice.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import StoreError
from paceline.runtime.syncer.keeping import kept_or_ended
from paceline.runtime.syncer.rules import Array, Outer, OuterState, Rule, outer_step, weigh

__all__ = ["Arrival", "Policy", "Shard"]

REMEMBERED = 8
"""Versions kept for rules that need where a group started."""


@dataclass(frozen=True)
class Policy:
    """When and how updates happen."""

    groups: int = 1
    quorum: int = 1
    """K: groups whose progress completes a round."""
    grace: float = 0.0
    """Seconds that a complete round waits for those who are late."""
    rule: Rule = field(default_factory=Rule)
    outer: Outer = field(default_factory=Outer)


@dataclass(frozen=True)
class Arrival:
    """A group's progress on this shard."""

    group: str
    sequence: int
    base: int
    """Version it started from."""
    samples: int
    progress: Array


class Shard:
    """The state of one shard; not thread-safe, the server serialises."""

    def __init__(self, policy: Policy, path: Path | None = None) -> None:
        self._policy, self._path = policy, path
        self._groups = policy.groups
        self.version = 0
        self.theta: Array | None = None
        self._state: OuterState | None = None
        self._applied: dict[str, int] = {}
        self._samples: dict[str, int] = {}
        self._waiting: dict[str, Arrival] = {}
        self._reached_at: float | None = None
        self._history: deque[tuple[int, Array]] = deque(maxlen=REMEMBERED)
        self._step_lengths: deque[float] = deque(maxlen=32)
        self.staleness: list[int] = []
        """Of every update that was taken, in order."""
        self.dropped = 0
        if path is not None and path.exists():
            self._load(path)

    def start(self, theta: Array) -> None:
        """The first group's parameters are the first version."""
        if self.theta is None:
            self.theta = theta.copy()
            self._state = OuterState(np.zeros_like(theta), np.zeros_like(theta))
            self._remember()
            self._save()

    def arrive(self, arrival: Arrival, now: float) -> None:
        """Take in progress; what was applied before is not taken again."""
        if arrival.sequence <= self._applied.get(arrival.group, 0):
            return
        self._samples[arrival.group] = arrival.samples
        self._waiting[arrival.group] = arrival
        if self._reached_at is None and len(self._waiting) >= min(self._policy.quorum, self._groups):
            self._reached_at = now

    def forget(self, group: str) -> None:
        """A group begins anew: it counts its exchanges from one again, and what it left unfinished is dropped."""
        self._waiting.pop(group, None)
        if not self._waiting:
            self._reached_at = None
        if self._applied.pop(group, None) is not None:
            self._save()

    def settled(self, group: str, sequence: int) -> bool:
        """Whether a group's progress has been dealt with."""
        return sequence <= self._applied.get(group, 0)

    def has(self, group: str, sequence: int) -> bool:
        """Whether a group's progress was taken in, even if its round is not over."""
        waiting = self._waiting.get(group)
        return self.settled(group, sequence) or (waiting is not None and waiting.sequence == sequence)

    def advance(self, now: float) -> bool:
        """Complete the round if it is time; says whether it did."""
        if self._reached_at is None:
            return False
        everybody = len(self._waiting) >= self._groups
        if not everybody and now - self._reached_at < self._policy.grace:
            return False
        self._update(list(self._waiting.values()))
        self._waiting, self._reached_at = {}, None
        return True

    def retune(self, quorum: int) -> None:
        """From now on so many groups complete a round."""
        self._policy = replace(self._policy, quorum=quorum)
        self.count(self._groups)
        if self.theta is not None:
            self._save()

    def count(self, groups: int) -> None:
        """From now on so many groups take part."""
        self._groups = max(1, groups)
        if self._reached_at is None and len(self._waiting) >= min(self._policy.quorum, self._groups):
            self._reached_at = 0.0 if self._waiting else None

    def _update(self, arrivals: list[Arrival]) -> None:
        assert self.theta is not None
        assert self._state is not None
        total = sum(self._samples.values())
        progress = np.zeros_like(self.theta)
        for arrival in sorted(arrivals, key=lambda item: item.group):
            counted = self._weighed(arrival)
            if counted is not None:
                progress += counted * (arrival.samples / total)
            self._applied[arrival.group] = arrival.sequence
        moved = outer_step(self.theta, progress, self._state, self._policy.outer)
        self._step_lengths.append(float(np.linalg.norm(moved - self.theta)))
        self.theta = moved
        self.version += 1
        self._remember()
        self._save()

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
        self._history.append((self.version, self.theta.copy()))

    def _save(self) -> None:
        if self._path is None:
            return
        assert self.theta is not None
        assert self._state is not None
        facts = {
            "version": self.version,
            "applied": self._applied,
            "samples": self._samples,
            "quorum": self._policy.quorum,
        }
        temporary = self._path.with_suffix(".tmp")
        with kept_or_ended(self._path), temporary.open("wb") as file:
            np.savez(
                file,
                theta=self.theta,
                velocity=self._state.velocity,
                gathered=self._state.gathered,
                count=self._state.count,
                facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
            )
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(self._path)

    def _load(self, path: Path) -> None:
        try:
            with np.load(path, allow_pickle=False) as content:
                facts: dict[str, Any] = json.loads(content["facts"].tobytes())
                self.theta = content["theta"]
                self._state = OuterState(content["velocity"], content["gathered"], int(content["count"]))
        except (OSError, ValueError, KeyError) as error:
            raise StoreError(f"cannot read the shard {path}: {error}") from error
        self.version, self._applied, self._samples = facts["version"], facts["applied"], facts["samples"]
        self._policy = replace(self._policy, quorum=facts["quorum"])
        self._remember()
