"""One step by layers: exclusive forward seconds of each module, and backward seconds until each gradient is ready.

Python 3.9, the standard library and torch only.
"""

from __future__ import annotations

import time
from typing import Any

__all__ = ["LayerTrace"]


class LayerTrace:
    """Hooks on every layer and parameter of a model for one step."""

    def __init__(self, model: Any, step: int) -> None:
        self._step, self._spans = step, []  # type: int, list[dict[str, Any]]
        self._origin = self._last = 0.0
        self._stack: list[list[float]] = []
        self._backward = False
        self.order: list[Any] = []
        """Parameters in the order in which their gradients became ready."""
        self._handles: list[Any] = []
        seen: set[int] = set()  # tied weights share one gradient
        for name, module in model.named_modules():
            own = list(module.named_parameters(recurse=False))
            if name and (own or not any(True for _ in module.children())):
                self._handles.append(module.register_forward_pre_hook(self._begins))
                self._handles.append(module.register_forward_hook(lambda m, i, o, name=name: self._ends(name)))
            for short, parameter in own:
                if parameter.requires_grad and parameter.is_leaf and id(parameter) not in seen:
                    seen.add(id(parameter))
                    full = f"{name or 'model'}.{short}"
                    hook = parameter.register_post_accumulate_grad_hook
                    self._handles.append(hook(lambda p, full=full: self._ready(full, p)))

    def starts(self) -> None:
        """Note the begin of a forward pass; with gradient accumulation the last one counts."""
        self._origin, self._spans, self.order, self._backward = time.perf_counter(), [], [], False

    def backward_from(self) -> None:
        """Note the begin of the backward pass; modules recomputed by activation checkpointing are not forward."""
        self._last, self._backward = time.perf_counter(), True

    def stop(self) -> list[dict[str, Any]]:
        """Remove the hooks, and return the spans of the step."""
        for handle in self._handles:
            handle.remove()
        return self._spans if self._backward else []

    def _begins(self, module: Any, inputs: Any) -> None:
        if not self._backward:
            self._stack.append([time.perf_counter(), 0.0])

    def _ends(self, name: str) -> None:
        if self._backward or not self._stack:
            return
        begin, inner = self._stack.pop()
        seconds = time.perf_counter() - begin
        self._add("forward", name, begin, seconds - inner, None)
        if self._stack:
            self._stack[-1][1] += seconds

    def _ready(self, name: str, parameter: Any) -> None:
        now = time.perf_counter()
        self._add("backward", name, self._last, now - self._last, parameter.numel() * parameter.element_size())
        self._last = now
        self.order.append(parameter)

    def _add(self, phase: str, name: str, begin: float, seconds: float, size: Any) -> None:
        self._spans.append(
            {"step": self._step, "phase": phase, "name": name, "start_s": begin - self._origin,
             "seconds": max(0.0, seconds), "size_bytes": size}
        )  # fmt: skip
