"""Emulated devices: the compute of a layer is a timed wait, its tensors and gradients are real.

The waits follow a device clock with deadlines: what the host computes meanwhile is hidden as long as it is quicker than
the device that is emulated. A backward wait comes before the layer's gradients exist, so that overlap is real too.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline import variables
from paceline.bench.virtual.devices.clock import DeviceClock, exact_timers
from paceline.errors import InputError

__all__ = ["Emulated", "emulate", "emulate_as_told", "emulated_device"]

FORGIVEN = 0.002
"""Seconds of host lag that the device clock catches up with."""


@dataclass
class Emulated:
    """The times of an emulated device; fields may change during training."""

    per_sample: float
    """Seconds of forward and backward of one sample."""
    constant: float = 0.0
    """Seconds of a step that do not depend on the batch."""
    speed: float = 1.0
    forward_share: float = 1 / 3
    straggle: float = 0.0
    """Probability that a step takes `straggle_factor` times as long."""
    straggle_factor: float = 10.0
    seed: int = 0
    _step_seconds: float = 0.0

    def __post_init__(self) -> None:
        unsteady = {"straggle": self.straggle, "straggle_factor": self.straggle_factor}
        self._clock = DeviceClock(unsteady, seed=self.seed, forgiven=FORGIVEN)
        exact_timers()

    def begin(self, samples: int) -> None:
        """A forward pass of this many samples begins."""
        self._step_seconds = (self.constant + self.per_sample * samples) / self.speed
        self._clock.begin_step()

    def occupy(self, share: float) -> None:
        """Wait until the device has done this share of the step."""
        self._clock.run(share * self._step_seconds)


class _Pause(torch.autograd.Function):
    """Passes a tensor through; takes a layer's share of the backward pass in the backward pass."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, device: Emulated, share: float) -> Tensor:
        ctx.device, ctx.share = device, share
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.device.occupy(ctx.share)
        return gradient, None, None


def emulate(model: nn.Module, device: Emulated) -> None:
    """Make the model take as long as on this device: every layer with parameters takes an equal share."""
    layers = [part for part in model.modules() if next(part.parameters(recurse=False), None) is not None]
    forward = device.forward_share / len(layers)
    backward = (1 - device.forward_share) / len(layers)

    def begin(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        device.begin(len(inputs[0]))

    def pause(_: nn.Module, __: Any, output: Any) -> Any:
        device.occupy(forward)
        return _Pause.apply(output, device, backward)

    model.register_forward_pre_hook(begin)
    for layer in layers:
        layer.register_forward_hook(pause)


def emulated_device(emulation: dict[str, Any], batch: int, *, seed: int) -> Emulated | None:
    """The device that a cluster file describes, its times stated for `batch` samples unless it says otherwise."""
    forward = emulation["forward"]
    if forward is None:
        return None
    backward = 2 * forward if emulation["backward"] is None else emulation["backward"]
    return Emulated(
        per_sample=(forward + backward) / (emulation.get("batch") or batch),
        speed=emulation["speed"],
        forward_share=forward / (forward + backward),
        straggle=emulation["straggle"],
        straggle_factor=emulation["straggle_factor"],
        seed=seed,
    )


def emulate_as_told(model: nn.Module, global_batch: int) -> None:
    """Emulate the device that the launcher sets, if any; its times are stated for the global batch."""
    text = os.environ.get(variables.EMULATION)
    try:
        device = emulated_device(json.loads(text), global_batch, seed=os.getpid()) if text else None
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        what = f"{variables.EMULATION} describes no device: {type(error).__name__}: {error}"
        raise InputError(what, hint="`paceline train` sets it on emulated clusters") from None
    if device is not None:
        emulate(model, device)
