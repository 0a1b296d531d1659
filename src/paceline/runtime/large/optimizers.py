"""LARS and LAMB: a rate for each layer from the ratio of its weights' norm to its update's norm.

    LARS (You et al. 2017)   local = trust * |w| / (|g| + decay * |w|);  v = momentum * v + local * (g + decay * w)
    LAMB (You et al. 2020)   r = Adam's direction + decay * w;           w -= rate * |w| / |r| * r

Vectors (biases, norms) take the plain rate and no decay, as in both papers' experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import InputError

__all__ = ["Lamb", "Lars", "LinearScaling", "scaled_rate"]


def scaled_rate(step: int, *, factor: float, warmup: int) -> float:
    """What the reference rate is multiplied by: from one up to the factor over the warm-up, then the factor."""
    if warmup <= 0 or step >= warmup:
        return factor
    return 1.0 + (factor - 1.0) * step / warmup


class LinearScaling(torch.optim.lr_scheduler.LambdaLR):
    """Multiplies the rate that was tuned for `reference_batch` by global batch / reference batch, after a warm-up.

    Call its step() after pace.step(), and give it to Settings(also=(schedule,)) so that late ranks know where it is.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, global_batch: int, reference_batch: int, warmup: int = 500
    ) -> None:
        if reference_batch < 1 or global_batch < 1:
            raise InputError(f"batches of {global_batch} and {reference_batch} samples, expected at least 1 each")
        factor = global_batch / reference_batch
        super().__init__(optimizer, lambda step: scaled_rate(step, factor=factor, warmup=warmup))


class _Layerwise(torch.optim.Optimizer):
    """Moves each parameter by its own direction; what that is, is up to the kind."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; with a closure its loss, as for any optimiser of torch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    move = self._move(parameter, self.state[parameter], group)
                    parameter.add_(move, alpha=-group["lr"])
        return loss

    def _move(self, parameter: nn.Parameter, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        raise NotImplementedError


class Lars(_Layerwise):
    """SGD with momentum and layer-wise adaptive rates."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float = 0.9,
        decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay, "trust": trust})

    def _move(self, parameter: nn.Parameter, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        gradient, local = parameter.grad, 1.0
        if parameter.dim() > 1:
            local = _ratio(parameter, float(gradient.norm()) + group["decay"] * float(parameter.norm()), group["trust"])
            gradient = gradient + group["decay"] * parameter
        if not state:
            state["velocity"] = torch.zeros_like(parameter)
        velocity: Tensor = state["velocity"].mul_(group["momentum"]).add_(gradient, alpha=local)
        return velocity


class Lamb(_Layerwise):
    """Adam's direction with layer-wise adaptive rates."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "decay": decay})

    def _move(self, parameter: nn.Parameter, state: dict[str, Any], group: dict[str, Any]) -> Tensor:
        direction = _adam(parameter, state, betas=group["betas"], eps=group["eps"])
        if parameter.dim() == 1:
            return direction
        direction = direction + group["decay"] * parameter
        return direction * _ratio(parameter, float(direction.norm()), 1.0)


def _adam(parameter: nn.Parameter, state: dict[str, Any], *, betas: tuple[float, float], eps: float) -> Tensor:
    """Adam's direction, corrected for its start from zero."""
    if not state:
        state.update(step=0, first=torch.zeros_like(parameter), second=torch.zeros_like(parameter))
    state["step"] += 1
    one, two = betas
    state["first"].mul_(one).add_(parameter.grad, alpha=1 - one)
    state["second"].mul_(two).addcmul_(parameter.grad, parameter.grad, value=1 - two)
    first = state["first"] / (1 - one ** state["step"])
    second = state["second"] / (1 - two ** state["step"])
    return first / (second.sqrt() + eps)


def _ratio(parameter: nn.Parameter, length: float, trust: float) -> float:
    """The layer's own rate; 1 where there is nothing to compare."""
    weight = float(parameter.norm())
    return trust * weight / length if weight > 0 and length > 0 else 1.0
