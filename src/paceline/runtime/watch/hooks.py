"""Hooks in PyTorch that record the phases of any training loop without changing the loop.

    step        from one end of the optimiser's step to the next (hooks for all optimisers)
    io          the loader's iterator
    h2d         tensors that move from the host to the device of the model
    forward     the outermost modules that are called in training, and the loss after them
    backward    `torch.autograd.backward` and `grad`, until the last gradient is ready; what a checkpoint computes again
    aggregate   what DistributedDataParallel adds before, between and after; every wait for a collective
    update      the optimiser's step and zero_grad

Two steps determine which modules are outermost; afterwards only these have hooks. In a step that is not watched, each
hook tests one flag. Standard library and torch only.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

from paceline.runtime.watch.layers import LayerTrace
from paceline.runtime.watch.models import (
    WorkCount,
    described,
    is_compiled,
    is_trainable,
    replica_of,
    user_module,
    wrapped,
)
from paceline.runtime.watch.recorder import TRACED_STEPS, F, Recorder, guarded

__all__ = ["Hooks"]

OBSERVED_STEPS = 2
"""Number of steps in which all modules are observed, to find the outermost ones."""
LOOKS = 3
"""Largest number of new searches for outermost modules, after steps without a forward pass."""
OWN_SESSION = "paceline.runtime.group.session"
"""Paceline's runtime, which waits for gradients here, and for batches in the next ones."""
OWN_SOURCES = {"paceline.runtime.data.batches": "InLoop", "paceline.runtime.data.loader": "LoaderSource"}
LAST_READY = 4
"""Number of gradients whose ready time is watched in every step: the last ones of a traced step."""
COUNTED_STEP = 7
"""Step whose first forward pass is counted: multiply-adds and bytes of each layer."""
LOST = 50
"""Number of steps of other optimisers after which the optimiser that ended the steps is no longer used."""


def hooked(method: F) -> F:
    """A guarded hook that `torch.compile` does not see, because it would break graphs."""
    safe = guarded(method)

    @functools.wraps(method)
    def seen(*given: Any, **named: Any) -> Any:
        return None if torch.compiler.is_compiling() else safe(*given, **named)

    return seen  # type: ignore[return-value]


