"""Leases of samples to groups: each sample of an epoch is leased exactly once, for any speeds of the groups.

A lease is a range in the order of the epoch. A repeated request with the same sequence number gets the same lease, so
that a lost answer has no effect. The lease of a failed group is given to another group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.runtime.samples import even_part

__all__ = ["GroupStatus", "Lease", "Leases"]


@dataclass(frozen=True)
class GroupStatus:
    """The status that a group reports to the other groups."""

    costs: tuple[tuple[float, float], ...] | None
    """Constant seconds and seconds per sample of each rank; None before any step was measured."""
    straggling: tuple[tuple[float, float], ...]
    """Share of straggling steps of each rank, and their relative length."""
    seconds: float
    """Seconds of the last exchange, without waiting for other groups."""
    size: int


@dataclass(frozen=True)
class Lease:
    """Samples `begin` to `end` in the order of one epoch."""

    epoch: int
    begin: int
    end: int


class Leases:
    """The leases of one training run."""

    def __init__(self, num_samples: int, epochs: int, *, begin: Sequence[int] = (0, 0)) -> None:
        """`begin`: the epoch, and the number of its samples that are already used."""
        self.num_samples, self.epochs = num_samples, epochs
        self._next = Lease(begin[0], begin[1], begin[1])
        self.halted = False
        """If set, no fresh samples are leased: the merged group continues from `position`."""
        self._held: dict[str, tuple[int, Lease]] = {}
        self._asked: dict[str, int] = {}
        """The highest sequence number of each group's requests; requests with lower numbers are late."""
        self._returned: list[Lease] = []

    def take(self, group: str, sequence: int, size: int) -> Lease | None:
        """The next lease of at most `size` samples; None when all epochs are leased.

        A request for the next lease confirms that the previous one is done. The rest of an epoch is divided evenly,
        because groups that wait for each other would lose most of a round to a short last lease.
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
        """A group starts again, and counts its leases from one."""
        self._asked.pop(group, None)

    def sequence_of(self, group: str) -> int:
        """Sequence number of the lease that a group holds; 0 without a lease."""
        return self._held[group][0] if group in self._held else 0

    def release(self, group: str, *, handed_in: bool) -> None:
        """Release the lease of a failed group, to be leased again unless the group had pushed its progress."""
        held = self._held.pop(group, None)
        if held is None:
            return
        # A delayed request for this lease must not be granted: no group would train on the samples.
        self._asked[group] = held[0] + 1
        if not handed_in:
            self._returned.append(held[1])

    @property
    def holders(self) -> list[str]:
        """Groups that hold a lease."""
        return list(self._held)

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, and the number of its samples that were leased."""
        if self._next.end >= self.num_samples:
            return self._next.epoch + 1, 0
        return self._next.epoch, self._next.end

    @property
    def outstanding(self) -> int:
        """Number of leases on which groups train."""
        return len(self._held)

    def plain(self) -> dict[str, Any]:
        """The leases as JSON data."""
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
        """The leases from JSON data."""
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
