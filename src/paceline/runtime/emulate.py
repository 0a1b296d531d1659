"""Emulated devices: the compute time of a layer is a timed wait; its tensors and gradients are real.

The waits follow a clock with deadlines, so that the host's own compute is hidden while it is faster than the emulated
device. A backward wait ends before the gradients of the layer are ready, so that the exchange overlaps as on a device.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paceline import variables
from paceline.bench.virtual.clock import DeviceClock, exact_timers
from paceline.errors import InputError

__all__ = ["Emulated", "emulate", "emulate_as_told", "emulated_device"]

LARGEST_LAG = 0.002
"""Lag of the host in seconds for which the device clock catches up."""


@dataclass
class Emulated:
    """Step times of an emulated device; fields may change during training."""

    per_sample: float
    """Seconds of forward and backward pass per sample."""
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
        self._clock = DeviceClock(unsteady, seed=self.seed, forgiven=LARGEST_LAG)
        exact_timers()

    def begin(self, samples: int) -> None:
        """Start the clock for a forward pass of `samples` samples."""
        self._step_seconds = (self.constant + self.per_sample * samples) / self.speed
        self._clock.begin_step()

    def occupy(self, share: float) -> None:
        """Wait until the device has completed this share of the step."""
        self._clock.run(share * self._step_seconds)


class _Pause(torch.autograd.Function):
    """The identity; in the backward pass it waits for a layer's share of the step."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, device: Emulated, share: float) -> Tensor:
        ctx.device, ctx.share = device, share
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.device.occupy(ctx.share)
        return gradient, None, None


def emulate(model: nn.Module, device: Emulated) -> None:
    """Slow the model down to the speed of this device: every layer with parameters takes an equal share."""
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
    """The device of a cluster file, whose times hold for `batch` samples unless the file states another batch."""
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
    """Emulate the device that the launcher has set, if any; its times hold for the global batch."""
    text = os.environ.get(variables.EMULATION)
    try:
        device = emulated_device(json.loads(text), global_batch, seed=os.getpid()) if text else None
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        what = f"{variables.EMULATION} describes no device: {type(error).__name__}: {error}"
        raise InputError(what, hint="`paceline train` sets it on emulated clusters") from None
    if device is not None:
        emulate(model, device)
