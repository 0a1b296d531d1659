"""Work of each layer of a PyTorch model, counted in one forward pass: multiply-adds, and bytes read and written.

Operators are counted when PyTorch dispatches them, so that functions outside of modules are counted as well. The model
need not be trained, and need not be in memory:

    with torch.device("meta"):
        model = MyModel(...)                      # no memory: a model that no machine here could hold
    paceline.outline(model, torch.empty(8, 2048, dtype=torch.long, device="meta"), path="my.profile")

Such a profile has no times: predictions from it use the roofline model only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from paceline import variables
from paceline.errors import InputError
from paceline.files import atomic_write
from paceline.units import BYTES

__all__ = ["WorkCounter", "device_name", "model_precision", "outline_of", "write_outline"]

KINDS: tuple[tuple[Any, str], ...] = (
    ((nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "convolution"),
    (nn.MultiheadAttention, "attention"),
)
"""Kinds of layers that reach different shares of a device's rates; other layers with multiply-adds are `linear`."""
FLOAT32 = 4
"""Bytes of one element of a gradient; predictions in another precision scale this."""


class _Operators(TorchDispatchMode):
    """Counts multiply-adds of every operator, and the bytes that it reads and writes, without parameters."""

    supports_higher_order_operators = True  # such as flex_attention, which PyTorch refuses under other modes

    def __init__(self, parameters: set[int]) -> None:
        super().__init__()
        self.macs = 0.0
        self.traffic = 0.0
        self._parameters = parameters

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        with contextlib.suppress(Exception):  # an operator that cannot be counted must not fail the user's training
            self.macs += _flop(func, args, kwargs or {}, out) / 2
        with contextlib.suppress(Exception):  # nor must a tensor without storage, such as a sparse one
            if not _is_view(func):
                self.traffic += _bytes(out) + _bytes([one for one in args if _storage(one) not in self._parameters])
        return out


