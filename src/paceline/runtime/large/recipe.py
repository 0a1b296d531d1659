"""Learning rates for large batches: scaling of the optimizer's rate, and layer-wise rates.

The rate was tuned for a reference batch b. For a batch B it is multiplied by B / b, after a warm-up, but by no more
than the noise scale N of the gradients allows (McCandlish et al. 2018): the best rate grows as 1 / (1 + N / B), so the
factor is (1 + N / b) / (1 + N / B). It is close to B / b while B is far below N, and approaches 1 + N / b.

Layer-wise rates work on the user's optimizer: updates of SGD become those of LARS, updates of Adam those of LAMB.

    LARS (You et al. 2017)   local = trust * |w| / (|g| + decay * |w|);  v = momentum * v + local * (g + decay * w)
    LAMB (You et al. 2020)   r = Adam's direction + decay * w;           w -= rate * |w| / |r| * r

Vectors (biases, norms) take the plain rate, and under LARS no decay, as in the paper's experiments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from paceline.errors import InputError
from paceline.runtime.syncer.rounds import OuterOptimizer

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LARGE_OUTER", "LargeBatch", "Layerwise"]

LARGE_OUTER = OuterOptimizer(momentum=0.5, delay=4)
"""The outer optimizer between groups: delayed Nesterov momentum."""

Layerwise = Literal["none", "lars", "lamb"]
OPTIMIZERS: dict[str, tuple[str, ...]] = {"none": (), "lars": ("SGD",), "lamb": ("Adam", "AdamW")}


@dataclass(frozen=True)
class LargeBatch:
    """Rules for a batch that is larger than the one for which the learning rate was tuned."""

    reference_batch: int
    """The global batch for which the optimizer's rate was tuned."""
    warmup: int = 500
    """Number of steps over which the rate grows from the tuned rate."""
    layerwise: Layerwise = "none"
    """A rate for each layer: 'lars' with SGD, 'lamb' with Adam and AdamW."""
    trust: float = 0.001
    """Trust coefficient of LARS: the norm of a layer's update relative to its weights, at rate 1."""

    def __post_init__(self) -> None:
        if self.reference_batch < 1:
            raise InputError(f"reference_batch is {self.reference_batch}, expected at least 1 sample")
        if self.warmup < 0:
            raise InputError(f"warmup is {self.warmup}, expected 0 steps or more")
        if self.layerwise not in OPTIMIZERS:
            raise InputError(f"layerwise is {self.layerwise!r}, expected one of {', '.join(OPTIMIZERS)}")

    def check(self, optimizers: Sequence[Any]) -> None:
        """Refuse optimizers that this recipe does not support."""
        fitting = OPTIMIZERS[self.layerwise]
        for optimizer in optimizers:
            name = type(optimizer).__name__
            if any("lr" not in group for group in optimizer.param_groups):
                raise InputError(f"{name} has no rate that a large batch could change", hint="use one of torch.optim")
            if fitting and name not in fitting:
                raise InputError(f"layerwise={self.layerwise!r} works on {' and '.join(fitting)}, this is {name}")

    def factor(self, step: int, *, batch: int, noise: float | None) -> float:
        """The factor on the tuned rate in a step of `batch` samples; linear while the noise scale is not known."""
        reference = self.reference_batch
        full = batch / reference
        if noise is not None and full > 1:
            full = (1 + noise / reference) / (1 + noise / batch)
        return full if step >= self.warmup else 1.0 + (full - 1.0) * step / self.warmup

    @contextlib.contextmanager
    def applied(self, optimizers: Sequence[Any], factor: float) -> Iterator[None]:
        """A context in which the optimizers step with rates multiplied by this factor; it restores the rates."""
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * factor
        before = self._prepare(groups)
        try:
            yield
            self._rescale(groups, before)
        finally:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate

    def _prepare(self, groups: Sequence[dict[str, Any]]) -> list[list[Tensor]]:
        """LARS: change gradients. LAMB: remember the weights."""
        if self.layerwise == "lamb":
            return [[parameter.detach().clone() for parameter in group["params"]] for group in groups]
        if self.layerwise == "lars":
            for group in groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad = self._lars(parameter.detach(), parameter.grad, group["weight_decay"])
        return []

    def _lars(self, weight: Tensor, gradient: Tensor, decay: float) -> Tensor:
        """The gradient with which SGD with this decay makes the update of LARS."""
        if weight.dim() < 2:
            return gradient - decay * weight
        length = float(gradient.norm()) + decay * float(weight.norm())
        local = _ratio(self.trust * float(weight.norm()), length)
        return local * (gradient + decay * weight) - decay * weight

    def _rescale(self, groups: Sequence[dict[str, Any]], before: Sequence[Sequence[Tensor]]) -> None:
        """LAMB: scale the update of each matrix to the norm of its weights, times the rate."""
        for group, olds in zip(groups, before, strict=False):
            for parameter, old in zip(group["params"], olds, strict=True):
                if old.dim() > 1:
                    moved = parameter.detach() - old
                    scale = _ratio(float(old.norm()) * group["lr"], float(moved.norm()))
                    parameter.detach().copy_(old + moved * scale)


def _ratio(wanted: float, length: float) -> float:
    """The ratio of two norms; 1 if one of them is zero."""
    return wanted / length if wanted > 0 and length > 0 else 1.0
