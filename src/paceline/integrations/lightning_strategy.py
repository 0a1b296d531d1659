"""The Trainer of Lightning on unequal machines.

trainer = Trainer(..., strategy=PacelineStrategy(global_batch=512))
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lightning.pytorch.accelerators import CUDAAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.trainer.states import RunningStage

from paceline.errors import InputError
from paceline.integrations.shared_loader import SharedLoader
from paceline.runtime.members.rendezvous import launch_context
from paceline.runtime.pace import Pace
from paceline.runtime.settings import Settings

__all__ = ["PacelineStrategy"]


class PacelineStrategy(SingleDeviceStrategy):
    """Trains with all launched processes, with shares by measured speed. A step has `global_batch` samples over all
    ranks; by default the loader's batch for every rank. Logged metrics cover this rank's samples. One optimizer, no
    gradient accumulation.
    """

    strategy_name = "paceline"

    def __init__(self, global_batch: int | None = None, settings: Settings | None = None, **options: Any) -> None:
        options.setdefault("device", "cuda" if CUDAAccelerator.is_available() else "cpu")
        super().__init__(**options)
        self._global_batch, self._settings = global_batch, settings
        context = launch_context()
        self.global_rank, self.world_size = context.rank, context.size
        self.pace: Pace | None = None
        """The `Pace` of this process; set when training begins."""
        self._shared: SharedLoader | None = None
        self._trainer: Any = None

    @property
    def is_global_zero(self) -> bool:
        """Whether this process writes logs and checkpoints."""
        return bool(self.global_rank == 0)

    def setup(self, trainer: Any) -> None:
        """Model and optimizer are ready after this."""
        self._trainer, self._shared = trainer, None
        super().setup(trainer)
        if trainer.accumulate_grad_batches > 1 or len(self.optimizers) > 1:
            raise InputError(
                "PacelineStrategy steps one optimizer after every batch",
                hint="raise global_batch instead of accumulate_grad_batches",
            )

    def process_dataloader(self, dataloader: Any) -> Any:
        """Training samples are shared between ranks; every rank uses all validation samples."""
        if sys._getframe(1).f_locals.get("stage") is not RunningStage.TRAINING:
            return dataloader
        if self._shared is not None:
            raise InputError(
                "the trainer has a second loader of training samples; ranks share those of one",
                hint="one DataLoader of one dataset, and reload_dataloaders_every_n_epochs=0",
            )
        self._shared = SharedLoader(dataloader, global_batch=self._global_batch, settings=self._told)
        return self._shared

    @property
    def _told(self) -> Settings:
        """Trainer(sync_batchnorm=True) has the meaning that it has for several processes of Lightning's own."""
        settings = self._settings or Settings()
        synced = self._trainer._accelerator_connector._layer_sync is not None
        return replace(settings, batchnorm="sync") if synced else settings

    def on_train_start(self) -> None:
        """Join: loaders may be asked for before there are optimizers, to count the steps of a schedule."""
        assert self._shared is not None
        trainer = self._trainer
        also = [config.scheduler for config in self.lr_scheduler_configs]
        epochs = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else sys.maxsize
        done = divmod(trainer.global_step, len(self._shared))  # of a checkpoint
        self.pace = self._shared.begin(self.lightning_module, self.optimizers, also, epochs=epochs, done=done)
        # A late joiner starts in the current epoch of the other ranks.
        progress = trainer.fit_loop.epoch_progress.current
        progress.processed = progress.completed = max(progress.processed, self.pace.position.epoch)

    def backward(self, closure_loss: Any, optimizer: Any, *rest: Any, **options: Any) -> Any:
        """The backward pass, after which gradients are those of the whole step."""
        assert self.pace is not None
        loss = self.precision_plugin.pre_backward(closure_loss, self.lightning_module)
        self.pace.backward(loss)
        return self.precision_plugin.post_backward(loss, self.lightning_module)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **options: Any) -> Any:
        """One step of all ranks; if the group has changed, the step repeats, and the epoch has one more step."""
        assert self.pace is not None
        result, scaler = closure(), getattr(self.precision_plugin, "scaler", None)
        if scaler is not None:
            scaler.unscale_(optimizer)
        self.precision_plugin._after_closure(self.lightning_module, optimizer)
        if not self.pace.update(scaler):
            assert self._shared is not None
            loop = self._trainer.fit_loop
            loop.max_batches += 1
            loop._data_fetcher.length += 1
            # The trainer steps schedules also after a step that does not count.
            self._shared.undo = _rates_of(self.optimizers, [config.scheduler for config in self.lr_scheduler_configs])
        return result

    def on_train_end(self) -> None:
        """Wait until all have finished."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.leave()

    def on_exception(self, exception: BaseException) -> None:
        """Leave, so that the other ranks do not wait for this rank."""
        shared, self._shared = self._shared, None
        if shared is not None and shared.joined:
            shared.pace.__exit__(None, None, None)


def _rates_of(optimizers: Sequence[Any], schedules: Sequence[Any]) -> Callable[[], None]:
    """What brings schedules and rates back to what they are now."""
    states = [copy.deepcopy(schedule.state_dict()) for schedule in schedules]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    rates = [{name: value for name, value in group.items() if name != "params"} for group in groups]

    def bring_back() -> None:
        for schedule, state in zip(schedules, states, strict=True):
            schedule.load_state_dict(state)
        for group, kept in zip(groups, rates, strict=True):
            group.update(kept)

    return bring_back
