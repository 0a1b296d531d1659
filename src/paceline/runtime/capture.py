"""A profile of any PyTorch loop: per-layer times, gradient sizes and the order in which they become ready.

    with paceline.capture(model, optimizer, path="my-run.profile"):
        for batch, target in loader: ...          # at least a handful of steps of your own loop

A step is timed from the begin of the model's forward pass to the end of the optimiser's step. After two steps of
warm-up, some steps are traced layer by layer; the untraced steps give the step time. The first step counts
multiply-adds and bytes. On a CPU a few steps run on one thread, so that the profile also holds for other numbers of
threads. At the end the rates of the host are measured for half a second, so that predictions can scale the profile to
other devices. This module imports only the standard library and torch.
"""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import torch
from torch import nn

from paceline.bench.frameworks.pytorch.worker_host import host_rates
from paceline.errors import InputError
from paceline.files import atomic_write
from paceline.runtime.counting import WorkCounter, device_name, model_precision
from paceline.units import BYTES, SECONDS

__all__ = ["Capture"]

WARMUP = 2
TRACED = 3
"""Number of traced steps; they alternate with untraced steps, so that drift affects both equally."""
ON_ONE_THREAD = 5
"""Number of steps on one thread, alternating with steps on all threads."""
BUSY = 0.8
"""A step that several threads slow down as much was not alone on its cores."""
ROOT = "whole model"
Clock = Callable[[], float]


