"""The Trainer of Hugging Face transformers on unequal machines.

    from paceline.integrations.transformers_trainer import PacelineTrainer          before TrainingArguments are made

    PacelineTrainer(model, args, train_dataset=dataset, global_batch=512).train()

Accelerate makes a process group for every launch that it detects, and wraps the model for equal batches. Therefore
importing this module renames the launcher's variables to names that only Paceline reads.
"""

from __future__ import annotations

import copy
import inspect
import os
import sys
import time
from pathlib import Path
from typing import Any

from transformers import Trainer, trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from paceline import variables
from paceline.errors import InputError
from paceline.integrations.shared_loader import SharedLoader
from paceline.runtime.members.rendezvous import launch_context
from paceline.runtime.pace import Pace
from paceline.runtime.settings import Settings

__all__ = ["PacelineTrainer"]

_context = launch_context()
os.environ.update({variables.RANK: str(_context.rank), variables.SIZE: str(_context.size)})
for _name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
    os.environ.pop(_name, None)


WRITTEN = 120.0
"""Seconds that ranks wait for the first one to write the best model."""


_skip_first_batches = trainer.skip_first_batches


def _unless_shared(loader: Any, count: int) -> Any:
    """Batches after the first ones; a resumed job already begins behind those of its checkpoint."""
    return loader if isinstance(loader, SharedLoader) else _skip_first_batches(loader, count)


trainer.skip_first_batches = _unless_shared  # transformers asks for the samplers of what it skips


def _reading(args: Any) -> Any:
    """The arguments of a rank that writes nothing: to itself each rank is the only one."""
    args = copy.copy(args)
    args.__class__ = type("ReadingArguments", (type(args),), {"should_save": property(lambda _: False)})
    return args


class PacelineTrainer(Trainer):
    """Trains with all launched processes, with shares by measured speed. A step has `global_batch` samples over all
    ranks; by default the arguments' batch for every rank. A rank's loss is weighted by its tokens where the trainer
    counts them (models that take `num_items_in_batch`), else by its samples.
    """

    def __init__(self, *rest: Any, global_batch: int | None = None, settings: Settings | None = None, **options: Any):
        super().__init__(*rest, **options)
        if self.args.gradient_accumulation_steps > 1:
            raise InputError(
                "PacelineTrainer steps after every batch", hint="raise global_batch, not gradient_accumulation_steps"
            )
        if not self.is_world_process_zero():
            self.args: Any = _reading(self.args)
        self._given = (global_batch, settings)
        self._shared: SharedLoader
        self._items: Any = None
        """Tokens of the rank's batch, if the trainer counts them."""
        self.pace: Pace
        """The `Pace` of this process; set when training begins."""

    def _shared_samples(self) -> Any:
        """The samples, of which every rank takes its share."""
        batch, settings = self._given
        self._shared = SharedLoader(super().get_train_dataloader(), global_batch=batch, settings=settings)
        return self._shared

    get_train_dataloader = _shared_samples

    def is_world_process_zero(self) -> bool:
        """Whether this process writes logs and checkpoints."""
        return _context.rank == 0

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """The first rank writes what all hold alike; the others note which checkpoint is the best."""
        if self.is_world_process_zero():
            super()._save_checkpoint(model, trial)
        elif self.state.best_global_step:
            folder = Path(self._get_output_dir(trial)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
            self.state.best_model_checkpoint = str(folder)

    def _load_best_model(self) -> None:
        """Once the first rank has written it; it may do so while the others have finished."""
        best, ends = Path(self.state.best_model_checkpoint or ""), time.monotonic() + WRITTEN
        while not (best / TRAINER_STATE_NAME).exists():
            if time.monotonic() > ends:
                raise InputError(
                    f"the best model is not in {best}", hint="ranks need the same output_dir, on shared storage"
                )
            time.sleep(0.05)
        super()._load_best_model()

    def _run_epoch(self, *rest: Any, **options: Any) -> Any:
        """Join before the first epoch, when the optimizer exists; a late joiner skips completed epochs."""
        given = inspect.signature(Trainer._run_epoch).bind(self, *rest, **options).arguments
        epoch: int = given["epoch"]
        if not hasattr(self, "pace"):
            self._begin((epoch, given.get("steps_trained_in_current_epoch", 0)))
        return None if epoch < self.pace.position.epoch else super()._run_epoch(*rest, **options)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        """Forward and backward pass, with the next samples if the group has changed in between."""
        self._items = num_items_in_batch
        loss = super().training_step(model, inputs, self._items)
        while not self._shared.exchanged:
            self.pace.update()
            inputs = self._shared.next()
            if inputs is None:
                break
            self._items = self._get_num_items_in_batch([inputs], self.args.device)
            loss = super().training_step(model, inputs, self._items)
        return loss

    def train(self, *rest: Any, **options: Any) -> Any:
        """Train, and wait until all have finished."""
        try:
            result = super().train(*rest, **options)
        except BaseException as error:
            if hasattr(self, "pace"):  # so that the other ranks do not wait for this rank
                self.pace.__exit__(type(error), error, None)
            raise
        self._shared.leave()
        return result

    def _begin(self, done: tuple[int, int]) -> None:
        """The optimizer's step is the common step, and the backward pass ends with the exchange."""
        accelerated = self.optimizer
        epochs = sys.maxsize if self.args.max_steps > 0 else int(-(-self.args.num_train_epochs // 1))
        self.pace = self._shared.begin(
            self.model, [accelerated.optimizer], [self.lr_scheduler], epochs=epochs, done=done
        )
        scaler = self.accelerator.scaler

        def backward(loss: Any, **options: Any) -> None:
            self.pace.backward(loss if scaler is None else scaler.scale(loss), self._items)

        def step(closure: Any = None) -> None:
            accelerated._is_overflow = not self.pace.update(scaler)

        self.accelerator.backward, accelerated.step = backward, step
