"""LARS and LAMB: a rate for each layer from the ratio of its weights' norm to its update's norm.

    LARS (You et al. 2017)   local = trust * |w| / (|g| + decay * |w|);  v = momentum * v + local * (g + decay * w)
    LAMB (You et al. 2020)   r = Adam's direction + decay * w;           w -= rate * |w| / |r| * r

Vectors (biases, norms) take the plain rate, as in both papers' experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Lamb", "Lars"]


class Lars(torch.optim.Optimizer):
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

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return None

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        gradient: Tensor = parameter.grad
        local = 1.0
        if parameter.dim() > 1:
            weight, slope = float(parameter.norm()), float(gradient.norm())
            below = slope + group["decay"] * weight
            local = group["trust"] * weight / below if weight > 0 and below > 0 else 1.0
            gradient = gradient + group["decay"] * parameter
        state = self.state[parameter]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        state["velocity"].mul_(group["momentum"]).add_(gradient, alpha=local)
        parameter.add_(state["velocity"], alpha=-group["lr"])


class Lamb(torch.optim.Optimizer):
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

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return None

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state, gradient = self.state[parameter], parameter.grad
        if not state:
            state.update(step=0, first=torch.zeros_like(parameter), second=torch.zeros_like(parameter))
        state["step"] += 1
        one, two = group["betas"]
        state["first"].mul_(one).add_(gradient, alpha=1 - one)
        state["second"].mul_(two).addcmul_(gradient, gradient, value=1 - two)
        first = state["first"] / (1 - one ** state["step"])
        second = state["second"] / (1 - two ** state["step"])
        direction = first / (second.sqrt() + group["eps"])
        local = 1.0
        if parameter.dim() > 1:
            direction = direction + group["decay"] * parameter
            weight, length = float(parameter.norm()), float(direction.norm())
            local = weight / length if weight > 0 and length > 0 else 1.0
        parameter.add_(direction, alpha=-group["lr"] * local)
