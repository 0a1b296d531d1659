"""Hooks in Keras, JAX and TensorFlow: the time of each step in its compiled graph, outside of it, and on input.

A compiled graph contains forward, backward, exchange and update. Hooks cannot separate them, so all of it counts as
forward, and a label of the run says so. Python 3.9 and the standard library only.

    Keras       a step is one batch of `fit`; time between two batches is io. On torch, backward passes are separate
    JAX         a step is one call of the jitted function that takes most of the time, until its results are ready
    TensorFlow  the same for a `tf.function`, in loops without Keras
"""

from __future__ import annotations

import functools
import time
import types
from typing import Any

from paceline.runtime.watch.recorder import TRACED_STEPS, Recorder, guarded

__all__ = ["GraphHooks", "KerasHooks"]

SEEN = 3
"""Number of calls of a function before it may count as the step; the first call compiles."""
LOST = 50
"""Number of calls of other functions after which the function that was the step is no longer used."""


class KerasHooks:
    """Steps of `Model.fit`, on any backend of Keras 3."""

    def __init__(self, recorder: Recorder, keras: Any) -> None:
        self.recorder = recorder
        self._backend = str(keras.backend.backend())
        self._versions = {"keras": str(keras.__version__)}
        for name in ("on_train_begin", "on_train_batch_begin", "on_epoch_begin"):
            self._before(keras.callbacks.CallbackList, name, getattr(self, name))
        for name in ("on_train_batch_end", "on_epoch_end"):
            self._before(keras.callbacks.CallbackList, name, getattr(self, name))

    def _before(self, owner: Any, name: str, told: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def method(callbacks: Any, *given: Any, **named: Any) -> Any:
            told(callbacks, *given, **named)
            return original(callbacks, *given, **named)

        setattr(owner, name, method)

    @guarded
    def on_train_begin(self, callbacks: Any, *given: Any, **named: Any) -> None:
        """Describe the training when `fit` begins."""
        told = f"keras on {self._backend}: forward holds all of a batch's graph" + (
            ", its input too" if self._backend == "tensorflow" else ", but backward" * (self._backend == "torch")
        )
        self.recorder.owner = self
        self.recorder.facts.update(
            model=str(getattr(callbacks.model, "name", "model")), framework=f"keras/{self._backend}", graphs=told,
            versions=self._versions, parameters=int(callbacks.model.count_params()) if callbacks.model.built else 0,
        )  # fmt: skip

    @guarded
    def on_epoch_begin(self, callbacks: Any, *given: Any, **named: Any) -> None:
        """Begin the phase io, as the first batch is fetched."""
        self.recorder.begin("io")

    @guarded
    def on_epoch_end(self, callbacks: Any, *given: Any, **named: Any) -> None:
        """End the phase io, because validation and checkpoints are not input."""
        self.recorder.end("io")

    @guarded
    def on_train_batch_begin(self, callbacks: Any, *given: Any, **named: Any) -> None:
        """End io and begin forward, because the batch is ready."""
        self.recorder.end("io")
        self.recorder.begin("forward")

    @guarded
    def on_train_batch_end(self, callbacks: Any, batch: Any, logs: Any = None) -> None:
        """End the step when its loss is computed."""
        if self.recorder.watching and isinstance(logs, dict):
            for value in logs.values():
                float(value)
        self.recorder.end("forward")
        self.recorder.boundary()
        self.recorder.begin("io")


class GraphHooks:
    """Times the outermost calls of compiled functions, and determines which function is the step."""

    def __init__(self, recorder: Recorder, framework: str, module: Any) -> None:
        self.recorder, self._framework = recorder, framework
        self._versions = {framework.split("/")[0]: str(module.__version__)}
        self._module = module
        self._wait: Any = getattr(module, "block_until_ready", None)
        self._inside = False
        self._calls: dict[int, int] = {}
        self._least: dict[int, float] = {}
        self._step: int | None = None
        self._named: int | None = None
        self._others = 0
        self._begin = 0.0

    def jitted(self, module: Any, name: str) -> None:
        """Watch the functions that `jax.jit` returns from now on."""
        original = getattr(module, name)

        @functools.wraps(original)
        def jit(*given: Any, **named: Any) -> Any:
            made = original(*given, **named)
            return _Watched(made, self) if given else lambda function: _Watched(made(function), self)

        setattr(module, name, jit)

    def called(self, owner: Any) -> None:
        """Watch the calls of all instances of a class."""
        original = owner.__call__

        @functools.wraps(original)
        def call(function: Any, *given: Any, **named: Any) -> Any:
            return self.around(function, functools.partial(original, function), given, named)

        owner.__call__ = call

    def around(self, function: Any, call: Any, given: Any, named: Any) -> Any:
        """Call a function; an outermost call may be a step."""
        if self._inside or not self.recorder.alive or self.recorder.owner not in (None, self):
            return call(*given, **named)
        self._inside = True
        self._begins()
        try:
            result = call(*given, **named)
            self._ends(function, result)
        finally:
            self._inside = False
        return result

    @guarded
    def _begins(self) -> None:
        self._begin = time.perf_counter()
        self.recorder.begin("forward")

    @guarded
    def _ends(self, function: Any, result: Any) -> None:
        if self._wait is not None and self.recorder.watching:
            self._wait(result)
        self.recorder.end("forward")
        key, seconds = id(function), time.perf_counter() - self._begin
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] > 1:  # the first call compiles; the shortest call has least disturbance
            self._least[key] = min(self._least.get(key, seconds), seconds)
        self._others = 0 if key == self._step else self._others + 1
        if self._is_step(key):
            self._describe(function)
            self.recorder.boundary()

    def _is_step(self, key: int) -> bool:
        """Whether this call ends a step: whether its function takes most of the time, by the calls so far."""
        early = self.recorder.step < TRACED_STEPS[-1] or self._others > LOST
        if early and self._calls[key] >= SEEN:
            more = self._step is None or self._took(key) > self._took(self._step) or self._others > LOST
            self._step = key if more else self._step
        return key == self._step

    def _took(self, key: int) -> float:
        return self._calls[key] * self._least[key]

    def _describe(self, function: Any) -> None:
        if self._named != id(function):
            self._named = id(function)
            name = getattr(function, "__name__", None) or getattr(function, "_name", None) or "step"
            jax = self._wait is not None
            place = {"rank": self._module.process_index(), "world": self._module.process_count()} if jax else {}
            self.recorder.owner = self
            self.recorder.facts.update(
                place, model=str(name), framework=self._framework, versions=self._versions,
                graphs=f"{self._framework.split('/')[0]}: a step is a call of {name}; forward holds all of its graph, "
                "and input is outside of the phases",
            )  # fmt: skip


class _Watched:
    """A jitted function with timed calls; other attributes are those of the function."""

    def __init__(self, function: Any, hooks: GraphHooks) -> None:
        functools.update_wrapper(self, function)
        self._paceline = (function, hooks)

    def __call__(self, *given: Any, **named: Any) -> Any:
        function, hooks = self._paceline
        return hooks.around(self, function, given, named)

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        return self if owner is None else types.MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._paceline[0], name)
