"""The user's training loop: batches that fit each rank, and steps that equal one process with the whole batch.

    with join(model, optimizer, dataset, global_batch=512) as pace:
        for batch in pace.batches(epochs=10):
            loss = loss_fn(model(batch.inputs), batch.targets)
            pace.step(loss)

A rank with n of the step's N samples weighs its gradients by n / N, so their sum is the gradient of the mean loss over
all N, whatever the split. If the group changes in mid-step, the step is not committed and its samples are used again.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import InputError
from paceline.runtime.auto.pilot import NoPilot, Pilot
from paceline.runtime.emulate import emulate_as_told
from paceline.runtime.group.batchnorm import WireHolder, prepare_batchnorm
from paceline.runtime.group.session import RankGroup
from paceline.runtime.group.wire import Broken
from paceline.runtime.groups import GroupContext, GroupMode, Limits, OneGroup, SyncedGroups, start_of
from paceline.runtime.members.view import View
from paceline.runtime.samples import (
    REACHED,
    Attempt,
    Position,
    StepRecord,
    chunked,
    epoch_order,
    reached_rate,
    share_of,
)
from paceline.runtime.settings import Settings
from paceline.runtime.training import Batch, Samples, Training, load

__all__ = ["Pace", "StepRecord", "join"]

RECORDS = 10_000
log = logging.getLogger("paceline.runtime")


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: Samples,
    *,
    global_batch: int,
    settings: Settings | None = None,
) -> Pace:
    """Take part in the training of a model with all ranks that were launched; alone it is a plain loop."""
    if global_batch < 1:
        raise InputError(f"global_batch is {global_batch}, expected at least 1")
    if len(dataset) < 1:
        raise InputError("the dataset is empty")
    return Pace(model, optimizer, dataset, global_batch=global_batch, settings=settings or Settings())


class Pace:
    """One process's part in a training run."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        dataset: Samples,
        *,
        global_batch: int,
        settings: Settings,
    ) -> None:
        self._holder, start = WireHolder(), start_of(settings)
        if start.batch is not None and start.batch != global_batch:
            log.warning("the plan's global batch of %d takes the place of %d", start.batch, global_batch)
        self._planned, global_batch = start.batch is not None, start.batch or global_batch
        self.settings, self._dataset, self.global_batch = settings, dataset, global_batch
        self._synced = prepare_batchnorm(model, self._holder, how=settings.batchnorm, ranks=start.context.size)
        emulate_as_told(model, global_batch)
        client = start.client(model, settings, global_batch=global_batch)
        self._training = Training(
            model,
            optimizer,
            settings,
            num_samples=len(dataset),
            global_batch=client.batch if client else global_batch,
            also=(client,) if client else (),
            split=start.split,
        )
        # Resumed before the ranks meet: each then reports how far it is, and all take over from the most advanced.
        self._training.resume()
        self._group = RankGroup(start.meet(settings), self._training, holder=self._holder, synced=self._synced)
        self._pilot = Pilot(global_batch) if start.regroups else NoPilot()
        job = GroupContext(self._group, self._pilot, len(dataset), global_batch, start.context.roster, Limits())
        self._mode: GroupMode = SyncedGroups(job, client) if client else OneGroup(job)
        self._attempt: Attempt | None = None
        self.records: deque[StepRecord] = deque(maxlen=RECORDS)
        """The newest committed steps."""

    def __enter__(self) -> Pace:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.leave()

    @property
    def position(self) -> Position:
        """How far training has come."""
        return self._training.position

    @property
    def rank(self) -> int:
        """This process's rank in its group now."""
        return self._group.session.rank

    @property
    def size(self) -> int:
        """How many processes train together now."""
        return self._group.session.size

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of each rank in a full step, as of now."""
        return self._group.session.balance.shares(self._training.global_batch)

    @property
    def views(self) -> list[tuple[int, int, float]]:
        """Each view this rank was in: number, ranks, and when it began by time.monotonic()."""
        return self._group.views

    @property
    def noticed(self) -> list[float]:
        """Each moment at which this rank knew that its view had ended, by time.monotonic()."""
        return self._group.member.noticed

    def explain(self) -> str:
        """Why the group steps as it does, from what was measured so far."""
        return self._group.session.explain(self._training.global_batch)

    def facts(self) -> dict[str, Any]:
        """What the balance and the exchange came to, for records of runs."""
        session = self._group.session
        return {
            **self.syncer_facts(),
            "shares": list(self.shares),
            "costs": session.balance.plain(),
            "link": session.link_plain(),
            "buckets": len(session.reducer.layout),
        }

    def syncer_facts(self) -> dict[str, Any]:
        """Versions, groups and staleness by the syncer's count; nothing if there is one group only."""
        return self._mode.facts()

    @property
    def grouped(self) -> bool:
        """Whether there are other groups, with which this one exchanges through a syncer."""
        return self._mode.synced

    @property
    def reasons(self) -> Sequence[str]:
        """Why the ranks train together as they do, one sentence for each decision of scheme='auto' made here."""
        return self._pilot.reasons

    @property
    def noise_scale(self) -> float | None:
        """Samples per step beyond which more hardly help; None unless Settings(noise=True) and enough was seen."""
        return self._training.noise.samples

    def batches(self, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Batch]:
        """This rank's batches until `epochs` epochs or `steps` committed steps of the whole run are done."""
        if epochs is None and steps is None:
            raise InputError("batches() needs to know when to end", hint="batches(epochs=10) or batches(steps=1000)")
        self._mode.begin(Limits(epochs, steps))
        self._group.member.go_on()
        while True:
            while not self._mode.finished():
                yield from self._try_step()
            view = self._group.member.finish(self._training.standing())
            if view is None:
                break
            self._enter(view)
        self._training.save_last(self.rank)
        rate, steps = reached_rate(self.records)
        if self._planned and self.rank == 0 and steps:
            sys.stdout.write(REACHED.format(rate=rate, steps=steps) + "\n")
            sys.stdout.flush()

    def step(self, loss: Tensor) -> None:
        """Backward pass, exchange and update; a chunk that is not the last of its step only adds gradients."""
        attempt = self._attempt
        if attempt is None or attempt.done >= len(attempt.chunks):
            raise InputError("step() was called without a batch", hint="call it once for each batch of batches()")
        chunk = attempt.chunks[attempt.done]
        attempt.done += 1
        last = attempt.done == len(attempt.chunks)
        try:
            self._backward(loss, attempt, chunk, last=last)
            if last:
                self._commit(attempt)
        except Broken as error:
            self._recover(error)

    def _try_step(self) -> Iterator[Batch]:
        """The chunks of this rank's share; none if it has no share, or until the group has changed."""
        self._group.member.waiting()
        try:
            if self._group.member.interrupted.is_set():
                raise Broken("the group changes")
            self._mode = self._mode.prepare()
        except Broken as error:
            self._recover(error)
            return
        if self._mode.finished():
            return
        attempt = self._attempt = self._next_attempt()
        if not attempt.chunks:
            self._step_without_samples(attempt)
            return
        for number, chunk in enumerate(attempt.chunks, start=1):
            self._group.member.working(self.position.step + 1)
            yield load(self._dataset, chunk, device=self._training.device, collate=self.settings.collate)
            if self._attempt is not attempt:
                return
            if attempt.done != number:
                raise InputError("a batch was not followed by step()", hint="call pace.step(loss) once for each batch")

    def _next_attempt(self) -> Attempt:
        size, session, position = self._mode.next_size(), self._group.session, self.position
        shares = session.balance.shares(size)
        order = epoch_order(len(self._dataset), seed=self.settings.seed, epoch=position.epoch)
        mine = share_of(order, position, shares, session.rank)
        return Attempt(size, shares, chunked(mine, self.settings.chunk), began=self._group.last_end)

    def _backward(self, loss: Tensor, attempt: Attempt, chunk: np.ndarray, *, last: bool) -> None:
        if self._holder.broken is not None:
            raise self._holder.broken
        session, mean = self._group.session, self.settings.reduction == "mean"
        mine = attempt.shares[session.rank]
        weight = mine / attempt.size if mean else 1.0
        if mean and len(attempt.chunks) > 1:
            loss = loss * (len(chunk) / mine)
        if self._synced:
            # Layers that sum over the ranks in the backward pass need gradients that are weighted already.
            loss, weight = loss * weight, 1.0
        if last:
            session.begin(weight, step_began=attempt.began)
        loss.backward()

    def _step_without_samples(self, attempt: Attempt) -> None:
        try:
            self._group.session.begin(0.0, step_began=attempt.began)
            self._commit(attempt)
        except Broken as error:
            self._recover(error)

    def _commit(self, attempt: Attempt) -> None:
        self._training.drain()
        self._group.member.waiting()
        compute = time.perf_counter() - attempt.began
        session = self._group.session
        session.exchange(attempt.shares, compute)
        # After the exchange and before the update: a process that was suspended in between may hold the sum of a step
        # that the others have tried again without it.
        if self._group.member.doubtful:
            raise Broken("this process may have been declared failed while it waited")
        self._training.update()
        self._mode.commit(attempt.size)
        view = session.view
        self._training.changed(view.number, f"{view.number}:{view.leader.id}:{self.position.step}")
        # From here the step is committed: what breaks below is not a reason to try it again.
        self._attempt = None
        end = time.perf_counter()
        seconds, self._group.last_end = end - self._group.last_end, end
        record = StepRecord(self.position.step, session.view.number, attempt.size, attempt.shares, seconds, compute, end)
        self.records.append(record)
        session.after_commit()
        # Twice, and kept in between: the first may change the groups, and the second, which may break, is of the new.
        self._mode = self._mode.prepare(seconds)
        self._mode = self._mode.prepare()
        self._training.save_if_due(session.rank, session.balance.plain())
        self._group.member.working(self.position.step)

    def _recover(self, error: Broken) -> None:
        log.info("step %d is tried again: %s", self.position.step + 1, str(error).splitlines()[0][:160])
        self._attempt = None
        self._training.optimizer.zero_grad(set_to_none=True)
        self._group.recover(error)
        self._mode.entered()

    def _enter(self, view: View | None = None) -> None:
        self._group.enter(view)
        self._mode.entered()
