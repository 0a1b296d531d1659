"""The user's training loop: batches that fit the speed of each rank, and steps that equal those of one process.

    with join(model, optimizer, dataset, global_batch=512) as pace:
        for batch in pace.batches(epochs=10):
            loss = loss_fn(model(batch.inputs), batch.targets)
            pace.step(loss)

`pace.step(loss)` is `pace.backward(loss)` and `pace.update()`; between the two, gradients are those of the whole step.
A rank with n of the N samples of a step weights its gradients by n / N, so that their sum is the gradient of the mean
loss over all N samples, for any split. If the group changes during a step, the step is not committed and repeats.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from paceline.errors import InputError, TrainingLost
from paceline.runtime.auto.pilot import NoPilot, Pilot
from paceline.runtime.data.batches import Batch
from paceline.runtime.data.feed import AnySource, TrainingData, source_of
from paceline.runtime.data.streamfeed import check_streams, feed_of
from paceline.runtime.emulate import emulate_as_told
from paceline.runtime.group.batchnorm import WireHolder, prepare_batchnorm
from paceline.runtime.group.session import RankGroup
from paceline.runtime.group.wire import Broken
from paceline.runtime.groups import GroupContext, GroupMode, Limits, OneGroup, SyncedGroups, start_of
from paceline.runtime.members.view import View
from paceline.runtime.observe.recorder import MetricsRecorder
from paceline.runtime.samples import Attempt, Position, StepRecord, print_reached
from paceline.runtime.settings import Settings
from paceline.runtime.training import Training

__all__ = ["Pace", "StepRecord", "join"]

RECORDS = 10_000
log = logging.getLogger("paceline.runtime")


def join(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    data: TrainingData,
    *,
    global_batch: int,
    settings: Settings | None = None,
) -> Pace:
    """Join the training of a model by all launched ranks; a single process runs a plain training loop.

    `with join(...) as pace:` leaves the group at the end of the block; without `with`, the process leaves when it
    exits. Several optimizers are stepped together. `data` is a dataset or `ShardStreams`, whose samples are loaded in
    the training loop, or a function that makes a DataLoader from a sampler, so that its workers load the samples:
    `lambda sampler: DataLoader(dataset, batch_sampler=sampler, num_workers=4)`.
    """
    if not isinstance(global_batch, SupportsIndex) or global_batch < 1:
        raise InputError(f"global_batch is {global_batch!r}, expected a whole number of samples, at least 1")
    settings, global_batch = settings or Settings(), int(global_batch)
    if not isinstance(settings, Settings):
        raise InputError(f"settings is a {type(settings).__name__}, expected Settings(...)")
    return Pace(model, optimizer, source_of(data, settings), global_batch=global_batch, settings=settings)


class Pace:
    """The training loop of one process."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        source: AnySource,
        *,
        global_batch: int,
        settings: Settings,
    ) -> None:
        self._holder, start, self.settings, self._process = WireHolder(), start_of(settings), settings, os.getpid()
        self._planned = start.batch is not None
        self.global_batch = global_batch = start.chosen_batch(global_batch)
        self._synced = prepare_batchnorm(model, self._holder, settings, ranks=start.context.size)
        emulate_as_told(model, global_batch)
        client = start.client(model, settings, global_batch=global_batch)
        self._training = Training(
            model,
            optimizer,
            settings,
            num_samples=source.num_samples,
            sketch=source.sketch,
            global_batch=client.batch if client else global_batch,
            also=(*source.kept, client) if client else source.kept,
            split=start.split,
            ahead=source.ahead,
        )
        self._training.whole_batch = global_batch
        check_streams(source, settings, groups=client is not None, sharded=self._training.unit.sharded)
        self._feed = feed_of(source, settings, self._training.device, global_batch=global_batch)
        # The checkpoint is loaded before the rendezvous: ranks report their progress, and copy the most advanced state.
        self._training.resume(start.group)
        self._group = RankGroup(start.meet(settings), self._training, holder=self._holder, synced=self._synced)
        self._pilot = Pilot(global_batch) if start.regroups else NoPilot()
        job = GroupContext(self._group, self._pilot, source.num_samples, global_batch, start.context.roster, Limits())
        self._mode: GroupMode = SyncedGroups(job, client) if client else OneGroup(job)
        self._recorder = MetricsRecorder(settings, group=start.group or "group", rank=start.context.rank)
        self._attempt: Attempt | None = None
        self._left = self._again = False
        """Whether this process has left, and whether the step repeats because the group has changed."""
        self._unsettled: float | None = None
        """Seconds of a committed step for which `_settle` has not run yet."""
        self.records: deque[StepRecord] = deque(maxlen=RECORDS)
        """The newest committed steps."""
        self.views = self._group.views
        """Each view of this rank: number, number of ranks, and time.monotonic() at its begin."""
        self.reasons: Sequence[str] = self._pilot.reasons
        """The reason of each decision of scheme='auto' that this rank made, one sentence each."""

    def __enter__(self) -> Pace:
        self._enter_first()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if os.getpid() != self._process:  # a forked child: the connections belong to its parent
            return
        self._left = True
        if kind is None and self._unsettled is not None:  # the loop ended by `break`
            self._training.save_if_due(self.rank, self._group.session.balance.plain())
        self._training.close()
        self._feed.close()
        self._recorder.close()
        self._mode.leave()
        if self._training.unit.is_lost(error):
            raise self._training.unit.lost() from error

    @property
    def position(self) -> Position:
        """The progress of training."""
        return self._training.position

    @property
    def rank(self) -> int:
        """The present rank of this process in its group."""
        return self._group.session.rank

    @property
    def size(self) -> int:
        """The present number of processes in the group."""
        return self._group.session.size

    @property
    def shares(self) -> tuple[int, ...]:
        """Samples of each rank in a full step, by the present estimates."""
        return self._group.session.balance.shares(self._training.global_batch)

    @property
    def noticed(self) -> list[float]:
        """time.monotonic() of each moment at which this rank detected the end of its view."""
        return self._group.member.noticed

    def explain(self) -> str:
        """Explain the present split of the group from the measurements so far."""
        return self._group.session.explain(self._training.global_batch)

    def facts(self) -> dict[str, Any]:
        """Results of the balance and of the exchange, for stored runs."""
        return {**self.syncer_facts(), "shares": list(self.shares), **self._group.session.facts()}

    def syncer_facts(self) -> dict[str, Any]:
        """Versions, groups and staleness, as counted by the syncer; empty for a single group."""
        return self._mode.facts()

    @property
    def grouped(self) -> bool:
        """Whether this group exchanges with other groups through a syncer."""
        return self._mode.synced

    @property
    def noise_scale(self) -> float | None:
        """Gradient noise scale in samples; None without Settings(noise=True) or before enough steps."""
        return self._training.noise.samples

    def batches(self, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Batch]:
        """This rank's batches until `epochs` epochs or `steps` committed steps of the whole run are done."""
        if epochs is None and steps is None:
            raise InputError("batches() needs to know when to end", hint="batches(epochs=10) or batches(steps=1000)")
        if self._left:
            raise TrainingLost("this process has left the job", hint="join again to take part in it")
        self._join_once()
        self._mode.begin(Limits(epochs, steps))
        self._group.member.go_on()
        while True:
            while not self._mode.finished():
                yield from self._try_step()
            view = self._group.member.finish(self._training.standing())
            if view is None:
                break
            self._enter(view)
        self._feed.close()
        self._training.save_last(self.rank)
        if self._planned and self.rank == 0:
            print_reached(self.records)

    def __iter__(self) -> Iterator[Batch]:
        """This rank's batches of one more epoch, as from a DataLoader: `for epoch in range(10): for batch in pace:`."""
        self._join_once()  # a late joiner starts in the epoch of the others
        return self.batches(epochs=self.position.epoch + 1)

    def step(self, loss: Tensor, count: float | Tensor | None = None) -> bool:
        """Run `backward` and `update`; returns whether a step was committed."""
        self.backward(loss, count)
        return self.update()

    def backward(self, loss: Tensor, count: float | Tensor | None = None) -> None:
        """Backward pass and exchange: afterwards gradients are those of the mean loss of the whole step, on every rank.

        If a rank computes its share in several passes, gradients are complete after the last pass. `count`: what the
        loss is a mean over, if not samples: the number of tokens without padding, or the sum of weights.
        """
        attempt = self._attempt
        if attempt is None or attempt.done > attempt.updates or attempt.done >= len(attempt.chunks):
            hint = "call it once for each batch of batches(), followed by update(); add several losses up"
            raise InputError("backward() was called without a batch, or twice for one", hint=hint)
        self._training.check_loss(loss)
        attempt.done += 1
        attempt.take_count(count, mean=self.settings.reduction == "mean")
        attempt.partial |= count is None and self._training.losses.lacks_count(loss, attempt.here)
        try:
            self._backward(loss, attempt)
        except Broken as error:
            self._recover(error)
            self._training.blank_gradients()

    def update(self, scaler: torch.amp.GradScaler | None = None) -> bool:
        """Step the optimizers, through a `GradScaler` if the loss was scaled; returns whether a step was committed.

        No step is committed before the last pass of the rank's share, or if the group has changed and the step repeats.
        Update learning rate schedules and moving averages only if a step was committed.
        """
        attempt, committed = self._attempt, False
        if attempt is not None:
            if attempt.done <= attempt.updates:
                raise InputError("update() was called without backward()", hint="call both once for each batch")
            attempt.updates += 1
            try:
                if attempt.done == len(attempt.chunks):
                    self._commit(attempt, scaler)
                    committed = True
            except Broken as error:
                self._recover(error)
        elif not self._again:
            raise InputError("update() was called without a batch", hint="call it once for each batch of batches()")
        if scaler is not None and not committed:  # drop its record of unused gradients
            scaler.update(scaler.get_scale())
        return committed

    def _try_step(self) -> Iterator[Batch]:
        """The batches of one attempt at a step; none if the group has changed."""
        self._group.member.waiting()
        try:
            self._training.unit.together(self._prepare)
            self._mode = self._mode.take()
            self._training.save_if_due(self.rank, self._group.session.balance.plain())
            if self._mode.finished():
                return
            session, began = self._group.session, self._group.last_end
            attempt = self._feed.next_attempt(self._mode, session, self.position, began=began)
        except Broken as error:
            self._recover(error)
            return
        self._attempt, self._again = attempt, False
        yield from self._passes(attempt)
        self._settle()

    def _prepare(self) -> None:
        """Make sure that samples for the next step are available, unless the view ends."""
        if self._group.member.interrupted.is_set():
            raise Broken("the group changes")
        self._mode.prepare()

    def _passes(self, attempt: Attempt) -> Iterator[Batch]:
        """The batches of a step. A rank without a share gets a batch of weight 0, so that its loop runs every step."""
        self._holder.counts = attempt.shares[self.rank] > 0
        self._group.member.working(self.position.step + 1)
        for number, batch in enumerate(self._feed.batches(attempt), start=1):
            yield batch
            if self._attempt is not attempt:
                return
            if (attempt.done, attempt.updates) != (number, number):
                raise InputError(
                    "a batch was not followed by backward() and update()",
                    hint="call pace.step(loss), or pace.backward(loss) and pace.update(), once for each batch; to "
                    "accumulate gradients raise global_batch and set Settings(chunk=...)",
                )
            self._group.member.working(self.position.step + 1)

    def _backward(self, loss: Tensor, attempt: Attempt) -> None:
        if self._holder.broken is not None:
            raise self._holder.broken
        session, unit = self._group.session, self._training.unit
        within, weight = attempt.weights(session.rank, mean=self.settings.reduction == "mean")
        if self._synced or unit.sharded:
            # Gradients that are summed during the backward pass must be weighted before; FSDP2 takes the mean of its
            # unit.
            within, weight = within * (weight * unit.ranks), 1.0
        loss = loss if within == 1.0 else loss * within
        last = attempt.done == len(attempt.chunks)
        if last:
            self._training.check_trained()
            session.begin(weight, step_began=attempt.began, count=attempt.count)
        self._training.bring_back(within)
        if not attempt.empty:
            loss.backward()
        elif self._synced or unit.sharded:  # layers of other ranks wait for this rank
            (torch.nan_to_num(loss) * 0.0).backward()
        if last:
            self._exchange(attempt)
        else:
            self._training.set_aside()

    def _exchange(self, attempt: Attempt) -> None:
        """Finish the exchange of gradients."""
        self._training.drain()
        self._group.member.waiting()
        attempt.compute = time.perf_counter() - attempt.began
        self._training.unit.together(lambda: self._sum_gradients(attempt))
        attempt.exchange = time.perf_counter() - attempt.began - attempt.compute
        self._group.member.working(self.position.step + 1)

    def _sum_gradients(self, attempt: Attempt) -> None:
        self._group.session.exchange(attempt.shares, attempt.cost, attempt.loading)
        self._group.check_certain()

    def _commit(self, attempt: Attempt, scaler: torch.amp.GradScaler | None) -> None:
        # Checked after the exchange and before the update: a process that was suspended in between may hold the sum of
        # a step that the others have repeated without it. Ranks of a sharded unit have already agreed on the step.
        if not self._training.unit.sharded:
            self._group.check_certain()
        self._training.update(scaler)
        self._training.position = attempt.after
        self._feed.commit(attempt)
        session, view = self._group.session, self._group.session.view
        self._training.changed(view.number, f"{view.number}:{view.leader.id}:{self.position.step}")
        self._attempt, end = None, time.perf_counter()
        seconds, self._group.last_end = end - self._group.last_end, end
        spent = (attempt.size, attempt.shares, seconds, attempt.compute, attempt.waited, attempt.exchange, end)
        self.records.append(StepRecord(self.position.step, view.number, *spent))
        epoch, staleness = self.position.epoch, self._mode.staleness
        self._recorder.step(self.records[-1], rank=session.rank, epoch=epoch, staleness=staleness)
        self._unsettled = seconds

    def _settle(self) -> None:
        """Work after a committed step, done when the user's loop has updated its schedules and averages.

        The step stays committed: a view that ends here does not repeat it.
        """
        if self._unsettled is None:
            return
        seconds, self._unsettled = self._unsettled, None
        self._group.member.waiting()
        try:
            self._training.unit.together(lambda: self._follow_up(seconds))
            self._mode = self._mode.take()
            self._group.member.working(self.position.step)
        except Broken as error:
            self._recover(error)

    def _follow_up(self, seconds: float) -> None:
        self._group.session.after_commit()
        # Stored at once: `look` may change the groups, and errors after it concern the new groups.
        self._mode = self._mode.look(seconds)
        self._mode.prepare()

    def _recover(self, error: Broken) -> None:
        log.info("step %d is tried again: %s", self.position.step + 1, str(error).splitlines()[0][:160])
        self._attempt, self._again = None, True
        self._training.discard_gradients()
        self._group.recover(error)
        self._mode.entered()

    def _join_once(self) -> None:
        """Join at the first use if there is no `with` block; the process leaves at its exit."""
        if not self.views:
            self._enter_first()
            atexit.register(self.__exit__, SystemExit, None, None)

    def _enter_first(self) -> None:
        """Join the group; a rank that cannot take part leaves at once, so that the others do not wait for it."""
        try:
            self._enter()
        except BaseException:
            self._mode.leave()
            raise

    def _enter(self, view: View | None = None) -> None:
        self._group.enter(view)
        self._mode.entered()
