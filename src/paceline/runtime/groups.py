"""The group mode of the training loop: a single group, or one of several groups that exchange through the syncer.

The loop uses a `GroupMode`, which is `OneGroup` or `SyncedGroups`. With scheme='auto' one may replace the other during
training; the loop continues with the mode that it receives.
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
"""Counts the calls of join() in this process."""


@dataclass(frozen=True)
class Limits:
    """Limits of training: a number of epochs or of committed steps of the whole run, whichever comes first."""

    epochs: int | None = None
    steps: int | None = None

    def reached(self, position: Position) -> bool:
        """Whether training ends at this position."""
        return (self.epochs is not None and position.epoch >= self.epochs) or (
            self.steps is not None and position.step >= self.steps
        )


@dataclass
class GroupContext:
    """The state that both modes share."""

    group: RankGroup
    pilot: Pilot | NoPilot
    num_samples: int
    """Number of samples of the dataset."""
    global_batch: int
    """Samples of one step of all groups together."""
    roster: Path | None
    limits: Limits

    @property
    def training(self) -> Training:
        """The trained model."""
        return self.group.training


class OneGroup:
    """All ranks step together through the order of the epoch."""

    synced = False
    """Whether this group exchanges with other groups through a syncer."""
    staleness = 0
    """Staleness of the newest exchange; always 0 for a single group."""

    def __init__(self, job: GroupContext) -> None:
        self._job = job

    def begin(self, limits: Limits) -> None:
        """Start to train until these limits are reached."""
        self._job.limits = limits

    def entered(self) -> None:
        """No effect when a view of the group starts, because there is no syncer to notify."""

    def look(self, seconds: float) -> GroupMode:
        """Called after a step of `seconds` seconds: the pilot may split the group. Returns the mode to continue
        with."""
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
        """No effect, because samples are always available."""

    def take(self) -> GroupMode:
        """No effect, because nothing was fetched."""
        return self

    def finished(self) -> bool:
        """Whether the limits are reached."""
        return self._job.limits.reached(self._job.training.position)

    def decided(self, position: Position) -> bool:
        """Whether there is a step at this position."""
        return not self._job.limits.reached(position)

    def next_size(self, position: Position) -> int:
        """Samples of the step at a position; the last step of an epoch takes the remaining samples."""
        return step_size(position, num_samples=self._job.num_samples, global_batch=self._job.global_batch)

    def after(self, position: Position, size: int) -> Position:
        """The position after a step, which may be in the next epoch."""
        return advance(position, size, num_samples=self._job.num_samples)

    def facts(self) -> dict[str, Any]:
        """Empty, because there is no syncer."""
        return {}

    def leave(self) -> None:
        """End the training of this process."""
        self._job.group.leave()


class SyncedGroups:
    """The ranks of this group step together through leases of samples; after each lease they exchange progress."""

    synced = True

    def __init__(self, job: GroupContext, client: SyncerClient) -> None:
        self._job, self._client = job, client
        self._listener: Listener | None = None
        """The listener at which all groups merge, if this process opened it."""
        self._fetched: tuple[Tensor, Tensor] | None = None
        """The answer of an exchange that this rank has received and not applied."""
        if client.sequence:
            # From a checkpoint. Ranks that still train in the exchange of this checkpoint must have another mark.
            client.begin_anew()
            job.training.changed(0, f"{job.training.mark}:anew")
        job.training.share_with((client,), global_batch=client.batch)

    @property
    def staleness(self) -> int:
        """Staleness of the newest exchange, as counted on the rank that exchanges with the syncer."""
        return self._client.staleness

    def begin(self, limits: Limits) -> None:
        """Start to train until these limits are reached; groups share epochs, so a number of epochs is required."""
        if limits.epochs is None:
            raise InputError("groups share epochs of samples", hint="call batches(epochs=...) if there is a syncer")
        self._job.limits = limits

    def entered(self) -> None:
        """When a view starts, its first rank takes over the communication with the syncer."""
        self._fetched = None
        self._client.speak(speaks=self._job.group.session.rank == 0)

    def look(self, seconds: float) -> GroupMode:
        """No change after a step: other strategies are considered at each exchange."""
        return self

    def prepare(self) -> None:
        """After a lease, the first rank of the group exchanges with the syncer and broadcasts the answer.

        No state changes before `take`, so that the exchange can be repeated.
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
        """Apply the answer of the exchange; the ranks of a sharded unit all apply it, or none."""
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
        """Whether no samples are left for this group, or the limit of steps is reached."""
        # The syncer counts epochs: it grants no lease beyond the last epoch.
        return self._client.over or Limits(steps=self._job.limits.steps).reached(self._job.training.position)

    def decided(self, position: Position) -> bool:
        """Whether there is a step at this position of the present lease; the next lease is not known yet."""
        return position.cursor < self._client.end and not Limits(steps=self._job.limits.steps).reached(position)

    def next_size(self, position: Position) -> int:
        """Samples of the step at a position; all steps of a lease have nearly the same size."""
        return even_part(self._client.end - position.cursor, self._client.batch)

    def after(self, position: Position, size: int) -> Position:
        """The position after a step of the lease."""
        return Position(position.step + 1, position.epoch, position.cursor + size)

    def facts(self) -> dict[str, Any]:
        """Versions, groups and staleness, as counted by the syncer."""
        return {"syncer": self._client.facts()}

    def leave(self) -> None:
        """End the training of this process and its connection to the syncer."""
        # The group is left first: the remaining ranks choose a new first rank while this one still sends heartbeats.
        self._job.group.leave()
        self._client.leave()

    def _speak(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """One exchange with the syncer. The first group also reads the reports of all groups, and may start a merge."""
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
        """Merge into one group, if a merge is the reason why no samples are left."""
        job, session = self._job, self._job.group.session
        merged = json.loads(session.wire.tell(json.dumps(self._client.merged_group), 0))
        if merged is None:
            return self
        (address, port), size = merged
        # The syncer is left before the merge: otherwise it would wait for a group that does not come back.
        self._client.leave()
        job.training.share_with((), global_batch=job.global_batch)
        job.pilot.merged()
        timeouts = job.training.settings.timeouts
        job.group.move(
            merge_groups(job.group.member, (address, port), self._listener, size, timeouts, roster=job.roster)
        )
        return OneGroup(job)


GroupMode: TypeAlias = OneGroup | SyncedGroups
"""The interface of the training loop to its group. Both classes have the same methods: `begin`; for each step
`prepare`, `take` and `finished`, and `look` after it; `decided`, `next_size` and `after` for coming steps; `entered`
after each change of the group; `leave` at the end."""


@dataclass(frozen=True)
class Start:
    """How a process starts: as its launcher says, over MPI, or in the group that it had before a restart."""

    context: LaunchContext
    assignment: GroupAssignment | None
    """The group to which scheme='auto' had assigned this rank, if the rank was restarted."""
    where: GroupMembership | None
    """The group and its syncer; None if all ranks form one group."""
    regroups: bool
    """Whether scheme='auto' chooses the groups."""
    batch: int | None = None
    """The global batch of the plan, if there is a plan."""
    split: tuple[int, ...] = ()
    """Samples of each rank of the group in its first steps, from the plan."""

    @property
    def group(self) -> str | None:
        """Name of the group; None if all ranks form one group."""
        return self.where.group if self.where else None

    def chosen_batch(self, asked: int) -> int:
        """The global batch to train with: that of the plan, otherwise that of the script."""
        if self.batch is not None and self.batch != asked:
            log.warning("the plan's global batch of %d takes the place of %d", self.batch, asked)
        return self.batch or asked

    def client(self, model: nn.Module, settings: Settings, *, global_batch: int) -> SyncerClient | None:
        """The client of the syncer; None if all ranks form one group."""
        return SyncerClient(self.where, model, settings, global_batch=global_batch) if self.where else None

    def meet(self, settings: Settings) -> Member:
        """Join the group as a member; the caller then waits for the first view."""
        if self.assignment is not None:
            return join_again(self.context, self.assignment, settings.timeouts)
        return meet(self.context, settings.timeouts)


def start_of(settings: Settings) -> Start:
    """The start of this process, from the launcher's variables and the files that the job keeps for restarted ranks."""
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
    """The launch context: from MPI, if the settings ask for it, otherwise from the launcher's variables."""
    number = next(_JOINS)
    if settings.transport != "mpi" and not only_mpi_knows():
        return launch_context().of_join(number)
    from paceline.runtime.group.mpi import mpi_launch_context

    return mpi_launch_context().of_join(number)
