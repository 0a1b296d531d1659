"""Hooks in PyTorch that show a recorder the phases of any training loop, without a change of the loop.

    step        from one end of the optimiser's step to the next (hooks for all optimisers)
    io          the loader's iterator
    forward     the outermost modules that are called with gradients on, and the loss after them
    backward    `torch.autograd.backward`, until the last gradient is ready
    aggregate   what DistributedDataParallel adds before, between and after; every wait for a collective
    update      the optimiser's step and zero_grad

Two steps find out which modules are outermost; then hooks stay on these alone. Standard library and torch only.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

from paceline.runtime.watch.layers import LayerTrace
from paceline.runtime.watch.recorder import TRACED_STEPS, Recorder, guarded

__all__ = ["Hooks"]

LOOKED_AT = 2
"""Steps in which every module is looked at, to find the outermost ones."""
LOOKS = 3
"""How often hooks are looked for anew, after a step without forward."""
LAST_READY = 4
"""Gradients whose readiness is watched in every step: those that were ready last in a traced one."""


class Hooks:
    """Installs the hooks of one recorder; `remove` takes all of them away again."""

    def __init__(self, recorder: Recorder, model: Any = None, optimizer: Any = None) -> None:
        self.recorder = recorder
        self._undo: list[Any] = []
        self._finding: list[Any] = []
        self._roots: dict[int, Any] = {}
        self._depth, self._looks, self._look_until = 0, 0, 0
        self._optimizer = None if optimizer is None else id(optimizer)
        self._last_ready = 0.0
        self._exchanges = self._functional = False
        """Whether DistributedDataParallel exchanges gradients behind the backward pass."""
        self._forwards = 0
        self._sent = 0
        """Elements that this rank exchanged with single other ranks in the present step."""
        self._trace: LayerTrace | None = None
        if model is not None:
            self._adopt(model)
        self._install(known=model is not None)

    def remove(self) -> None:
        """Leave PyTorch as it was."""
        for undo in reversed(self._undo):
            undo()
        for handle in self._finding:
            handle.remove()
        self._undo, self._finding = [], []

    def _install(self, known: bool) -> None:
        hooks = [
            optimizers.register_optimizer_step_pre_hook(self._update_begins),
            optimizers.register_optimizer_step_post_hook(self._update_ends),
        ]
        self._undo += [handle.remove for handle in hooks]
        self._wrap(torch.autograd, "backward", self._around_backward)
        self._wrap(dataloader._BaseDataLoaderIter, "__next__", self._around("io"))
        self._wrap(dataloader.DataLoader, "__iter__", self._around("io"))
        self._wrap(optimizers.Optimizer, "zero_grad", self._around("update"))
        if torch.distributed.is_available():
            self._wrap(torch.distributed.Work, "wait", self._around("aggregate"))
            for name in ("send", "recv", "isend", "irecv"):
                self._wrap(torch.distributed, name, self._around_message)
        if not known:
            self._look()

    def _wrap(self, owner: Any, name: str, around: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(*given: Any, **named: Any) -> Any:
            return around(original, *given, **named)

        setattr(owner, name, method)
        self._undo.append(lambda: setattr(owner, name, original))

    def _around(self, phase: str) -> Any:
        def around(original: Any, *given: Any, **named: Any) -> Any:
            self._begin(phase)
            try:
                return original(*given, **named)
            finally:
                self._end(phase)

        return around

    def _around_backward(self, original: Any, *given: Any, **named: Any) -> Any:
        self._backward_begins()
        try:
            return original(*given, **named)
        finally:
            self._backward_ends()

    def _around_message(self, original: Any, tensor: Any, *given: Any, **named: Any) -> Any:
        self._message(tensor)
        return original(tensor, *given, **named)

    @guarded
    def _message(self, tensor: Any) -> None:
        self._sent += tensor.numel()

    @guarded
    def _begin(self, phase: str) -> None:
        self.recorder.begin(phase)

    @guarded
    def _end(self, phase: str) -> None:
        self.recorder.end(phase)

    @guarded
    def _backward_begins(self) -> None:
        self._last_ready = 0.0
        if self._trace is not None:
            self._trace.backward_from()
        self.recorder.begin("backward")

    @guarded
    def _backward_ends(self) -> None:
        tail = self.recorder.now() - self._last_ready if self._exchanges and self._last_ready else 0.0
        self.recorder.end("backward", moved=tail, to="aggregate")

    @guarded
    def _gradient_ready(self, parameter: Any) -> None:
        self._last_ready = time.perf_counter()

    @guarded
    def _update_begins(self, optimizer: Any, given: Any, named: Any) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        self.recorder.begin("update")

    @guarded
    def _update_ends(self, optimizer: Any, given: Any, named: Any) -> None:
        self.recorder.end("update")
        if id(optimizer) != self._optimizer:
            return
        if self._trace is not None:
            self._stop_trace()
        was_watching = self.recorder.watching
        self.recorder.boundary()
        self._after_step(was_watching)

    def _after_step(self, was_watching: bool) -> None:
        step, recorder = self.recorder.step, self.recorder
        if self._finding and step >= self._look_until:
            self._settle()
        elif not self._finding and not self._forwards and was_watching and self._looks < LOOKS:
            self._look()
        if step == TRACED_STEPS[0]:
            recorder.facts.update(self._describe())
        if step in TRACED_STEPS and not self._compiled() and len(self._roots) == 1:
            self._trace = LayerTrace(self._inner(next(iter(self._roots.values()))), step)
        elif step == TRACED_STEPS[-1] and self._exchanges:
            self._watch_last([p for root in self._roots.values() for p in root.parameters()][::-1])
        self._forwards = self._sent = 0
        self._depth = 0

    def _watch_functional(self) -> None:
        """Watch the waits of functional collectives, by which tensor parallelism exchanges, if the script uses them."""
        functional = sys.modules.get("torch.distributed._functional_collectives")
        if functional is not None and not self._functional:
            self._functional = True
            self._wrap(functional, "wait_tensor", self._around_wait)

    def _around_wait(self, original: Any, *given: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*given, **named)
        return self._around("aggregate")(original, *given, **named)

    # Which modules are outermost?

    def _look(self) -> None:
        self._looks += 1
        self._look_until = self.recorder.step + LOOKED_AT
        self._finding = [
            modules.register_module_forward_pre_hook(self._enters),
            modules.register_module_forward_hook(self._leaves, always_call=True),
        ]

    @guarded
    def _enters(self, module: Any, inputs: Any) -> None:
        if self._depth == 0 and module.training and torch.is_grad_enabled() and _trainable(module):
            self._roots.setdefault(id(module), module)
        self._depth += 1

    @guarded
    def _leaves(self, module: Any, inputs: Any, output: Any) -> None:
        self._depth -= 1

    def _settle(self) -> None:
        for handle in self._finding:
            handle.remove()
        self._finding = []
        for root in list(self._roots.values()):
            self._adopt(root)

    def _adopt(self, root: Any) -> None:
        """Watch the forward pass of an outermost module; inside DistributedDataParallel, that of the user's own."""
        self._roots[id(root)] = root
        self._watch_functional()
        inner = self._inner(root)
        if inner is not root:
            self._exchanges = True
            handles = [
                root.register_forward_pre_hook(lambda module, inputs: self._begin("aggregate")),
                root.register_forward_hook(lambda module, inputs, output: self._end("aggregate")),
            ]
            self._undo += [handle.remove for handle in handles]
        handles = [
            inner.register_forward_pre_hook(self._forward_begins, with_kwargs=True),
            inner.register_forward_hook(lambda module, inputs, output: self._end("forward")),
        ]
        self._undo += [handle.remove for handle in handles]
        device = next((p.device for p in root.parameters()), torch.device("cpu"))
        if device.type == "cuda":
            self.recorder.now = lambda: (torch.cuda.synchronize(device), time.perf_counter())[1]

    @guarded
    def _forward_begins(self, module: Any, inputs: Any, named: Any) -> None:
        if not (torch.is_grad_enabled() and module.training):
            return  # evaluation is not a part of the step
        self._forwards += 1
        tensors = [value for value in (*inputs, *named.values()) if torch.is_tensor(value) and value.dim()]
        self.recorder.samples += int(tensors[0].shape[0]) if tensors else 0
        if self._trace is not None:
            self._trace.starts()
        self.recorder.begin("forward")

    def _stop_trace(self) -> None:
        trace, self._trace = self._trace, None
        assert trace is not None
        self.recorder.traced(trace.stop())
        if self._exchanges and self.recorder.step == TRACED_STEPS[-1]:
            self._watch_last(trace.order)

    def _watch_last(self, order: list[Any]) -> None:
        """Watch the gradients that are ready last, of parameters in the order of readiness."""
        trained = [parameter for parameter in order if parameter.requires_grad]
        hooks = [p.register_post_accumulate_grad_hook(self._gradient_ready) for p in trained[-LAST_READY:]]
        self._undo += [handle.remove for handle in hooks]

    # What is trained, and how

    def _inner(self, root: Any) -> Any:
        return root.module if isinstance(root, torch.nn.parallel.DistributedDataParallel) else root

    def _compiled(self) -> bool:
        return any(type(self._inner(root)).__name__ == "OptimizedModule" for root in self._roots.values())

    def _describe(self) -> dict[str, Any]:
        root = next(iter(self._roots.values()), None)
        inner = self._inner(root)
        inner = getattr(inner, "_orig_mod", inner)
        parameters = list(inner.parameters()) if inner is not None else []
        ddp = {} if root is None or not self._exchanges else {
            "find_unused_parameters": bool(root.find_unused_parameters),
            "unused": sum(1 for p in parameters if p.requires_grad and p.grad is None),
            "buckets": _buckets(root),
        }  # fmt: skip
        group = torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None
        place = {"rank": group.get_rank(), "world": group.get_world_size()} if group else {}
        return {
            **place, "model": type(inner).__name__, "parameters": sum(p.numel() for p in parameters), "ddp": ddp,
            "served": 0 < sum(p.numel() for p in parameters if p.requires_grad) <= self._sent,
            "sharded": any(hasattr(p, "device_mesh") for p in parameters),
            "compiled": self._compiled(), "threads": torch.get_num_threads(), "torch": str(torch.__version__),
            "device": parameters[0].device.type if parameters else "cpu", "python": sys.version.split()[0],
        }  # fmt: skip


def _buckets(root: Any) -> list[int]:
    """Bytes of each bucket of DistributedDataParallel."""
    told = root._get_ddp_logging_data()
    sizes = told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or ""
    return [int(size) for size in str(sizes).replace(",", " ").split()][:1000]


def _trainable(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())