def _storage(value: Any) -> int | None:
    """Identity of the storage that a tensor shares with its views, also on device `meta`; None for sparse tensors."""
    if not torch.is_tensor(value) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _is_view(func: Any) -> bool:
    """Whether an operator returns a view of its input, so that no data is read or written."""
    if func._overloadpacket is torch.ops.aten._unsafe_view:  # a view whose schema does not say so
        return True
    aliases = [returned.alias_info for returned in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


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
        self.traffic = 0.0
        """Bytes that all operators read and write, without parameters."""
        self._mode = _Operators({storage for one in model.parameters() if (storage := _storage(one)) is not None})
        self._stack: list[list[float]] = []
        self._handles: list[Any] = []
        self._counting = False
        for name, module in model.named_modules():
            own = any(True for _ in module.named_parameters(recurse=False))
            if name and (own or not any(True for _ in module.children())):
                self._handles.append(module.register_forward_pre_hook(self._begins))
                self._handles.append(module.register_forward_hook(lambda m, i, o, name=name: self._ends(name, m, i, o)))

    def begin(self) -> None:
        """Start counting; called when the forward pass begins."""
        self._mode.__enter__()
        self._counting = True

    def add(self, macs: float, traffic: float) -> None:
        """Add the work of a function whose operators are not dispatched one by one."""
        self._mode.macs += macs
        self._mode.traffic += traffic

    def end(self) -> None:
        """Stop counting and remove the hooks; called when the forward pass has ended, or if there was none."""
        if self._counting:
            self._mode.__exit__(None, None, None)
        self._counting = False
        self.total, self.traffic = self._mode.macs, self._mode.traffic
        for handle in self._handles:
            handle.remove()

    def of_sample(self, name: str, samples: int) -> dict[str, Any]:
        """Kind, multiply-adds and bytes of a layer for one sample; functions between layers are spread over all."""
        counted = sum(layer["macs"] for layer in self.layers.values())
        scale = self.total / counted if counted and self.total > counted else 1.0
        found = self.layers.get(name, {"kind": "elementwise", "macs": 0.0, "moved": 0.0})
        work = {"kind": found["kind"], "macs": scale * found["macs"] / samples, "moved": found["moved"] / samples}
        return {**work, "steps": found["steps"]} if found.get("steps") else work

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        self._stack.append([self._mode.macs, 0.0])

    def _ends(self, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        if not self._stack:
            return  # called, but not by the pass that is counted
        begin, inner = self._stack.pop()
        if self._mode.macs - begin == inner:
            self._mode.macs += _recurrent(module, inputs)
        macs = self._mode.macs - begin
        if self._stack:
            self._stack[-1][1] += macs
        own = macs - inner
        empty = {"kind": _kind(module, own), "macs": 0.0, "moved": 0.0, "output": 0.0, "steps": 0}
        layer = self.layers.setdefault(name, empty)
        layer["steps"] += _steps(module, inputs)
        layer["macs"] += own
        layer["moved"] += _bytes(inputs) + _bytes(output)
        layer["output"] += _bytes(output)


def _kind(module: nn.Module, macs: float) -> str:
    """Kind of a layer. Dense 3 x 3 convolutions of stride 1 are one kind: they have a faster algorithm."""
    if isinstance(module, nn.Conv2d) and (module.kernel_size, module.stride, module.groups) == ((3, 3), (1, 1), 1):
        return "convolution_3x3" if module.dilation == (1, 1) else "convolution"
    return next((word for classes, word in KINDS if isinstance(module, classes)), "linear" if macs else "elementwise")


def _bytes(value: Any) -> float:
    """Bytes of all tensors in a value."""
    if torch.is_tensor(value):
        return float(value.numel() * value.element_size())
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0.0


def _recurrent(module: nn.Module, inputs: Any) -> float:
    """Multiply-adds of a recurrent layer, whose kernel is one operator: each weight is used once per position."""
    if not isinstance(module, nn.RNNBase) or not inputs:
        return 0.0
    given = inputs[0] if torch.is_tensor(inputs[0]) else inputs[0].data
    positions = given.numel() / given.shape[-1]
    return float(positions * sum(p.numel() for p in module.parameters() if p.dim() > 1))


def _steps(module: nn.Module, inputs: Any) -> int:
    """The positions of a recurrent layer, which wait for each other on each of its levels; 0 for other layers."""
    if not isinstance(module, nn.RNNBase) or not inputs:
        return 0
    if not torch.is_tensor(inputs[0]):  # packed: one batch size for each position
        return len(inputs[0].batch_sizes) * module.num_layers
    shape = inputs[0].shape
    length = shape[1] if module.batch_first and len(shape) == 3 else shape[0]
    return int(length) * module.num_layers


def device_name(device: torch.device) -> str:
    """Name of the device according to the driver; `host-cpu` for processors."""
    if device.type != "cuda":
        return "host-cpu"
    return os.environ.get(variables.DEVICE) or str(torch.cuda.get_device_name(device))


def model_precision(model: nn.Module, device: torch.device) -> str | None:
    """The precision of the computation: amp, or the type of the parameters. None for float32 on a GPU, where PyTorch's
    settings decide between float32 and TF32."""
    if torch.is_autocast_enabled(device.type):
        return "amp"
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return None if kind == torch.float32 and device.type != "cpu" else str(kind).removeprefix("torch.")


def outline_of(model: nn.Module, inputs: Any, *, name: str | None = None, batch: int | None = None) -> dict[str, Any]:
    """The profile as plain data: layers in the order of the forward pass, with work and without times."""
    work = _counted(model, inputs)
    batch = batch or _batch(inputs)
    if not work.total:
        raise InputError(
            f"the forward pass of {type(model).__name__} multiplies nothing that can be counted",
            hint="give the model itself, not a compiled or scripted form",
        )
    # functions between layers multiply and move, too: their part is spread over the layers
    scale = {"macs": _scale(work, "macs", work.total), "moved": _scale(work, "moved", work.traffic)}
    gradients = _gradients(model, set(work.layers))
    names = list(dict.fromkeys([*work.layers, *gradients]))
    nothing = {"kind": "elementwise", "macs": 0.0, "moved": 0.0, "steps": 0}
    layers = []
    for one in names:
        found = work.layers.get(one, nothing)
        layers.append(
            {
                "name": one,
                "forward": 0.0,
                "backward": 0.0,
                "gradients": gradients.get(one, []),
                "kind": found["kind"],
                **{field: factor * found[field] / batch for field, factor in scale.items()},
                **({"steps": found["steps"]} if found["steps"] else {}),
            }
        )
    return {
        "schema": "paceline.profile/1",
        "network": name or type(model).__name__,
        "batch": batch,
        "layers": layers,
        "source": f"outline, not measured, torch {torch.__version__}",
    }


def write_outline(profile: dict[str, Any], path: Path | None, *, quiet: bool) -> None:
    """Write the profile, and print a summary."""
    if path is not None:
        atomic_write(path, json.dumps(profile, indent=1) + "\n")
    if quiet:
        return
    layers = profile["layers"]
    parameters = sum(size for layer in layers for size in layer["gradients"]) // FLOAT32
    lines = [
        f"outlined {profile['network']}: {len(layers)} layers, {parameters:,} trainable parameters",
        f"  one sample: {sum(layer['macs'] for layer in layers):,.0f} multiply-adds, "
        f"{BYTES.format(sum(layer['moved'] for layer in layers))} in and out of layers",
    ]
    if path is not None:
        lines.append(f"next: paceline predict --profile {path} --cluster dgx-a100 --devices 1,8")
    sys.stdout.write("\n".join([*lines, ""]))


class _FusedAttention(TorchFunctionMode):
    """Counts attention as one kernel, as GPUs run it; elsewhere PyTorch runs separate operators over all scores."""

    def __init__(self, work: WorkCounter) -> None:
        super().__init__()
        self._work = work

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        given = dict(zip(("query", "key", "value"), args, strict=False)) | dict(kwargs or {})
        query, key, value = given["query"], given["key"], given["value"]
        scores = query.shape[:-1].numel() * key.shape[-2]
        self._work.add(
            scores * (query.shape[-1] + value.shape[-1]),
            sum(one.numel() * one.element_size() for one in (query, key, value)),
        )
        return torch.empty((*query.shape[:-1], value.shape[-1]), dtype=query.dtype, device=query.device)


def _counted(model: nn.Module, inputs: Any) -> WorkCounter:
    work = WorkCounter(model)
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]  # batch norm changes its statistics
    work.begin()
    try:
        with torch.no_grad(), _FusedAttention(work):
            if isinstance(inputs, Mapping):
                model(**inputs)
            else:
                model(*(inputs if isinstance(inputs, list | tuple) else (inputs,)))
    except Exception as error:
        raise InputError(
            f"the forward pass of {type(model).__name__} failed: {type(error).__name__}: {error}",
            hint="give what the model's call takes (a tensor, a tuple, or a dict by name), on the model's device; a "
            "model whose path depends on values needs real tensors instead of device 'meta'",
        ) from error
    finally:
        work.end()
        for buffer, kept in before:
            buffer.copy_(kept)
    return work


def _scale(work: WorkCounter, field: str, total: float) -> float:
    """Ratio of the work of all operators to the work inside layers."""
    counted = sum(layer[field] for layer in work.layers.values())
    return max(1.0, total / counted) if counted else 1.0


def _batch(inputs: Any) -> int:
    """The batch size: the first dimension of the first tensor."""
    values = list(inputs.values()) if isinstance(inputs, Mapping) else inputs
    flat = values if isinstance(values, list | tuple) else [values]
    found = next((int(one.shape[0]) for one in flat if torch.is_tensor(one) and one.dim()), None)
    if not found:
        raise InputError("the number of samples is not known", hint="give it: outline(model, inputs, batch=8)")
    return found


def _gradients(model: nn.Module, called: set[str]) -> dict[str, list[int]]:
    """Bytes of each trainable parameter by layer; tied ones count where they come first.

    A module that is never called, such as the output projection of attention, belongs to the `called` one around it.
    """
    seen: set[int] = set()
    found: dict[str, list[int]] = {}
    for path, module in model.named_modules():
        parts = path.split(".")
        around = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        name = next((one for one in around if one in called), path)
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and id(parameter) not in seen:
                seen.add(id(parameter))
                found.setdefault(name or "whole model", []).append(FLOAT32 * parameter.numel())
    return found
