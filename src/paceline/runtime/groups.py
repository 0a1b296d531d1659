"""The group of the training loop: a single group, or one of several groups that exchange through the syncer.

The loop talks to a `GroupMode`, which is `OneGroup` or `SyncedGroups`. With scheme='auto' one may replace the other
during training; the loop continues with the mode that it receives.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from paceline import variables
from paceline.errors import InputError
from paceline.runtime.auto.pilot import NoPilot, Pilot
from paceline.runtime.auto.regroup import (
    GroupAssignment,
    Listener,
    assignment_of,
    join_again,
    merge_groups,
    split_groups,
)
from paceline.runtime.group.session import RankGroup
from paceline.runtime.members.member import Member
from paceline.runtime.members.rendezvous import LaunchContext, launch_context, meet, number_of, only_mpi_knows
from paceline.runtime.samples import Position, advance, even_part, step_size
from paceline.runtime.settings import Settings
from paceline.runtime.syncer.client import GroupMembership, SyncerClient, group_membership
from paceline.runtime.syncer.held import gather_numbers, spread_numbers
from paceline.runtime.training import Training

__all__ = ["GroupContext", "GroupMode", "Limits", "OneGroup", "Start", "SyncedGroups", "start_of"]

log = logging.getLogger("paceline.runtime")
MOST = 2**31 - 1
"""Samples of a step."""
_JOINS = itertools.count()
"""Calls of join() in this process."""


@dataclass(frozen=True)
class Limits:
    """When training ends: after this number of epochs or committed steps of the whole run, whichever comes first."""

    epochs: int | None = None
    steps: int | None = None

    def reached(self, position: Position) -> bool:
        """Whether training ends at this position."""
        return (self.epochs is not None and position.epoch >= self.epochs) or (
            self.steps is not None and position.step >= self.steps
        )


@dataclass
class GroupContext:
    """The common state of both modes."""

    group: RankGroup
    pilot: Pilot | NoPilot
    num_samples: int
    """Of the dataset."""
    global_batch: int
    """Samples of a step of all groups together."""
    roster: Path | None
    limits: Limits

    @property
    def training(self) -> Training:
        """The trained model."""
        return self.group.training


class OneGroup:
    """All ranks step together, through the epoch's order."""

    synced = False
    """Whether there are other groups, with which this one exchanges through a syncer."""
    staleness = 0
    """Updates by other groups that the newest exchange did not know of."""

    def __init__(self, job: GroupContext) -> None:
        self._job = job

    def begin(self, limits: Limits) -> None:
        """Train until these limits are reached."""
        self._job.limits = limits

    def entered(self) -> None:
        """A view of the group has started; there is no syncer to notify."""

    def look(self, seconds: float) -> GroupMode:
        """After a step that took `seconds` the pilot may split the group; the mode to go on with."""
        job = self._job
        may_split = job.limits.steps is None and job.training.may_be_divided
        choice = job.pilot.look(job.group.session, seconds, step=job.training.position.step, may_split=may_split)
        if choice is None:
            return self
        timeouts = job.training.settings.timeouts
        member, where = split_groups(job.group.session, job.group.member, choice, timeouts, roster=job.roster)
        client = SyncerClient(where, job.training.model, job.training.settings, global_batch=job.global_batch)
        mode = SyncedGroups(job, client)
        job.group.move(member)
        return mode

    def prepare(self) -> None:
        """Have samples for the next step, which are always there."""

    def take(self) -> GroupMode:
        """Nothing was fetched."""
        return self

    def finished(self) -> bool:
        """Whether the limits are reached."""
        return self._job.limits.reached(self._job.training.position)

    def decided(self, position: Position) -> bool:
        """Whether there is a step at this position, as far as is known now."""
        return not self._job.limits.reached(position)

    def next_size(self, position: Position) -> int:
        """Samples of the step at a position: the last step of an epoch takes what is left."""
        return step_size(position, num_samples=self._job.num_samples, global_batch=self._job.global_batch)

    def after(self, position: Position, size: int) -> Position:
        """Further on in the epoch's order, and in the next epoch at its end."""
        return advance(position, size, num_samples=self._job.num_samples)

    def facts(self) -> dict[str, Any]:
        """Empty, because there is no syncer."""
        return {}

    def leave(self) -> None:
        """End the training of this process."""
        self._job.group.leave()


