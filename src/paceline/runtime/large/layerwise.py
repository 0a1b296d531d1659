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

__all__ = ["Lamb", "Lars"]


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
