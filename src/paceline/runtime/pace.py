"""The user's training loop: batches that fit each rank, and steps that equal one process with the whole batch.

    with join(model, optimizer, dataset, global_batch=512) as pace:
        for batch in pace.batches(epochs=10):
            loss = loss_fn(model(batch.inputs), batch.targets)
            pace.step(loss)

A rank with n of the step's N samples weighs its gradients by n / N, so their sum is the gradient of the mean loss over
all N, whatever the split. If the group changes in mid-step, the step is not committed and its samples are used again.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.errors import InputError
from paceline.runtime.attempt import Attempt, StepRecord, chunked
from paceline.runtime.auto.choose import Choice
from paceline.runtime.auto.pilot import Pilot
from paceline.runtime.auto.regroup import Door, gathered, part
from paceline.runtime.beginning import beginning_of
from paceline.runtime.emulate import emulate_as_told
from paceline.runtime.group.batchnorm import WireHolder, prepare_batchnorm
from paceline.runtime.group.session import GroupSession
from paceline.runtime.group.wire import Broken
from paceline.runtime.loading import Batch, Samples, load
from paceline.runtime.samples import Position, advance, epoch_order, even_part, share_of, step_size
from paceline.runtime.settings import Settings
from paceline.runtime.syncer.between import Between, Membership
from paceline.runtime.training import Training

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
    """Take part in the training of a model with whoever else was launched; alone it is a plain loop."""
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
        self.settings, self._dataset, self.global_batch = settings, dataset, global_batch
        self._holder, begin = WireHolder(), beginning_of(settings)
        self._roster = begin.roster
        self._synced = prepare_batchnorm(model, self._holder, how=settings.batchnorm, ranks=begin.start.size)
        emulate_as_told(model, global_batch)
        self._between = self._exchanging(begin.where, model) if begin.where else None
        """The other groups, if there are any."""
        batch = self._between.batch if self._between else global_batch
        also = (self._between,) if self._between else ()
        self._training = Training(model, optimizer, settings, num_samples=len(dataset), global_batch=batch, also=also)
        self._training.resume()
        self._member = begin.meet(settings)
        self._pilot = Pilot(global_batch) if begin.decides else None
        self._door: Door | None = None
        """Where all groups are to meet again, if this process opened it."""
        self._session: GroupSession | None = None
        self._attempt: Attempt | None = None
        self._epochs, self._by_epochs = 0, False
        self._last_end = time.perf_counter()
        self.records: deque[StepRecord] = deque(maxlen=RECORDS)
        """The newest committed steps."""
        self.views: list[tuple[int, int, float]] = []
        """Each view this rank was in: number, ranks, and when it began by time.monotonic()."""

    def __enter__(self) -> Pace:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            self._session.close()
        self._member.leave()
        if self._between is not None:
            self._between.leave()

    @property
    def position(self) -> Position:
        """How far training has come."""
        return self._training.position

    @property
    def rank(self) -> int:
        """This process's place in the group now."""
        return self._live.rank

    @property
    def size(self) -> int:
        """How many processes train together now."""
        return self._live.size

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of each rank in a full step, as of now."""
        return self._live.balance.shares(self._training.global_batch)

    @property
    def noticed(self) -> list[float]:
        """Each moment at which this rank knew that its view had ended, by time.monotonic()."""
        return self._member.noticed

    def explain(self) -> str:
        """Why the group steps as it does, from what was measured so far."""
        return self._live.explain(self._training.global_batch)

    def syncer_facts(self) -> dict[str, Any]:
        """Versions, groups and staleness by the syncer's count; nothing if there is one group only."""
        return {"syncer": self._between.facts()} if self._between is not None else {}

    @property
    def grouped(self) -> bool:
        """Whether there are other groups, with which this one exchanges through a syncer."""
        return self._between is not None

    @property
    def reasons(self) -> list[str]:
        """Why the ranks train together as they do, one sentence for each decision of strategy='auto' made here."""
        return self._pilot.reasons if self._pilot is not None else []

    @property
    def noise_scale(self) -> float | None:
        """Samples per step beyond which more hardly help; None unless Settings(noise=True) and enough was seen."""
        return self._training.noise.samples

    @property
    def _live(self) -> GroupSession:
        if self._session is None:
            raise InputError("the group is joined by `with join(...) as pace:`")
        return self._session

    def batches(self, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Batch]:
        """This rank's batches until so many epochs or committed steps of the whole run are done."""
        if self._between is not None and epochs is None:
            raise InputError("groups share epochs of samples", hint="say batches(epochs=...) when there is a syncer")
        self._epochs, self._by_epochs = epochs or 0, steps is None
        if epochs is None and steps is None:
            raise InputError("batches() needs to know when to end", hint="batches(epochs=10) or batches(steps=1000)")
        self._member.go_on()
        while True:
            while not self._reached(epochs, steps):
                yield from self._try_step()
            view = self._member.finish(self._training.report(self._live))
            if view is None:
                break
            self._enter(view)
        self._training.save_last(self.rank)

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

    def _reached(self, epochs: int | None, steps: int | None) -> bool:
        position = self.position
        if self._between is not None and self._between.over:
            return True
        if self._between is not None:
            epochs = None
        return (epochs is not None and position.epoch >= epochs) or (steps is not None and position.step >= steps)

    def _try_step(self) -> Iterator[Batch]:
        """The chunks of this rank's share; none if it has no share, or until the group has changed."""
        if self._member.interrupted.is_set():
            self._recover(Broken("the group changes"))
            return
        if self._between is not None and not self._exchanged():
            return
        size = self._next_size()
        session, position = self._live, self.position
        shares = session.balance.shares(size)
        order = epoch_order(len(self._dataset), seed=self.settings.seed, epoch=position.epoch)
        mine = share_of(order, position, shares, session.rank)
        attempt = Attempt(size, shares, chunked(mine, self.settings.chunk), began=self._last_end)
        self._attempt = attempt
        if not attempt.chunks:
            self._step_without_samples(attempt)
            return
        for number, chunk in enumerate(attempt.chunks, start=1):
            yield load(self._dataset, chunk, device=self._training.device, collate=self.settings.collate)
            if self._attempt is not attempt:
                return
            if attempt.done != number:
                raise InputError("a batch was not followed by step()", hint="call pace.step(loss) once for each batch")

    def _next_size(self) -> int:
        """Samples of the next step of this group."""
        if self._between is not None:
            return even_part(self._between.end - self.position.cursor, self._between.batch)
        return step_size(self.position, num_samples=len(self._dataset), global_batch=self.global_batch)

    def _moved_on(self, size: int) -> Position:
        """The position after a committed step of so many samples."""
        position = self.position
        if self._between is not None:
            return Position(position.step + 1, position.epoch, position.cursor + size)
        return advance(position, size, num_samples=len(self._dataset))

    def _exchanged(self) -> bool:
        """Have samples to work on; False if the group changed meanwhile or all samples are used."""
        try:
            self._exchange_if_due()
        except Broken as error:
            self._recover(error)
            return False
        return self._between is not None and not self._between.over

    def _exchange_if_due(self) -> None:
        """When a lease is used up, the group's first rank speaks with the syncer and tells the others."""
        between, session = self._between, self._live
        if between is None or between.over or (between.sequence > 0 and self.position.cursor < between.end):
            return
        if session.rank == 0:
            self._training.mark = f"speaking:{secrets.token_hex(4)}"
            self._speak(between)
            self._take_lease(between)
        header, theta = between.header(), between.base.clone()
        session.wire.broadcast(header, 0)
        session.wire.broadcast(theta, 0)
        if session.rank != 0:
            between.follow(header, theta)
            self._take_lease(between)
        self._training.mark = f"{session.view.number}:{session.view.leader}:round {between.sequence}"
        if between.over and self._pilot is not None:
            self._gather(json.loads(session.wire.tell(json.dumps(between.news_of_end()), 0)))
        self._last_end = time.perf_counter()

    def _speak(self, between: Between) -> None:
        """One exchange with the syncer; the first group also hears what the others say, and may call all together."""
        if self._pilot is not None:
            between.told = self._pilot.tells(self._live, between.seconds)
        begin = (self.position.epoch, self.position.cursor)
        between.exchange(num_samples=len(self._dataset), epochs=self._epochs, begin=begin)
        if self._pilot is not None and not between.over and self._door is None:
            self._door = self._pilot.hear(between, self._member.peer.address)

    def _split(self, choice: Choice) -> None:
        """Go on in several groups."""
        patience = self.settings.patience
        self._member, where = part(self._live, self._member, choice, patience, roster=self._roster)
        self._between = self._exchanging(where, self._training.model)
        self._training.join_others(self._between, global_batch=self._between.batch)
        self._enter_anew()

    def _exchanging(self, where: Membership, model: nn.Module) -> Between:
        return Between(where, model, global_batch=self.global_batch, compress=self.settings.compress)

    def _gather(self, told: dict[str, Any] | None) -> None:
        """Go on as one group, if that is why no samples are left."""
        between, pilot = self._between, self._pilot
        if told is None or between is None or pilot is None:
            return
        between.leave()
        self._between = None
        self._training.join_others(None, global_batch=self.global_batch)
        pilot.gathered()
        self._member = gathered(self._member, told, self._door, self.settings.patience, roster=self._roster)
        self._door = None
        self._enter_anew()

    def _enter_anew(self) -> None:
        """The first view among other ranks: what samples cost is still known, what the links cost is not."""
        session, self._session = self._live, None
        self._training.costs = session.balance.plain()
        session.close()
        self._enter()

    def _take_lease(self, between: Between) -> None:
        """Go on with the samples of the new lease."""
        self._training.position = Position(self.position.step, between.epoch, between.begin)

    def _backward(self, loss: Tensor, attempt: Attempt, chunk: np.ndarray, *, last: bool) -> None:
        if self._holder.broken is not None:
            raise self._holder.broken
        mean = self.settings.reduction == "mean"
        mine = attempt.shares[self._live.rank]
        weight = mine / attempt.size if mean else 1.0
        if mean and len(attempt.chunks) > 1:
            loss = loss * (len(chunk) / mine)
        if self._synced:
            # Layers that sum over the ranks in the backward pass need gradients that are weighted already.
            loss, weight = loss * weight, 1.0
        if last:
            self._live.begin(weight, step_began=attempt.began)
        loss.backward()

    def _step_without_samples(self, attempt: Attempt) -> None:
        try:
            self._live.begin(0.0, step_began=attempt.began)
            self._commit(attempt)
        except Broken as error:
            self._recover(error)

    def _commit(self, attempt: Attempt) -> None:
        self._training.drain()
        compute = time.perf_counter() - attempt.began
        session = self._live
        session.exchange(attempt.shares, compute)
        if self._member.doubtful:
            raise Broken("this process may have been left behind while it waited")
        self._training.update()
        self._training.position = self._moved_on(attempt.size)
        self._training.mark = f"{session.view.number}:{session.view.leader}:{self.position.step}"
        self._attempt = None
        end = time.perf_counter()
        seconds, self._last_end = end - self._last_end, end
        record = StepRecord(self.position.step, session.view.number, attempt.size, attempt.shares, seconds, compute)
        self.records.append(record)
        session.after_commit()
        self._look_around(seconds)
        self._exchange_if_due()
        self._training.save_if_due(session)

    def _look_around(self, seconds: float) -> None:
        """Whether the ranks should train together in another way."""
        if self._pilot is not None and self._between is None:
            may_split = self._by_epochs and self._training.may_be_divided
            choice = self._pilot.look(self._live, seconds, step=self.position.step, may_split=may_split)
            if choice is not None:
                self._split(choice)

    def _recover(self, error: Broken) -> None:
        log.info("step %d is tried again: %s", self.position.step + 1, str(error).splitlines()[0][:160])
        self._attempt = None
        self._training.optimizer.zero_grad(set_to_none=True)
        self._member.trouble(self._live.view, str(error))
        self._enter()

    def _enter(self, view: Any = None) -> None:
        """Take the next view, and the one after if that breaks while it is set up."""
        while True:
            previous = self._session
            report = self._training.report(previous)
            if previous is not None:
                previous.close()
            view = view or self._member.next_view(report)
            try:
                self._session = GroupSession(
                    self._member, view, self._training, holder=self._holder, synced=self._synced
                )
                break
            except Broken as error:
                self._member.trouble(view, str(error))
                view = None
        if self._between is not None:
            self._between.take_turn(speaks=self.rank == 0)
        self.views.append((view.number, len(view.peers), time.monotonic()))
        self._last_end = time.perf_counter()
