"""BatchNorm over the whole batch of a step, for any split between the ranks.

Each rank contributes its sum, its sum of squares and its count. Mean and variance are those of all samples, in the
forward and in the backward pass, so that every split gives the result of one process.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.errors import InputError
from paceline.runtime.group.wire import Broken, Wire
from paceline.runtime.settings import Settings

__all__ = ["SyncedBatchNorm", "WireHolder", "prepare_batchnorm"]


class WireHolder:
    """The wire of the present view, shared by all layers that exchange statistics."""

    def __init__(self) -> None:
        self.wire: Wire | None = None
        self.broken: Broken | None = None
        """The error if the view ended during a forward pass; the next call of the training loop raises it."""
        self.counts = True
        """Whether this rank has samples in the step; otherwise its statistics are left out."""


class _Sum(torch.autograd.Function):
    """Sum over the ranks, forward and backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, holder: WireHolder) -> Tensor:
        ctx.wire = holder.wire
        total = tensor.clone()
        try:
            ctx.wire.all_reduce(total)()
        except Broken as error:
            holder.broken = error
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.clone()
        ctx.wire.all_reduce(total)()
        return total, None


class SyncedBatchNorm(_BatchNorm):
    """BatchNorm with statistics over the samples of all ranks."""

    def __init__(self, plain: _BatchNorm, holder: WireHolder) -> None:
        super().__init__(plain.num_features, plain.eps, plain.momentum, plain.affine, plain.track_running_stats)
        self.holder = holder
        self._parameters = plain._parameters
        self._buffers = plain._buffers
        self.train(plain.training)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise ValueError(f"expected a batch of vectors or images, got {input.dim()} dimensions")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalise by the statistics of the whole batch in training, and by the running statistics otherwise."""
        wire = self.holder.wire
        if not self.training or wire is None or wire.size == 1:
            return super().forward(input)
        self._check_input_dim(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1] + [1] * (input.dim() - 2)
        count, counts = input.new_tensor([input.numel() / input.shape[1]]), float(self.holder.counts)
        parts = torch.cat([input.sum(axes), count]) * counts
        total = _Sum.apply(parts, self.holder)
        number = total[-1].detach()
        if number <= 1 and self.holder.broken is None:
            raise ValueError(
                f"Expected more than 1 value per channel when training, got {number:.0f} in the whole step"
            )
        mean = total[:-1] / number
        centred = input - mean.view(shape)
        variance = _Sum.apply((centred * centred).sum(axes) * counts, self.holder) / number
        self._keep(mean.detach(), variance.detach(), number)
        normal = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.weight is None:
            return normal
        return normal * self.weight.view(shape) + self.bias.view(shape)

    def _keep(self, mean: Tensor, variance: Tensor, number: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1.0 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((variance * (number / (number - 1))).to(self.running_var.dtype), share)


def _has_plain_batchnorm(model: nn.Module) -> bool:
    """Whether a layer normalises over the share of its rank only."""
    return any(isinstance(part, _BatchNorm) and not isinstance(part, SyncedBatchNorm) for part in model.modules())


def _synchronise(model: nn.Module, holder: WireHolder, kind: type[_BatchNorm]) -> None:
    """Replace every BatchNorm of a class by one over the whole batch; the parameter objects stay."""
    for name, part in model.named_children():
        if isinstance(part, SyncedBatchNorm):  # replaced by an earlier join
            part.holder = holder
        elif isinstance(part, kind):
            setattr(model, name, SyncedBatchNorm(part, holder))
        else:
            _synchronise(part, holder, kind)


def prepare_batchnorm(model: nn.Module, holder: WireHolder, settings: Settings, *, ranks: int) -> bool:
    """Replace BatchNorm layers as the settings say, or warn; return whether layers need a wire of their own.

    `nn.SyncBatchNorm` is always replaced: it needs the whole batch, and supports torch.distributed only.
    """
    _synchronise(model, holder, _BatchNorm if settings.batchnorm == "sync" else nn.SyncBatchNorm)
    if ranks > 1 and _has_plain_batchnorm(model):
        warnings.warn(
            "the model has BatchNorm, which normalises over each rank's share: results depend on the split. "
            "Settings(batchnorm='sync') normalises over the whole batch; GroupNorm does not depend on it.",
            stacklevel=5,
        )
    synced = any(isinstance(part, SyncedBatchNorm) for part in model.modules())
    if synced and settings.chunk is not None:
        raise InputError(
            "batchnorm='sync' and nn.SyncBatchNorm normalise a rank's share in one pass, chunk takes it in several",
            hint="leave one of them out, or use GroupNorm",
        )
    return synced
