"""A profile of any PyTorch loop: per-layer times, gradient sizes and the order in which they become ready.

    with paceline.capture(model, optimizer, path="my-run.profile"):
        for batch, target in loader: ...          # at least a handful of steps of your own loop

Steps are timed from the model's forward to the end of the optimiser's step. After two steps of warm-up, some steps are
traced layer by layer; the others run as they are and say how long a step is. Standard library and torch only.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import torch
from torch import nn

from paceline import variables
from paceline.errors import InputError

__all__ = ["Capture"]

WARMUP = 2
TRACED = 3
"""Number of traced steps, alternating with untraced steps so that drift affects both equally."""
ROOT = "whole model"
Clock = Callable[[], float]


class Capture:
    """Records the steps of a model and its optimizer; `profile` is available after the block."""

    def __init__(
        self, model: nn.Module, optimizer: Any, *, path: str | Path | None = None, name: str | None = None,
        batch: int | None = None,
    ) -> None:  # fmt: skip
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise InputError(
                "a profile is taken on one device, and this process is one of several ranks",
                hint="capture a run of one process; `paceline predict --profile` answers for many",
            )
        self._model = getattr(model, "module", model) if type(model).__name__.endswith("DataParallel") else model
        self._optimizer, self._path, self._batch = optimizer, Path(path) if path else None, batch
        self._name = name or type(self._model).__name__
        self._device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        self._handles: list[Any] = []
        self._tracing: list[Any] = []
        self._clean: list[dict[str, float]] = []
        self._traced: list[_Trace] = []
        self._step = 0
        self._at: dict[str, float] = {}
        self.profile: dict[str, Any] = {}
        """The profile as plain data; empty until the block has ended."""

    def __enter__(self) -> Capture:
        self._handles = [
            self._model.register_forward_pre_hook(self._forward_begins),
            self._model.register_forward_hook(self._forward_ends),
            self._optimizer.register_step_pre_hook(self._update_begins),
            self._optimizer.register_step_post_hook(self._update_ends),
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop_tracing()
        for handle in self._handles:
            handle.remove()
        if kind is None:
            self.profile = self._document()
            if self._path is not None:
                self._path.write_text(json.dumps(self.profile, indent=1) + "\n", encoding="utf-8")

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _forward_begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._batch is None:
            self._batch = next((int(x.shape[0]) for x in inputs if torch.is_tensor(x) and x.dim()), None)
        self._at["begin"] = self._now()
        self._at.setdefault("first", self._at["begin"])

    def _forward_ends(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self._at["forward"] = self._now()
        if self._tracing:
            self._traced[-1].backward_from(self._at["forward"])

    def _update_begins(self, optimizer: Any, *_: Any) -> None:
        self._at["backward"] = self._now()

    def _update_ends(self, optimizer: Any, *_: Any) -> None:
        at, end = self._at, self._now()
        if "forward" not in at:
            raise InputError("the optimiser stepped, but the captured model was not called", hint="capture this model")
        times = {
            "io": at["first"] - at["end"] if "end" in at else 0.0,
            "forward": at["forward"] - at["begin"],
            "backward": at["backward"] - at["forward"],
            "update": end - at["backward"],
        }
        if self._step >= WARMUP and not self._tracing:
            self._clean.append(times)
        self._step += 1
        was_traced = bool(self._tracing)
        self._stop_tracing()
        if self._step >= WARMUP and not was_traced and len(self._traced) < TRACED:
            self._traced.append(_Trace(self._now))
            self._tracing = self._traced[-1].watch(self._model)
        self._at = {"end": self._now()}

    def _stop_tracing(self) -> None:
        for handle in self._tracing:
            handle.remove()
        self._tracing = []

    def _document(self) -> dict[str, Any]:
        traces = [trace for trace in self._traced if trace.ready]
        if not traces or len(self._clean) < 2:
            raise InputError(
                f"{self._step} steps were captured, too few for a profile",
                hint=f"run at least {WARMUP + 4} steps inside the block; 20 make a good profile",
            )
        typical = {name: median(step[name] for step in self._clean) for name in self._clean[0]}
        steps = [step["forward"] + step["backward"] + step["update"] for step in self._clean]
        layers, ready = _layers(traces, typical)
        spread = _spread(steps)
        return {
            "schema": "paceline.profile/1",
            "network": self._name,
            "device": _device_name(self._device),
            "batch": self._batch or 1,
            "layers": layers,
            "ready": ready,
            "io": typical["io"],
            "update": typical["update"],
            "jitter": min(0.2, spread),
            "uncertainty": min(1.0, max(0.01, spread / len(steps) ** 0.5)),
            "source": f"captured from {len(steps)} steps, {len(traces)} more traced, torch {torch.__version__}",
        }


class _Trace:
    """One step, layer by layer: own time of each module in forward, time until each gradient in backward."""

    def __init__(self, now: Clock) -> None:
        self._now, self._last = now, 0.0
        self._stack: list[list[float]] = []
        self.forward: dict[str, float] = defaultdict(float)
        self.ready: list[tuple[str, float, int]] = []
        """Layer, seconds since the gradient before, bytes; in the order of readiness."""

    def watch(self, model: nn.Module) -> list[Any]:
        """Install hooks on every leaf module and on every trainable parameter."""
        handles = []
        for name, module in model.named_modules():
            own = list(module.named_parameters(recurse=False))
            if name and (own or not any(True for _ in module.children())):
                handles.append(module.register_forward_pre_hook(self._begins))
                handles.append(module.register_forward_hook(lambda m, i, o, name=name: self._ends(name)))
            for _, parameter in own:
                if parameter.requires_grad and parameter.is_leaf:
                    hook = parameter.register_post_accumulate_grad_hook
                    handles.append(hook(lambda p, name=name or ROOT: self._is_ready(name, p)))
        return handles

    def backward_from(self, at: float) -> None:
        """Backward may begin; with accumulated batches the last one counts."""
        self._last, self.ready = at, []

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        self._stack.append([self._now(), 0.0])

    def _ends(self, name: str) -> None:
        begin, inner = self._stack.pop()
        seconds = self._now() - begin
        self.forward[name] += seconds - inner
        if self._stack:
            self._stack[-1][1] += seconds

    def _is_ready(self, name: str, parameter: torch.Tensor) -> None:
        now = self._now()
        self.ready.append((name, now - self._last, parameter.numel() * parameter.element_size()))
        self._last = now


def _layers(traces: list[_Trace], typical: dict[str, float]) -> tuple[list[dict[str, Any]], list[str]]:
    """Layers in the order of forward, their shares from the traced steps, scaled to the untraced ones."""
    names = [*traces[0].forward, *dict.fromkeys(name for name, _, _ in traces[0].ready)]
    names = list(dict.fromkeys(names))
    ahead = {name: median(trace.forward.get(name, 0.0) for trace in traces) for name in names}
    behind: dict[str, float] = defaultdict(float)
    sizes: dict[str, list[int]] = defaultdict(list)
    for place, (name, _, size) in enumerate(traces[0].ready):
        behind[name] += median(trace.ready[place][1] for trace in traces if len(trace.ready) > place)
        sizes[name].append(size)
    scale_f = typical["forward"] / max(sum(ahead.values()), 1e-12)
    scale_b = typical["backward"] / max(sum(behind.values()), 1e-12)
    layers = [
        {
            "name": name,
            "forward": ahead[name] * scale_f,
            "backward": behind.get(name, 0.0) * scale_b,
            "gradients": sizes.get(name, []),
        }
        for name in names
    ]
    plain = [name for name in reversed(names) if name not in behind]
    return layers, [*plain, *behind]


def _spread(steps: list[float]) -> float:
    """Standard deviation as a share of the step, from the middle half: single long steps are the machine's."""
    ordered = sorted(steps)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 1.349 / median(ordered)


def _device_name(device: torch.device) -> str:
    """Name of the device according to the driver; `host-cpu` for processors."""
    if device.type != "cuda":
        return "host-cpu"
    return os.environ.get(variables.DEVICE) or str(torch.cuda.get_device_name(device))
