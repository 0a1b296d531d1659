"""The training state: model, optimizers and position, as late joiners and checkpoints receive it."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import InputError
from paceline.runtime.checkpoint import (
    CheckpointWriter,
    Stateful,
    checkpoint_of_group,
    load_checkpoint,
    pack_state,
    path_to_resume,
    save_checkpoint,
    unpack_state,
)
from paceline.runtime.data.alike import same_samples
from paceline.runtime.group.loss import LossReduction, parameters_behind
from paceline.runtime.group.shards import gather_whole, keep_own_rows, unit_of
from paceline.runtime.group.trainable import (
    check_trainable,
    fitting,
    kind_of,
    norm_of,
    num_optimized,
    optimizers_of,
    rates_of,
)
from paceline.runtime.large.noise import NoiseScale
from paceline.runtime.members.view import Report
from paceline.runtime.samples import Position
from paceline.runtime.settings import Settings

__all__ = ["Training"]

log = logging.getLogger("paceline.runtime")
ALIKE = ("balance", "bucket", "batchnorm", "reduction", "clip", "noise", "large")
"""Settings that must be equal on all ranks."""
LOOKED_AT = 32
"""Interval in steps of the comparison of parameters between ranks; the first steps are all compared."""


class Training:
    """The state that is equal on all ranks after every committed step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        settings: Settings,
        *,
        num_samples: int,
        global_batch: int,
        sketch: Sequence[float] = (),
        also: tuple[Stateful, ...] = (),
        split: tuple[int, ...] = (),
        ahead: int = 0,
    ) -> None:
        self.global_batch = global_batch
        """Samples of a full step of this group."""
        self.whole_batch = global_batch
        """Samples of a step of all groups."""
        self.ahead = ahead
        """Number of batches that this rank prefetches."""
        self.split = split
        """Samples of each rank in the first steps, from a plan; empty for equal shares."""
        self.model, self.settings, self._checkpoint = model, settings, settings.checkpoint
        self.noise, self.losses = NoiseScale(), LossReduction(settings.reduction)
        self._own = (*settings.also, self.noise) if settings.large is not None else settings.also
        self._also = (*self._own, *also)
        self.optimizers = optimizers_of(optimizer)
        self._identity, self._sketch = {"num_samples": num_samples, "seed": settings.seed}, list(sketch)
        self.position = Position()
        self.mark = f"fresh:{secrets.token_hex(4)}"
        """Identifies this state: ranks with equal marks hold equal parameters, so that nothing has to be sent."""
        self.view = 0
        """Number of the view in which this state last changed; 0 for a state from a checkpoint or a fresh one."""
        self.costs: dict[str, Any] = {}
        """Cost estimates of each rank, from a checkpoint or from the previous group."""
        self.writer = CheckpointWriter()
        self._looked = 0
        """The step at which a checkpoint was last considered."""
        self._all = dict(model.named_parameters())
        self.parameters = [parameter for parameter in self._all.values() if parameter.requires_grad]
        """Those that are trained; which ones is decided when the rank joins."""
        self._known = {id(parameter) for parameter in self._all.values()}
        self._beside: list[nn.Parameter] = []
        """Parameters on which the loss depends, and which are not the model's: ranks must have them alike, too."""
        self._partial: list[Tensor | None] = []
        """Gradients of the passes before, of a share that is taken in several."""
        self._check()
        self.device, self.unit = self.parameters[0].device, unit_of(self.parameters, settings)
        """The ranks that hold one model together with this rank."""
        self.writes = False
        """Whether this rank contributes to the checkpoint that rank 0 writes."""
        self.norm: float | None = None
        """Norm of the whole gradient of this step, if ranks hold parts of it."""
        self.discard_gradients()

    def _check(self) -> None:
        """Refuse what cannot be trained, and note what ranks must have alike."""
        check_trainable(self.model, self.optimizers)
        if self.settings.large is not None:
            self.settings.large.check(self.optimizers)
        self._kinds, self._optimized = [kind_of(one) for one in self._all.values()], num_optimized(self.optimizers)

    @property
    def may_be_divided(self) -> bool:
        """Whether several groups can train this state: they exchange float32 only, and have no common checkpoint."""
        alike = all(parameter.dtype == torch.float32 for parameter in self.parameters)
        return alike and self.settings.checkpoint is None

    def share_with(self, others: tuple[Stateful, ...], *, global_batch: int) -> None:
        """Train with this batch from now on, with `others` as a part of the state."""
        self._also = (*self._own, *others)
        self.global_batch = global_batch

    def report(self, costs: dict[str, Any], link: Sequence[float] | None) -> dict[str, Any]:
        """The report of this rank if it is the most advanced one; with the structure of its state, without tensors."""
        return {
            "mark": self.mark,
            "view": self.view,
            "position": asdict(self.position),
            "identity": self._identity,
            "terms": self.terms(),
            "sketch": self._sketch,
            "costs": costs,
            "link": link,
            "state": pack_state(self._state(), []),
        }

    def standing(self) -> Report:
        """The report of progress for the next view: a few bytes for any size of the model."""
        return Report(self.position.step, self.mark, self.view)

    def changed(self, view: int, mark: str) -> None:
        """Note that the state changed in this view."""
        self.view, self.mark = view, mark

    def tensors(self) -> list[Tensor]:
        """The tensors to which the report's state refers by index."""
        tensors: list[Tensor] = []
        pack_state(self._state(), tensors)
        return tensors

    def take(self, report: dict[str, Any], tensors: list[Tensor]) -> None:
        """Load the state of another rank."""
        with fitting("what the other ranks train"):
            self._load(unpack_state(report["state"], tensors))
        self.position = Position(**report["position"])
        self.changed(report["view"], report["mark"])

    def terms(self) -> dict[str, str]:
        """Terms that must be equal on all ranks, because they determine exchanged buffers or how these are used."""
        layout = [(name, tuple(one.shape), one.dtype) for name, one in self._all.items() if one.requires_grad]
        numbers, digest = sum(one.numel() for one in self.parameters), hashlib.sha256(repr(layout).encode()).hexdigest()
        return {
            "trained parameters": f"{len(layout)} of {numbers} numbers (layout {digest[:6]})",
            "optimizers": ", ".join(type(optimizer).__name__ for optimizer in self.optimizers),
            "global_batch": str(self.whole_batch),
            **{f"Settings.{name}": str(getattr(self.settings, name)) for name in ALIKE},
        }

    def check_terms(self, others: dict[str, str]) -> None:
        """Refuse to train with ranks that have other terms."""
        for name, mine in self.terms().items():
            if mine != others.get(name):
                raise InputError(
                    f"this process trains with {name} = {mine}, the others with {name} = {others.get(name)}",
                    hint="all ranks need the same model, frozen layers, optimizers and settings",
                )

    def compare_samples(self, sketch: Sequence[float]) -> None:
        """Say so where this rank's samples are other ones than those of others, or in another order."""
        if not same_samples(self._sketch, sketch):
            log.warning(
                "this rank has other samples than the others, or the same in another order: an epoch will have some of "
                "them twice, and others not at all. Give every rank the whole dataset in one order, which Paceline "
                "shuffles and divides: seed random_split(), leave out shuffle() and augmentation of a tf.data.Dataset"
            )

    def check(self, identity: dict[str, Any]) -> None:
        """Refuse to continue a run on different data."""
        if identity != self._identity:
            raise InputError(
                f"this process trains on {self._identity}, the others or the checkpoint on {identity}",
                hint="all ranks need the same dataset and seed; move the checkpoint away to start from the beginning",
            )

    def update(self, scaler: torch.amp.GradScaler | None = None) -> None:
        """Apply the summed gradients. They are equal on all ranks, so a scaler skips a step on all ranks or on none."""
        if scaler is not None and self.unit.sharded:
            raise InputError("a GradScaler looks at this rank's shards only", hint="bfloat16 needs no scaler")
        if self.settings.clip is not None:
            if scaler is not None:
                raise InputError(
                    "Settings(clip=...) would clip scaled gradients",
                    hint="scaler.unscale_(optimizer) and clip_grad_norm_ between backward() and update()",
                )
            self._clip(self.settings.clip)
        with self._scaled_rates():
            for optimizer in self.optimizers:
                optimizer.step() if scaler is None else scaler.step(optimizer)
        if scaler is not None:
            scaler.update()
        self.discard_gradients()

    def _scaled_rates(self) -> contextlib.AbstractContextManager[None]:
        """A context with the scaled learning rates of this step, if `Settings.large` is set."""
        large = self.settings.large
        if large is None:
            return contextlib.nullcontext()
        factor = large.factor(self.position.step, batch=self.whole_batch, noise=self.noise.samples)
        return large.applied(self.optimizers, factor)

    def _clip(self, most: float) -> None:
        if self.norm is None:
            nn.utils.clip_grad_norm_(self.parameters, most)
        elif self.norm > most:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(most / (self.norm + 1e-6))

    def discard_gradients(self) -> None:
        """Remove all gradients, of this pass and of earlier passes."""
        self._partial, self._blank = [], False
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        for parameter in self.parameters:  # also parameters without an optimizer
            parameter.grad = None

    def blank_gradients(self) -> None:
        """Zeros in place of the gradients of a step that repeats: the loop may still clip them before `update`."""
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._blank = True

    def set_aside(self) -> None:
        """Store the gradients of one pass, so that the user's loop does not clip, scale or clear them."""
        self._partial = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None

    def bring_back(self, weight: float) -> None:
        """Restore the gradients of earlier passes; `weight`: that of this pass, also for what the loop has added."""
        if self._blank:
            self.discard_gradients()
        for parameter in self.parameters if weight != 1.0 else ():
            if parameter.grad is not None:
                parameter.grad.mul_(weight)
        if self._partial:
            for parameter, kept in zip(self.parameters, self._partial, strict=True):
                if kept is not None:
                    parameter.grad = kept if parameter.grad is None else kept.add_(parameter.grad)
        self._partial = []

    def check_trained(self) -> None:
        """Refuse parameters that were changed or added after the rank joined, because other ranks lack the change."""
        if (optimized := num_optimized(self.optimizers)) != self._optimized:
            raise InputError(
                f"the optimizers have {optimized} parameters, at join() they had {self._optimized}",
                hint="add parameters and parameter groups before join(); or leave the loop and join() again",
            )
        if (kinds := [kind_of(parameter) for parameter in self._all.values()]) == self._kinds:
            return
        names = [name for name, now, at_join in zip(self._all, kinds, self._kinds, strict=True) if now != at_join]
        raise InputError(
            f"{', '.join(names[:5])}: frozen, released, or moved to another type or device after join()",
            hint="set requires_grad and call .to() before join(); to change it, leave the loop and join() again",
        )

    def alike(self) -> tuple[float, float]:
        """Numbers that all ranks have alike: of the optimizers, and now and then of the parameters, which take a pass.

        A rank's shards are its own.
        """
        looks = self.looks and not self.unit.sharded
        return rates_of(self.optimizers), norm_of([*self.parameters, *self._beside]) if looks else 0.0

    @property
    def looks(self) -> bool:
        """Whether the ranks compare their parameters in this step."""
        return self.position.step < LOOKED_AT or self.position.step % LOOKED_AT == 0

    def check_loss(self, loss: object) -> None:
        """Refuse a loss that is not a scalar tensor with a gradient."""
        if isinstance(loss, Tensor) and loss.numel() == 1:
            if not loss.requires_grad:
                raise InputError("the loss depends on no trained parameter", hint="compute it outside torch.no_grad()")
            self.losses.check(loss)
            if self.looks and not self.unit.sharded:
                self._beside = parameters_behind(loss, but=self._known)
            return
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise InputError(
            f"the loss is {got}, expected a tensor with one number",
            hint="the mean over the samples of the batch: loss.mean(), and without .item()",
        )

    def drain(self) -> None:
        """Wait for the device, so that the measured time includes its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def resume(self, group: str | None = None) -> None:
        """Load the checkpoint, if there is one; `group`: name of this group if there are several."""
        if self._checkpoint is None:
            return
        path = path_to_resume(self._checkpoint, group)
        if group is not None:
            self._checkpoint = checkpoint_of_group(self._checkpoint, group)
        content = load_checkpoint(path)
        if content is None:
            return
        self.check(content["identity"])
        with fitting(f"the checkpoint {path}"):
            self._load(content["state"])
            self.position = Position(**content["position"])
            self._looked = self.position.step
        self.mark, self.costs = content["mark"], content["costs"]

    def save_if_due(self, rank: int, costs: dict[str, Any]) -> None:
        """Start a checkpoint on rank 0 every `checkpoint_every` steps, and sooner after a failed one."""
        if self._checkpoint is None or self.position.step in (0, self._looked):
            return
        self._looked = self.position.step
        self.writer.look(self.position.step)
        again = self.position.step == self.writer.again and not self.unit.sharded  # only the writing rank knows this
        if self.position.step % self.settings.checkpoint_every == 0 or again:
            self.costs = costs
            self._begin_saving(rank)

    def save_last(self, rank: int) -> None:
        """Write a checkpoint on rank 0, and wait until it is complete."""
        self._begin_saving(rank)
        self.finish_saving()

    def finish_saving(self) -> None:
        """Wait for the checkpoint that is being written; a failure to write is logged, and training continues."""
        self.writer.finish(self.position.step)

    def close(self) -> None:
        """Finish writing, and end the writing thread."""
        self.finish_saving()
        self.writer.close()

    def _begin_saving(self, rank: int) -> None:
        """Copy the state, and write the copy in a separate thread while training continues."""
        if (path := self._checkpoint) is None or not (rank == 0 or self.writes):
            return
        self.finish_saving()
        began, step = time.perf_counter(), self.position.step
        content = {
            "identity": self._identity,
            "position": asdict(self.position),
            "mark": self.mark,
            "costs": self.costs,
            "state": self._state(),
        }
        tensors: list[Tensor] = []
        packed = pack_state(content, tensors)
        # All ranks of a sharded model gather each tensor; only rank 0 keeps the copy.
        copies = [copy for tensor in tensors if (copy := self._copy(tensor, keep=rank == 0)) is not None]
        if rank != 0:
            return
        held = time.perf_counter() - began

        def write() -> None:
            save_checkpoint(path, unpack_state(packed, copies))
            beside = time.perf_counter() - began - held
            log.info("step %d: checkpoint: %.1f ms of the loop, %.1f ms beside it", step, held * 1e3, beside * 1e3)

        self.writer.begin(step, write)

    def _copy(self, tensor: Tensor, *, keep: bool) -> Tensor | None:
        whole = gather_whole(tensor)
        if not keep:
            return None
        return whole.cpu() if whole.is_cuda else whole.clone()

    def _load(self, states: Sequence[dict[str, Any]]) -> None:
        for part, state in zip(self._parts(), states, strict=True):
            part.load_state_dict(keep_own_rows(part, state) if self.unit.sharded else state)

    def _parts(self) -> tuple[Stateful, ...]:
        return (self.model, *self.optimizers, *self._also)

    def _state(self) -> list[dict[str, Any]]:
        return [dict(part.state_dict()) for part in self._parts()]
