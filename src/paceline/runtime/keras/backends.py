"""Hooks that exchange gradients in each backend of Keras, before the optimizer applies them.

TensorFlow and torch: the optimizer's `apply` receives the sum over all ranks, so that any `train_step` and any training
loop works. JAX compiles gradients, update and metrics into one function: here they are separate functions, with the
exchange between gradients and update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch

from paceline.errors import InputError
from paceline.runtime.keras.exchange import Exchange

__all__ = ["STATE", "connect_backend"]

STATE = ("trainable_variables", "non_trainable_variables", "optimizer_variables", "metrics_variables")


def connect_backend(exchange: Exchange) -> Callable[[], None]:
    """Make the model train with the exchange; returns a function that undoes this."""
    backend = keras.backend.backend()
    if backend not in _CONNECTED:
        raise InputError(f"Keras runs on {backend!r}, expected one of {', '.join(_CONNECTED)}")
    model = exchange.model
    compiled = model.jit_compile
    undo = _CONNECTED[backend](exchange)

    def disconnect() -> None:
        undo()
        model.jit_compile, model.train_function = compiled, None

    return disconnect


def _connect_tensorflow(exchange: Exchange) -> Callable[[], None]:
    import tensorflow as tf

    def summed(*gradients: Any) -> list[Any]:
        found = exchange.sum([torch.from_dlpack(tf.experimental.dlpack.to_dlpack(item)) for item in gradients])
        if found is None:
            return [False, *gradients]
        return [True, *(tf.convert_to_tensor(item.numpy()) for item in found)]

    def apply(plain: Callable[..., Any], gradients: Sequence[Any], variables: Any) -> None:
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        with tf.device("cpu"):
            ready, *wholes = tf.py_function(summed, dense, [tf.bool, *(item.dtype for item in dense)])
        for whole, item in zip(wholes, dense, strict=True):
            whole.set_shape(item.shape)
        tf.cond(ready, lambda: (plain(wholes, variables), tf.constant(0))[1], lambda: tf.constant(0))

    undo = _replace_apply(exchange, apply)
    # XLA would compile again for every share, and cannot call Python.
    exchange.model.jit_compile = False
    exchange.model.make_train_function(force=True)
    return undo


def _connect_torch(exchange: Exchange) -> Callable[[], None]:
    def apply(plain: Callable[..., Any], gradients: Sequence[Any], variables: Any) -> None:
        whole = exchange.sum([gradient.detach().cpu() for gradient in gradients])
        if whole is not None:
            plain([part.to(gradient.device) for part, gradient in zip(whole, gradients, strict=True)], variables)

    undo = _replace_apply(exchange, apply)
    exchange.model.jit_compile = False
    exchange.model.make_train_function(force=True)
    return undo


def _replace_apply(exchange: Exchange, apply: Callable[..., None]) -> Callable[[], None]:
    """Call `apply` in place of the optimizer's `apply`, for the optimizer of this model."""
    optimizer = exchange.model.optimizer
    plain = optimizer.apply

    def applied(gradients: Sequence[Any], trainable_variables: Any = None) -> None:
        gradients = list(gradients)
        exchange.check_gradients(gradients)
        apply(plain, gradients, list(trainable_variables or exchange.model.trainable_variables))

    object.__setattr__(optimizer, "apply", applied)
    return lambda: object.__delattr__(optimizer, "apply")


def _connect_jax(exchange: Exchange) -> Callable[[], None]:
    import jax

    model = exchange.model
    if type(model).train_step is not keras.Model.train_step:
        raise InputError(
            f"{type(model).__name__} has a train_step() of its own, which JAX compiles as a whole: gradients of other "
            "ranks cannot come in",
            hint="KERAS_BACKEND=tensorflow or torch, where any train_step() works",
        )
    gradient = jax.jit(jax.value_and_grad(model.compute_loss_and_updates, has_aux=True), static_argnames="training")
    update, measure = jax.jit(model.optimizer.stateless_apply), jax.jit(model._update_metrics_variables)

    def train(state: Any, batches: Any) -> Any:
        data = keras.utils.unpack_x_y_sample_weight(next(iter(batches)))
        trained, rest, optimizer, metrics = state
        (_, (loss, predicted, rest, metrics)), found = gradient(
            trained, rest, metrics, *data, training=True, optimizer_variables=optimizer
        )
        exchange.check_gradients(found)
        # A late joiner that joins during the exchange reads the state from the variables.
        _attach(model, (trained, rest, optimizer, metrics))
        whole = exchange.sum([torch.from_dlpack(jax.block_until_ready(item)) for item in found])
        logs, metrics = measure(metrics, loss, *data[:2], predicted, data[2])
        model._jax_state_synced = False  # from here on the returned state is newer than the variables
        if whole is None:
            kept = model._get_jax_state(**dict.fromkeys(STATE[:3], True))
            return logs, (*kept, metrics)
        trained, optimizer = update(optimizer, [jax.numpy.asarray(part.numpy()) for part in whole], trained)
        return logs, (trained, rest, optimizer, metrics)

    model.train_function = train
    return lambda: None


def _attach(model: Any, state: Sequence[Any]) -> None:
    """Assign the values that `fit` keeps outside of the variables to the variables."""
    model._jax_state, model._jax_state_synced = dict(zip(STATE, state, strict=True)), False
    model.jax_state_sync()


_CONNECTED = {"tensorflow": _connect_tensorflow, "torch": _connect_torch, "jax": _connect_jax}
