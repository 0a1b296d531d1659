"""The work of each layer of a PyTorch model, counted in one forward pass: multiply-adds, and bytes in and out.

Operators are counted as they are dispatched, so that functions without a module of their own count, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

__all__ = ["WorkCounter"]

KINDS: tuple[tuple[Any, str], ...] = (
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "convolution"),
    (nn.MultiheadAttention, "attention"),
)
"""Classes of layers that reach different shares of a device's rates; others that multiply are linear."""


class _Multiplications(TorchDispatchMode):
    """Counts the multiply-adds of every operator."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        with contextlib.suppress(Exception):  # an operator that cannot be counted is not the user's concern
            self.macs += _flop(func, args, kwargs or {}, out) / 2
        return out


def _flop(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> float:
    if func._overloadpacket is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
        return float(sdpa_flop_count(args[0].shape, args[1].shape, args[2].shape))
    formula = flop_registry.get(func._overloadpacket)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


class WorkCounter:
    """Hooks that count one forward pass; `layers` has kind, multiply-adds and bytes of each, for the whole batch."""

    def __init__(self, model: nn.Module) -> None:
        self.layers: dict[str, dict[str, Any]] = {}
        self.total = 0.0
        """Multiply-adds of the whole model, functions outside of layers included."""
        self._mode = _Multiplications()
        self._stack: list[list[float]] = []
        self._handles: list[Any] = []
        for name, module in model.named_modules():
            own = any(True for _ in module.named_parameters(recurse=False))
            if name and (own or not any(True for _ in module.children())):
                self._handles.append(module.register_forward_pre_hook(self._begins))
                self._handles.append(module.register_forward_hook(lambda m, i, o, name=name: self._ends(name, m, i, o)))

    def begin(self) -> None:
        """The forward pass begins."""
        self._mode.__enter__()

    def end(self) -> None:
        """The forward pass has ended; nothing is watched from now on."""
        self._mode.__exit__(None, None, None)
        self.total = self._mode.macs
        for handle in self._handles:
            handle.remove()

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        self._stack.append([self._mode.macs, 0.0])

    def _ends(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        begin, inner = self._stack.pop()
        macs = self._mode.macs - begin
        if self._stack:
            self._stack[-1][1] += macs
        own = macs - inner or _recurrent(module, inputs)
        kind = next(
            (word for classes, word in KINDS if isinstance(module, classes)), "linear" if own else "elementwise"
        )
        layer = self.layers.setdefault(name, {"kind": kind, "macs": 0.0, "moved": 0.0, "output": 0.0})
        layer["macs"] += own
        layer["moved"] += _bytes(inputs) + _bytes(output)
        layer["output"] += _bytes(output)


def _bytes(value: Any) -> float:
    """Bytes of all tensors in a value."""
    if torch.is_tensor(value):
        return float(value.numel() * value.element_size())
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    return sum(map(_bytes, value)) if isinstance(value, list | tuple) else 0.0


def _recurrent(module: nn.Module, inputs: Any) -> float:
    """Multiply-adds of a recurrent layer, whose kernel is one operator: every weight once for each position."""
    if not isinstance(module, nn.RNNBase) or not inputs:
        return 0.0
    positions = inputs[0].numel() / inputs[0].shape[-1]
    return float(positions * sum(p.numel() for p in module.parameters() if p.dim() > 1))
