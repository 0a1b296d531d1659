"""Samples leased to whichever group is ready: each of an epoch exactly once, however fast the groups are.

A lease is a range of the epoch's order. A group that asks again for the same sequence number gets the same lease, so a
lost answer costs nothing. A lease that its group never trained on, because the group failed, is given to another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.runtime.samples import even_part

__all__ = ["GroupStatus", "Lease", "Leases"]


@dataclass(frozen=True)
class GroupStatus:
    """What a group says of itself to the other groups."""

    costs: tuple[tuple[float, float], ...] | None
    """Constant seconds and seconds per sample of each rank; None before any step was measured."""
    straggling: tuple[tuple[float, float], ...]
    """Share of straggling steps of each rank, and how many times longer they take."""
    seconds: float
    """Seconds of the last exchange, without waiting for other groups."""
    size: int


@dataclass(frozen=True)
class Lease:
    """Samples `begin` to `end` of one epoch's order."""

    epoch: int
    begin: int
    end: int


class Leases:
    """The queue of one training run."""

    def __init__(self, num_samples: int, epochs: int, *, begin: Sequence[int] = (0, 0)) -> None:
        """`begin`: the epoch and how many of its samples are used already."""
        self.num_samples, self.epochs = num_samples, epochs
        self._next = Lease(begin[0], begin[1], begin[1])
        self.halted = False
        """No fresh samples are leased: the merged group goes on from `position`."""
        self._held: dict[str, tuple[int, Lease]] = {}
        self._asked: dict[str, int] = {}
        """The highest number that each group asked with: what is older was sent before, and arrives late."""
        self._returned: list[Lease] = []

    def take(self, group: str, sequence: int, size: int) -> Lease | None:
        """The next lease of at most `size` samples; None when all epochs are leased.

        Asking for the next one says that the one before is done. What is left of an epoch is cut evenly: groups that
        wait for each other would lose most of a round to a short rest.
        """
        if self.is_past(group, sequence):
            raise ValueError(f"{group} has asked for lease {self._asked[group]}, so that {sequence} is past")
        self._asked[group] = sequence
        held = self._held.get(group)
        if held is not None and held[0] == sequence:
            return held[1]
        self._held.pop(group, None)
        lease = self._returned.pop(0) if self._returned else None if self.halted else self._fresh(size)
        if lease is not None:
            self._held[group] = (sequence, lease)
        return lease

    def is_past(self, group: str, sequence: int) -> bool:
        """Whether a group has asked for a later lease than this one."""
        return sequence < self._asked.get(group, 0)

    def forget(self, group: str) -> None:
        """A group begins anew and counts its leases from one again."""
        self._asked.pop(group, None)

    def sequence_of(self, group: str) -> int:
        """The number of the lease that a group holds; 0 if it holds none."""
        return self._held[group][0] if group in self._held else 0

    def release(self, group: str, *, handed_in: bool) -> None:
        """A group failed: its samples are leased again, unless it had handed in its progress."""
        held = self._held.pop(group, None)
        if held is None:
            return
        # A request for this lease that is still under way must not get another one: nobody would train on that.
        self._asked[group] = held[0] + 1
        if not handed_in:
            self._returned.append(held[1])

    @property
    def holders(self) -> list[str]:
        """Groups that hold a lease."""
        return list(self._held)

    @property
    def position(self) -> tuple[int, int]:
        """The epoch and how many of its samples were leased."""
        if self._next.end >= self.num_samples:
            return self._next.epoch + 1, 0
        return self._next.epoch, self._next.end

    @property
    def outstanding(self) -> int:
        """Leases that are being trained on."""
        return len(self._held)

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {
            "num_samples": self.num_samples,
            "epochs": self.epochs,
            "next": vars(self._next),
            "held": {group: [sequence, vars(lease)] for group, (sequence, lease) in self._held.items()},
            "returned": [vars(lease) for lease in self._returned],
            "asked": dict(self._asked),
            "halted": self.halted,
        }

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Leases:
        """From JSON data."""
        leases = cls(plain["num_samples"], plain["epochs"])
        leases._next, leases.halted = Lease(**plain["next"]), plain["halted"]
        leases._held = {group: (sequence, Lease(**lease)) for group, (sequence, lease) in plain["held"].items()}
        leases._returned = [Lease(**lease) for lease in plain["returned"]]
        leases._asked = dict(plain["asked"])
        return leases

    def _fresh(self, size: int) -> Lease | None:
        epoch, begin = self._next.epoch, self._next.end
        if begin >= self.num_samples:
            epoch, begin = epoch + 1, 0
        if epoch >= self.epochs:
            return None
        self._next = Lease(epoch, begin, begin + even_part(self.num_samples - begin, size))
        return self._next