class SyncedGroups:
    """The ranks of this group step together through leases of samples; between two leases they exchange progress."""

    synced = True

    def __init__(self, job: GroupContext, client: SyncerClient) -> None:
        self._job, self._client = job, client
        self._listener: Listener | None = None
        """Where all groups are to meet as one, if this process opened it."""
        self._fetched: tuple[Tensor, Tensor] | None = None
        """An exchange that this rank has the answer of and has not taken."""
        if client.sequence:
            # From a checkpoint. Its mark must not be that of ranks which still train in the exchange that it knew.
            client.begin_anew()
            job.training.changed(0, f"{job.training.mark}:anew")
        job.training.share_with((client,), global_batch=client.batch)

    @property
    def staleness(self) -> int:
        """Updates by other groups that the newest exchange did not know of; as the rank that speaks counts them."""
        return self._client.staleness

    def begin(self, limits: Limits) -> None:
        """Train until these limits are reached; epochs are what groups share."""
        if limits.epochs is None:
            raise InputError("groups share epochs of samples", hint="say batches(epochs=...) when there is a syncer")
        self._job.limits = limits

    def entered(self) -> None:
        """The current first rank of the group communicates with the syncer."""
        self._fetched = None
        self._client.speak(speaks=self._job.group.session.rank == 0)

    def look(self, seconds: float) -> GroupMode:
        """Whether other groups would be better is asked with each exchange."""
        return self

    def prepare(self) -> None:
        """When a lease is used up, the group's first rank speaks with the syncer and tells the others.

        Nothing is changed: the exchange can be repeated until `take`.
        """
        client, session = self._client, self._job.group.session
        if client.over or (client.sequence > 0 and self._job.training.position.cursor < client.end):
            return
        speaker = next(unit for unit in session.units if 0 in unit)
        mine = gather_numbers(client.held, client.handed_in(), session.wire, speaker)
        header, theta = (client.header(), None) if mine is None else self._speak(mine)
        session.wire.broadcast(header, 0)
        self._fetched = header, spread_numbers(client.held, theta, session.wire)

    def take(self) -> GroupMode:
        """Go on with what was fetched; the ranks of a sharded unit do so together, or not at all."""
        if self._fetched is None:
            return self
        client, training, view = self._client, self._job.training, self._job.group.session.view
        client.take(*self._fetched)
        self._fetched = None
        training.position = Position(training.position.step, client.epoch, client.begin)
        training.changed(view.number, f"{view.number}:{view.leader.id}:round {client.sequence}")
        mode = self._merge() if client.over and self._job.pilot.regroups else self
        self._job.group.last_end = time.perf_counter()
        return mode

    def finished(self) -> bool:
        """Whether no samples are left for this group, or enough steps were done."""
        # Epochs are the syncer's to count: it gives no lease beyond the last one.
        return self._client.over or Limits(steps=self._job.limits.steps).reached(self._job.training.position)

    def decided(self, position: Position) -> bool:
        """Whether there is a step at this position of the lease; the lease after it is not known yet."""
        return position.cursor < self._client.end and not Limits(steps=self._job.limits.steps).reached(position)

    def next_size(self, position: Position) -> int:
        """Samples of the step at a position: steps of one size through the lease."""
        return even_part(self._client.end - position.cursor, self._client.batch)

    def after(self, position: Position, size: int) -> Position:
        """Further on in the lease."""
        return Position(position.step + 1, position.epoch, position.cursor + size)

    def facts(self) -> dict[str, Any]:
        """Versions, groups and staleness by the syncer's count."""
        return {"syncer": self._client.facts()}

    def leave(self) -> None:
        """End the training of this process and its connection to the syncer."""
        # The group first: ranks that are left choose another to speak while this one still sends heartbeats.
        self._job.group.leave()
        self._client.leave()

    def _speak(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """One exchange with the syncer; the first group also hears what the others say, and may call all together."""
        job, client, position = self._job, self._client, self._job.training.position
        status = job.pilot.status(job.group.session, client.seconds)
        header, theta = client.exchange(
            numbers,
            num_samples=job.num_samples,
            epochs=job.limits.epochs or 0,
            begin=(position.epoch, position.cursor),
            status=status,
        )
        if not client.is_over(header) and self._listener is None:
            self._listener = job.pilot.retune(client, job.group.member.peer.address)
        return header, theta

    def _merge(self) -> GroupMode:
        """Go on as one group, if that is why no samples are left."""
        job, session = self._job, self._job.group.session
        merged = json.loads(session.wire.tell(json.dumps(self._client.merged_group), 0))
        if merged is None:
            return self
        (address, port), size = merged
        # Left before the ranks meet again: until then the syncer would wait for a group that does not come back.
        self._client.leave()
        job.training.share_with((), global_batch=job.global_batch)
        job.pilot.merged()
        timeouts = job.training.settings.timeouts
        job.group.move(
            merge_groups(job.group.member, (address, port), self._listener, size, timeouts, roster=job.roster)
        )
        return OneGroup(job)


GroupMode: TypeAlias = OneGroup | SyncedGroups
"""What the training loop talks to. Both have the same methods: `begin`, then for each step `prepare`, `take` and
`finished`, and `look` after it; `decided`, `next_size` and `after` for this step and those that come; `entered` after
each change of the group, and `leave` at the end."""


@dataclass(frozen=True)
class Start:
    """Where a process takes part when it starts: as its launcher says, over MPI, or where it was before a restart."""

    context: LaunchContext
    assignment: GroupAssignment | None
    """The group that scheme='auto' had put this rank in, if it was started again."""
    where: GroupMembership | None
    """The group and its syncer; None if all ranks are one group."""
    regroups: bool
    """Whether the ranks themselves decide how they train together."""
    batch: int | None = None
    """The global batch of a plan."""
    split: tuple[int, ...] = ()
    """Samples of each rank of the group in its first steps, as a plan has them."""

    @property
    def group(self) -> str | None:
        """Name of the group; None if all ranks are one group."""
        return self.where.group if self.where else None

    def chosen_batch(self, asked: int) -> int:
        """The global batch to train with: that of the plan, else the one that the script asked for."""
        if self.batch is not None and self.batch != asked:
            log.warning("the plan's global batch of %d takes the place of %d", self.batch, asked)
        return self.batch or asked

    def client(self, model: nn.Module, settings: Settings, *, global_batch: int) -> SyncerClient | None:
        """The group's side of the syncer, if there is one."""
        return SyncerClient(self.where, model, settings, global_batch=global_batch) if self.where else None

    def meet(self, settings: Settings) -> Member:
        """Take part; the first view is up to the caller."""
        if self.assignment is not None:
            return join_again(self.context, self.assignment, settings.timeouts)
        return meet(self.context, settings.timeouts)


def start_of(settings: Settings) -> Start:
    """From the launcher's variables and what the job has left for ranks that are started again."""
    context, auto = _context(settings), settings.scheme == "auto"
    assignment = assignment_of(context) if auto else None
    where = assignment.membership(context.secret or b"") if assignment is not None else group_membership()
    regroups = auto and (assignment is not None or where is None)
    return Start(context, assignment, where, regroups, *planned())


def planned(env: Mapping[str, str] = os.environ) -> tuple[int | None, tuple[int, ...]]:
    """The plan's global batch, None without a plan, and its split of the group's samples."""
    shares = [part for part in env.get(variables.SPLIT, "").split(",") if part]
    split = tuple(number_of({variables.SPLIT: share}, (variables.SPLIT,), otherwise=0, most=MOST) for share in shares)
    return number_of(env, (variables.GLOBAL_BATCH,), otherwise=0, least=1, most=MOST) or None, split


def _context(settings: Settings) -> LaunchContext:
    """Where the ranks meet: MPI knows by itself, the others need what a launcher said."""
    number = next(_JOINS)
    if settings.transport != "mpi" and not only_mpi_knows():
        return launch_context().of_join(number)
    from paceline.runtime.group.mpi import mpi_launch_context

    return mpi_launch_context().of_join(number)