class Hooks:
    """Installs the hooks of one recorder; `remove` removes them."""

    def __init__(self, recorder: Recorder, model: Any = None, optimizer: Any = None) -> None:
        self.recorder = recorder
        self._undo: list[Any] = []
        self._finding: list[Any] = []
        self._handles: list[Any] = []
        """Hooks on the outermost modules and their last gradients."""
        self._roots: dict[int, Any] = {}
        self._depth, self._looks, self._look_until = 0, 0, 0
        self._optimizer = None if optimizer is None else id(optimizer)
        self._fixed = optimizer is not None
        self._calls: dict[int, int] = {}
        """Number of steps of each optimiser by id, until it is known which one ends a step."""
        self._others = 0
        """Steps of other optimisers since the last end of a step."""
        self._backwards = 0
        """Number of running backward passes; they may be nested."""
        self._last_ready = 0.0
        self._exchanges = self._functional = self._copies = self._graphs = False
        """Whether DistributedDataParallel exchanges gradients during the backward pass."""
        self._forwards = 0
        self._sent = 0
        """Number of elements that this rank exchanged point to point in the present step."""
        self._trace: LayerTrace | None = None
        self._work: WorkCount | None = None
        if model is not None:
            self._adopt(model)
        self._install(known=model is not None)

    def remove(self) -> None:
        """Restore PyTorch."""
        for undo in reversed(self._undo):
            undo()
        self._undo = []
        self._forget()

    def _forget(self) -> None:
        """Stop watching the present modules."""
        for undo in (*self._finding, *(handle.remove for handle in self._handles)):
            undo()
        self._finding, self._handles, self._roots = [], [], {}
        self._exchanges = False

    def _install(self, known: bool) -> None:
        hooks = [
            optimizers.register_optimizer_step_pre_hook(self._update_begins),
            optimizers.register_optimizer_step_post_hook(self._update_ends),
        ]
        self._undo += [handle.remove for handle in hooks]
        for name in ("backward", "grad"):
            self._wrap(torch.autograd, name, self._around_backward)
        self._wrap(dataloader._BaseDataLoaderIter, "__next__", self._around("io"))
        self._wrap(dataloader.DataLoader, "__iter__", self._around("io"))
        self._wrap(optimizers.Optimizer, "zero_grad", self._around("update"))
        if torch.distributed.is_available():
            self._wrap(torch.distributed.Work, "wait", self._around("aggregate"))
            for name in ("send", "recv", "isend", "irecv"):
                self._wrap(torch.distributed, name, self._around_message)
        self._undo.append(wrapped(torch, "compile", self._around_compile, None))
        if not known:
            self._look()

    def _wrap(self, owner: Any, name: str, around: Any) -> None:
        self._undo.append(wrapped(owner, name, around, self.recorder))

    def _around_compile(self, original: Any, *given: Any, **named: Any) -> Any:
        """Count a compiled function as forward; a compiled module has hooks, and a decorator returns a function
        later."""
        made = original(*given, **named)
        if isinstance(made, torch.nn.Module) or not callable(made):
            return made
        if not (given or named.get("model")):
            return lambda function: self._graph(made(function)) if self.recorder.alive else made(function)
        return self._graph(made)

    def _graph(self, function: Any) -> Any:
        if isinstance(function, torch.nn.Module) or hasattr(function, "watched"):
            return function

        @functools.wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            skip = torch.compiler.is_compiling() or self._backwards or not self.recorder.watching
            if skip or not torch.is_grad_enabled():
                return function(*given, **named)
            self._graphs = True
            self._count(given, named)
            return self._around("forward")(function, *given, **named)

        timed.watched = True  # type: ignore[attr-defined]
        return timed

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

    @hooked
    def _message(self, tensor: Any) -> None:
        self._sent += tensor.numel()

    @hooked
    def _begin(self, phase: str) -> None:
        self.recorder.begin(phase)

    @hooked
    def _end(self, phase: str) -> None:
        self.recorder.end(phase)

    @guarded
    def _backward_begins(self) -> None:
        self._last_ready = 0.0
        self._backwards += 1
        self.recorder.backwards += 1
        if self._trace is not None:
            self._trace.backward_from()
        self.recorder.begin("backward")

    @guarded
    def _backward_ends(self) -> None:
        self._backwards = max(0, self._backwards - 1)
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
        found = id(optimizer) != self._optimizer and self._replaces(id(optimizer))
        if id(optimizer) != self._optimizer or self.recorder.owner not in (None, self):
            return
        self._others = 0
        if self._trace is not None:
            self._stop_trace()
        self._stop_counting()
        was_watching = self.recorder.watching
        self.recorder.boundary(counts=not (found or self._finding or (was_watching and self._is_lost())))
        self._after_step(was_watching)

    def _is_lost(self) -> bool:
        """Whether no known module computed in this step, so that other modules must have."""
        return bool(self._roots) and not self._forwards and self._looks < LOOKS

    def _replaces(self, optimizer: int) -> bool:
        """Whether an optimiser ends the steps from now on, because the previous one is no longer used."""
        self._others += 1
        self._calls[optimizer] = self._calls.get(optimizer, 0) + 1
        if self._fixed or self._others <= LOST:
            return False
        self._optimizer, self._looks = optimizer, 0
        self._forget()
        self._look()
        return True

    def _settle_optimizer(self) -> None:
        """Choose the optimiser that ends a step: the one that is called least, such as that of a GAN's generator."""
        if not self._fixed and self._calls:
            rarest = min(self._calls, key=lambda found: self._calls[found])
            self._optimizer = rarest if 2 * self._calls[rarest] <= self.recorder.step else self._optimizer
            self.recorder.facts["optimizers"] = 1 + len(self._calls)

    def _after_step(self, was_watching: bool) -> None:
        step, recorder = self.recorder.step, self.recorder
        if self._finding and step >= self._look_until:
            self._settle()
        elif not self._finding and not self._forwards and was_watching and self._looks < LOOKS:
            # Also when another model follows, because its optimiser may have the id of a deleted one.
            self._forget()
            self._look()
        if step == TRACED_STEPS[-1]:
            self._settle_optimizer()
        if step == TRACED_STEPS[0]:
            recorder.facts.update(described(list(self._roots.values()), self._sent, self._graphs))
        alone = len(self._roots) == 1 and not (self._graphs or is_compiled(self._roots.values()))
        if step in TRACED_STEPS and alone:
            self._trace = LayerTrace(user_module(next(iter(self._roots.values()))), step)
        elif step == COUNTED_STEP and alone and not recorder.facts.get("sharded"):
            self._work = WorkCount.of(user_module(next(iter(self._roots.values()))))
        elif step == TRACED_STEPS[-1] and self._exchanges:
            self.watch_last([p for root in self._roots.values() for p in root.parameters()][::-1])
        self._forwards = self._sent = self._depth = self._backwards = 0

    def _watch_imported(self) -> None:
        """Watch waits for functional collectives, which tensor parallelism uses, and Paceline's runtime, if the script
        imports them."""
        functional = sys.modules.get("torch.distributed._functional_collectives")
        if functional is not None and not self._functional:
            self._functional = True
            self._wrap(functional, "wait_tensor", self._around_wait)
        if OWN_SESSION in sys.modules and not self.recorder.facts.get("joined"):
            self.recorder.facts["joined"] = True
            self._wrap(sys.modules[OWN_SESSION].GroupSession, "exchange", self._around("aggregate"))
            for module, kind in OWN_SOURCES.items():
                self._wrap(getattr(sys.modules[module], kind), "take", self._around("io"))

    def _around_wait(self, original: Any, *given: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*given, **named)
        return self._around("aggregate")(original, *given, **named)

    # Which modules are outermost?

    def _look(self) -> None:
        self._looks += 1
        self._look_until = self.recorder.step + OBSERVED_STEPS
        self._finding = [wrapped(torch.nn.Module, "__call__", self._around_call, None)]

    def _around_call(self, original: Any, module: Any, *given: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling() or not self._finding:
            return original(module, *given, **named)
        self._enters(module)
        try:
            return original(module, *given, **named)
        finally:
            self._depth -= 1

    @guarded
    def _enters(self, module: Any) -> None:
        again = self._backwards and self._roots  # activation checkpointing recomputes an inner module
        if self._depth == 0 and not again and module.training and torch.is_grad_enabled() and is_trainable(module):
            self._roots.setdefault(id(module), module)
        self._depth += 1

    def _settle(self) -> None:
        for undo in self._finding:
            undo()
        self._finding = []
        for root in list(self._roots.values()):
            self._adopt(root)

    def _adopt(self, root: Any) -> None:
        """Watch the forward pass of an outermost module; for DistributedDataParallel, of the user's module inside
        it."""
        self._roots[id(root)] = root
        self._watch_imported()
        inner = user_module(root)
        self._exchanges |= replica_of(root) is not None
        if inner is not root:
            self._handles += [
                root.register_forward_pre_hook(lambda module, inputs: self._begin("aggregate")),
                root.register_forward_hook(lambda module, inputs, output: self._end("aggregate"), always_call=True),
            ]
        if inner._compiled_call_impl is not None:  # hooks would be a part of its graph
            inner._compiled_call_impl = self._graph(inner._compiled_call_impl)
        else:
            self._handles += [
                inner.register_forward_pre_hook(self._forward_begins, with_kwargs=True),
                inner.register_forward_hook(self._forward_ends, always_call=True),
            ]
        device = next((p.device for p in root.parameters()), torch.device("cpu"))
        if device.type == "cuda":
            self.recorder.now = lambda: (torch.cuda.synchronize(device), time.perf_counter())[1]
            self.recorder.peak_bytes = lambda: torch.cuda.max_memory_allocated(device)
        if device.type != "cpu" and not self._copies:
            self._copies = True
            for name in ("to", "cuda", "copy_"):
                self._wrap(torch.Tensor, name, self._around_copy)

    def _around_copy(self, original: Any, tensor: Any, *given: Any, **named: Any) -> Any:
        """Count a copy from the host as h2d, unless it is inside a forward or backward pass."""
        source = given[0] if original.__name__ == "copy_" and given else tensor
        if torch.compiler.is_compiling() or source.device.type != "cpu" or self.recorder.inside not in ("", "io"):
            return original(tensor, *given, **named)
        return self._around("h2d")(original, tensor, *given, **named)

    @hooked
    def _forward_begins(self, module: Any, inputs: Any, named: Any) -> None:
        if self._backwards or not (module.training and self.recorder.watching):
            return  # activation checkpointing, or an evaluation
        self._count(inputs, named)
        if self._trace is not None:
            self._trace.starts()
        self.recorder.begin("forward")
        if self._work is not None:
            self._work.begins(inputs, named)

    @hooked
    def _forward_ends(self, module: Any, inputs: Any, output: Any) -> None:
        self._stop_counting()
        self.recorder.end("forward")

    def _stop_counting(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            self.recorder.work = work.ends(self.recorder.facts)

    @guarded
    def _count(self, inputs: Any, named: Any) -> None:
        """Count a forward pass and its samples."""
        self._forwards += 1
        tensors = [value for value in (*inputs, *named.values()) if torch.is_tensor(value) and value.dim()]
        self.recorder.samples += int(tensors[0].shape[0]) if tensors else 0

    def _stop_trace(self) -> None:
        trace, self._trace = self._trace, None
        assert trace is not None
        self.recorder.traced(trace.stop())
        if self._exchanges and self.recorder.step == TRACED_STEPS[-1]:
            self.watch_last(trace.order)

    def watch_last(self, order: list[Any]) -> None:
        """Watch the gradients that are ready last; `order` has the parameters in the order of readiness."""
        trained = [parameter for parameter in order if parameter.requires_grad]
        hooks = [p.register_post_accumulate_grad_hook(self._gradient_ready) for p in trained[-LAST_READY:]]
        self._handles += hooks
