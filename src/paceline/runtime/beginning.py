"""Where a process takes part when it starts: as its launcher says, over MPI, or where it was before it was killed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.runtime.auto.regroup import join_again
from paceline.runtime.auto.seats import GroupSeats, seats_of
from paceline.runtime.members.meet import Launched, launched, meet
from paceline.runtime.members.member import Member
from paceline.runtime.settings import Settings
from paceline.runtime.syncer.between import Membership, membership

__all__ = ["Beginning", "beginning_of"]


@dataclass(frozen=True)
class Beginning:
    """What is known before anybody was met."""

    start: Launched
    seats: GroupSeats | None
    """The group that strategy='auto' had put this rank in, if it was started again."""
    where: Membership | None
    """The group and its syncer; None if all ranks are one group."""
    decides: bool
    """Whether the ranks themselves decide how they train together."""

    @property
    def roster(self) -> Path | None:
        """Where late ranks of this job look for the others."""
        return self.start.roster

    def meet(self, settings: Settings) -> Member:
        """Take part; the first view is up to the caller."""
        if self.seats is not None:
            return join_again(self.start, self.seats, settings.patience)
        return meet(self.start, settings.patience)


def beginning_of(settings: Settings) -> Beginning:
    """From the launcher's variables and what the job has left for late ranks."""
    start, auto = _start_of(settings), settings.strategy == "auto"
    seats = seats_of(start) if auto else None
    where = seats.membership(start.secret or b"") if seats is not None else membership()
    return Beginning(start, seats, where, decides=auto and (seats is not None or where is None))


def _start_of(settings: Settings) -> Launched:
    """Where the ranks meet: MPI knows by itself, the others need what a launcher said."""
    if settings.transport != "mpi":
        return launched()
    from paceline.runtime.group.mpi import launched_by_mpi

    return launched_by_mpi()