class Capture:
    """Records the steps of a model and its optimizer; `profile` is available after the block."""

    def __init__(
        self, model: nn.Module, optimizer: Any, *, path: str | Path | None = None, name: str | None = None,
        batch: int | None = None, quiet: bool = False,
    ) -> None:  # fmt: skip
        if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
            raise InputError(
                "a profile is taken on one device, and this process is one of several ranks",
                hint="capture a run of one process; `paceline predict --profile` answers for many",
            )
        self._model = getattr(model, "module", model) if type(model).__name__.endswith("DataParallel") else model
        self._optimizer, self._path, self._batch = optimizer, Path(path) if path else None, batch
        self._quiet, self._threads = quiet, torch.get_num_threads()
        self._name = name or type(self._model).__name__
        self._device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
        self._handles: list[Any] = []
        self._tracing: list[Any] = []
        self._clean: list[dict[str, float]] = []
        self._single: list[float] = []
        """Seconds of steps on one thread."""
        self._work: WorkCounter | None = None
        self._precision: str | None = None
        self._traced: list[_Trace] = []
        self._step = 0
        self._counting = False
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
        torch.set_num_threads(self._threads)
        for handle in self._handles:
            handle.remove()
        if kind is None:
            self.profile = self._document()
            if self._path is not None:
                atomic_write(self._path, json.dumps(self.profile, indent=1) + "\n")
            if not self._quiet:
                sys.stdout.write("\n".join([*_summary(self.profile, self._path), ""]))

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def _forward_begins(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._batch is None:
            self._batch = next((int(x.shape[0]) for x in inputs if torch.is_tensor(x) and x.dim()), None)
        if self._work is None and type(self._model).__name__ != "OptimizedModule":  # compiled: operators are hidden
            self._precision = model_precision(self._model, self._device)
            self._work = WorkCounter(self._model)
            self._work.begin()
            self._counting = True
        self._at["begin"] = self._now()
        self._at.setdefault("first", self._at["begin"])

    def _forward_ends(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if self._work is not None and self._counting:
            self._work.end()
            self._counting = False
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
        on_all = torch.get_num_threads() == self._threads
        as_usual = not self._tracing and on_all
        if self._step >= WARMUP and as_usual:
            self._clean.append(times)
        elif not on_all:
            self._single.append(times["forward"] + times["backward"] + times["update"])
        self._step += 1
        self._stop_tracing()
        torch.set_num_threads(self._threads)
        if self._step >= WARMUP and as_usual:
            self._prepare_next()
        self._at = {"end": self._now()}

    def _prepare_next(self) -> None:
        """Choose how the next step runs: traced and untraced ones alternate, later some run on one thread."""
        if len(self._traced) < TRACED:
            self._traced.append(_Trace(self._now))
            self._tracing = self._traced[-1].watch(self._model)
        elif self._device.type == "cpu" and self._threads > 1 and len(self._single) < ON_ONE_THREAD:
            torch.set_num_threads(1)

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
        batch = self._batch or 1
        if self._work is not None:
            for layer in layers:
                layer.update(self._work.of_sample(layer["name"], batch))
        gain = median(self._single) / median(steps) if self._single else None
        host = {**host_rates(), "thread_gain": gain} if self._device.type == "cpu" else None
        spread = _spread(steps)  # on a CPU a disturbance lasts for several steps, so the spread of a mean is no smaller
        return {
            "schema": "paceline.profile/1",
            "network": self._name,
            "device": device_name(self._device),
            "batch": batch,
            "layers": layers,
            "ready": ready,
            "io": typical["io"],
            "update": typical["update"],
            "host": host,
            "precision": self._precision,
            "tied": _tied(self._model),
            "jitter": min(0.2, spread),
            "uncertainty": min(1.0, max(0.01, spread if host else spread / len(steps) ** 0.5)),
            "source": f"captured from {len(steps)} steps, {len(traces)} more traced, torch {torch.__version__}",
        }


class _Trace:
    """One step by layers: exclusive forward time of each module, and backward time until each gradient is ready."""

    def __init__(self, now: Clock) -> None:
        self._now, self._last = now, 0.0
        self._stack: list[list[float]] = []
        self.forward: dict[str, float] = defaultdict(float)
        self.ready: list[tuple[str, float, int]] = []
        """Layer, seconds since the previous gradient, and bytes; in the order in which gradients became ready."""

    def watch(self, model: nn.Module) -> list[Any]:
        """Install hooks on every leaf module and on every trainable parameter."""
        handles: list[Any] = []
        seen: set[int] = set()  # tied weights share one gradient
        for name, module in model.named_modules():
            own = list(module.named_parameters(recurse=False))
            if name and (own or not any(True for _ in module.children())):
                handles.append(module.register_forward_pre_hook(self._begins))
                handles.append(module.register_forward_hook(lambda m, i, o, name=name: self._ends(name)))
            for _, parameter in own:
                if parameter.requires_grad and parameter.is_leaf and id(parameter) not in seen:
                    seen.add(id(parameter))
                    hook = parameter.register_post_accumulate_grad_hook
                    handles.append(hook(lambda p, name=name or ROOT: self._is_ready(name, p)))
        return handles

    def backward_from(self, at: float) -> None:
        """Note a possible begin of the backward pass; with gradient accumulation the last one counts."""
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
    """Layers in the order of the forward pass: shares from the traced steps, scaled to the untraced step time."""
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
    """Relative standard deviation of the step time, from the middle half: other load causes single long steps."""
    ordered = sorted(steps)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / 1.349 / median(ordered)


def _tied(model: nn.Module) -> list[str]:
    """Names of parameters that are the same tensor as an earlier parameter."""
    first: dict[int, str] = {}
    named = model.named_parameters(remove_duplicate=False)
    return [name for name, parameter in named if first.setdefault(id(parameter), name) != name]


def _summary(profile: dict[str, Any], path: Path | None) -> list[str]:
    """Lines that summarise the profile and name the command that uses it."""
    layers, host = profile["layers"], profile["host"]
    sizes = [size for layer in layers for size in layer["gradients"]]
    counted = [layer for layer in layers if "macs" in layer]
    step = sum(layer["forward"] + layer["backward"] for layer in layers) + profile["update"]
    lines = [
        f"captured {profile['network']}: batch {profile['batch']}, {len(layers)} layers, "
        f"{profile['precision'] or 'float32 as PyTorch computes it here'}",
        f"  a step takes {SECONDS.format(step)}, {profile['batch'] / step:,.1f} samples/s",
        f"  gradients: {BYTES.format(sum(sizes))} in {len(sizes)} tensors",
    ]
    if counted:
        macs, moved = (sum(layer[name] for layer in counted) for name in ("macs", "moved"))
        lines.append(f"  one sample: {macs:,.0f} multiply-adds, {BYTES.format(moved)} in and out of layers")
    if profile["tied"]:
        lines.append(f"  tied weights, counted once: {', '.join(profile['tied'])}")
    if host:
        gain = f", {host['thread_gain']:.2f} times as fast as one" if host["thread_gain"] else ""
        lines.append(f"  {host['threads']} threads on {host['cores']} cores{gain}")
        if host["thread_gain"] and host["thread_gain"] < BUSY:
            lines.append("  warning: threads wait for cores that other processes use; capture again on a quiet machine")
    where = "local" if host else "dgx-1"
    if path is not None:
        lines.append(f"next: paceline predict --profile {path} --cluster {where} --devices 1,2,4")
    return lines
