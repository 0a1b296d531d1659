"""Joint training of Keras models by `model.fit` with one callback, or by a loop of the user.

model.fit(dataset, epochs=10, callbacks=[paceline.keras.Join(global_batch=512)])

with paceline.keras.join_keras(model, (inputs, targets), global_batch=512) as training:
    for batch in training.batches(epochs=10):
        training.train_on(batch)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

import keras

from paceline.errors import InputError
from paceline.runtime.epochs import EpochBatches
from paceline.runtime.keras.backends import STATE, connect_backend
from paceline.runtime.keras.exchange import Exchange
from paceline.runtime.keras.rows import Rows, array_rows, kept_rows, loader_rows
from paceline.runtime.pace import Pace
from paceline.runtime.settings import Settings

__all__ = ["Join", "KerasPace", "join_keras"]


class Join(keras.callbacks.Callback):
    """Joins the `fit` calls of all launched processes: a step has `global_batch` samples, split by speed.

    The batch size of the dataset has no effect. Metrics are over the samples of this rank. Every rank validates on all
    validation samples.
    """

    def __init__(self, global_batch: int, settings: Settings | None = None) -> None:
        super().__init__()
        if global_batch < 1:
            raise InputError(f"global_batch is {global_batch}, expected at least 1")
        self._global_batch, self._settings = global_batch, settings
        self.pace: Pace
        """The `Pace` of this process; set when training begins."""
        self._joined = False
        self.exchange: Exchange
        self._disconnect: Callable[[], None] = lambda: None
        self._batches: EpochBatches
        self._epoch = self._first = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Join the group, and replace the source of batches of `fit`."""
        given = _fit_frame(self.model).f_locals
        self._first, epochs = given["initial_epoch"], given["epochs"] - given["initial_epoch"]
        rows = _rows(given)
        self.exchange = Exchange(self.model, rows, global_batch=self._global_batch, settings=self._settings)
        self.pace, self._joined = self.exchange.pace.__enter__(), True
        self._disconnect = connect_backend(self.exchange)
        self._batches = EpochBatches(self.pace, self.exchange.batches(epochs=epochs), epochs=epochs)
        given["epoch_iterator"]._enumerate_iterator = self._steps
        steps = -(-len(rows) // self.pace.global_batch)
        given["callbacks"].set_params({**given["callbacks"].params, "steps": steps})
        # A rank that joins late or resumes from a checkpoint starts in the present epoch of the others.
        self.model._initial_epoch = self._first + self.pace.position.epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch of `fit`."""
        self._epoch = epoch - self._first

    def on_train_end(self, logs: Any = None) -> None:
        """Wait until all ranks have finished, unless training was stopped early; restore `fit`."""
        self._leave()

    def _steps(self) -> Iterator[tuple[int, int, Any]]:
        """The iterator of `fit` for one epoch: begin and end of each step, and its batches."""
        try:
            for step, data in enumerate(self._batches.of(self._epoch)):
                yield step, step, iter([data])
        except GeneratorExit:
            if not self.model.stop_training:  # fit() failed: the other ranks must not wait for this one
                self._leave()
            raise
        except BaseException as error:
            self._leave(error)
            raise

    def _leave(self, error: BaseException | None = None) -> None:
        joined, self._joined = self._joined, False
        if joined:
            if error is None:
                self._batches.leave()
            else:
                self.pace.__exit__(type(error), error, None)
            self._disconnect()
            self.model._initial_epoch = None


class KerasPace:
    """The training of a Keras model on one process, in a loop of the user."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange, self.pace = exchange, exchange.pace

    def __enter__(self) -> KerasPace:
        self.pace.__enter__()
        self._disconnect = connect_backend(self._exchange)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._disconnect()
        self.pace.__exit__(kind, error, trace)

    def batches(self, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Any]:
        """Batches of this rank for `train_on`, or, on TensorFlow and torch, for a step function of the user.

        Such a function computes the loss and calls `model.optimizer.apply_gradients` once.
        """
        return self._exchange.batches(epochs=epochs, steps=steps)

    def train_on(self, batch: Any) -> dict[str, float]:
        """Run `model.train_step`; returns loss and metrics of this rank's samples since the last reset."""
        model = self._exchange.model
        if keras.backend.backend() != "jax":
            return {name: float(value) for name, value in model.train_function([batch]).items()}
        logs, state = model.train_function(model._get_jax_state(**dict.fromkeys(STATE, True)), [batch])
        model._jax_state, model._jax_state_synced = dict(zip(STATE, state, strict=True)), False
        model.jax_state_sync()
        return {name: float(value) for name, value in logs.items()}


def join_keras(model: Any, data: Any, *, global_batch: int, settings: Settings | None = None) -> KerasPace:
    """Join the training of a compiled and built Keras model on arrays (inputs, targets[, weights])."""
    return KerasPace(Exchange(model, array_rows(*data), global_batch=global_batch, settings=settings))


def _fit_frame(model: Any) -> FrameType:
    """The frame of the `fit` call, which has the data: Keras does not pass it to callbacks."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        known = frame.f_locals
        if known.get("self") is model and {"epoch_iterator", "callbacks", "epochs", "initial_epoch"} <= known.keys():
            return frame
        frame = frame.f_back
    raise InputError("Join is a callback of model.fit() of Keras 3", hint="paceline.keras.join_keras for own loops")


def _rows(given: dict[str, Any]) -> Rows:
    """The data of `fit` as samples with indices."""
    for name in ("steps_per_epoch", "class_weight"):
        if given[name] is not None:
            raise InputError(
                f"{name} is not supported: an epoch has every sample once, unchanged",
                hint="leave it out; weights of classes can be given as sample_weight",
            )
    adapter = given["epoch_iterator"].data_adapter
    kind = type(adapter).__name__
    if kind == "ArrayDataAdapter":
        return array_rows(given["x"], given["y"], given["sample_weight"])
    if kind == "TorchDataLoaderAdapter":
        return loader_rows(given["x"])
    if kind == "PyDatasetAdapter" and adapter.num_batches:
        return kept_rows(given["x"][index] for index in range(adapter.num_batches))
    if kind == "TFDatasetAdapter" and int(given["x"].cardinality()) != -1:
        return kept_rows(given["x"])
    raise InputError(
        f"fit() was given a {type(given['x']).__name__} without an end, of which ranks cannot take samples by index",
        hint="give it arrays, a tf.data.Dataset that ends (without repeat()), a PyDataset, or a torch DataLoader",
    )
