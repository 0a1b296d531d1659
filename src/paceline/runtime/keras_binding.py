"""The same runtime for a Keras 3 model on TensorFlow: gradients are handed over as buffers, variables handed back.

    with join_keras(model, (images, labels), global_batch=128) as pace:
        for batch in pace.batches(epochs=10):
            pace.train_on(batch)

The model is compiled as usual. TensorFlow computes, its gradients enter the exchange as memory that both sides share,
and Keras' own optimiser applies the sum. A shadow of the variables lets late ranks and checkpoints work unchanged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from paceline import variables
from paceline.errors import InputError
from paceline.runtime.members.rendezvous import launched_size
from paceline.runtime.pace import Pace, join
from paceline.runtime.settings import Settings
from paceline.runtime.training import Batch

__all__ = ["KerasPace", "join_keras"]


class _Shadow(nn.Module):
    """Torch parameters with the values of the model's trainable variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        super().__init__()
        self.values = nn.ParameterList([nn.Parameter(torch.from_numpy(item.numpy().copy())) for item in variables])


class _Handover(torch.autograd.Function):
    """A loss whose backward pass is done already: it hands out gradients that TensorFlow computed."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Any, ...]:
        scaled = ctx.gradients if float(scale) == 1.0 else [gradient * scale for gradient in ctx.gradients]
        return (None, *scaled)


class _KerasOptimizer(torch.optim.Optimizer):
    """Keras' optimiser behind the interface that the runtime knows; the shadow follows the variables."""

    def __init__(self, model: Any, shadow: _Shadow) -> None:
        self._model, self._shadow = model, shadow
        model.optimizer.build(model.trainable_variables)
        super().__init__(shadow.parameters(), {})

    def step(self, closure: Any = None) -> None:
        """Let Keras apply the exchanged gradients."""
        gradients = [tf.convert_to_tensor(item.grad.numpy()) for item in self._shadow.values]
        self._model.optimizer.apply(gradients, self._model.trainable_variables)
        with torch.no_grad():
            for shadow, variable in zip(self._shadow.values, self._model.trainable_variables, strict=True):
                shadow.copy_(torch.from_numpy(variable.numpy()))

    def state_dict(self) -> dict[str, Any]:
        """Keras' optimiser variables, and the variables that are not trained."""
        kept = [*self._model.optimizer.variables, *self._model.non_trainable_variables]
        return {"variables": [torch.from_numpy(np.array(variable.numpy())) for variable in kept]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a state; the shadow has its values by now, and the model gets them here."""
        kept = [*self._model.optimizer.variables, *self._model.non_trainable_variables]
        for variable, value in zip(kept, state["variables"], strict=True):
            variable.assign(value.numpy())
        _follow(self._model, self._shadow)


class KerasPace:
    """One process's part in the training of a Keras model."""

    def __init__(self, model: Any, pace: Pace, shadow: _Shadow) -> None:
        self._model, self._shadow, self.pace = model, shadow, pace

    def __enter__(self) -> KerasPace:
        self.pace.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pace.__exit__(kind, error, trace)

    def batches(self, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Batch]:
        """This rank's batches, as `Pace.batches` gives them."""
        return self.pace.batches(epochs=epochs, steps=steps)

    def train_on(self, batch: Batch) -> float:
        """One step on a batch; the loss of this rank's share."""
        if self.pace.grouped:
            # What the syncer hands out arrives in the shadow.
            _follow(self._model, self._shadow)
        with tf.GradientTape() as tape:
            inputs, targets = tf.convert_to_tensor(batch.inputs.numpy()), tf.convert_to_tensor(batch.targets.numpy())
            predicted = self._model(inputs, training=True)
            loss = self._model.compute_loss(x=inputs, y=targets, y_pred=predicted)
        computed = tape.gradient(loss, [variable.value for variable in self._model.trainable_variables])
        _check_gradients(computed, self._model.trainable_variables)
        gradients = [_handed_over(gradient) for gradient in computed]
        self.pace.step(_Handover.apply(gradients, *self._shadow.values))
        return float(loss)


def join_keras(
    model: Any, data: tuple[np.ndarray, np.ndarray], *, global_batch: int, settings: Settings | None = None
) -> KerasPace:
    """Take part in the training of a compiled and built Keras model on the TensorFlow backend."""
    if not getattr(model, "compiled", False) or not model.built:
        raise InputError(
            "the Keras model is not compiled and built", hint="call model.build(...) and model.compile(...)"
        )
    _check_losses(model)
    _check_batchnorm(model, several=launched_size() > 1 or variables.SYNCER in os.environ)
    shadow = _Shadow(model.trainable_variables)
    dataset = TensorDataset(*(torch.from_numpy(np.ascontiguousarray(part)) for part in data))
    optimizer = _KerasOptimizer(model, shadow)
    return KerasPace(model, join(shadow, optimizer, dataset, global_batch=global_batch, settings=settings), shadow)


def _check_losses(model: Any) -> None:
    """One array of targets is for one output, and that output has a loss."""
    if model.loss is None and not model.losses:
        raise InputError("the Keras model has no loss", hint="model.compile(optimizer, loss=...)")
    names = list(getattr(model, "output_names", ()))
    if len(names) > 1:
        raise InputError(
            f"the Keras model has {len(names)} outputs ({', '.join(names)}), join_keras() has targets for one",
            hint="train a model of one output: keras.Model(model.inputs, model.outputs[0])",
        )


def _check_batchnorm(model: Any, *, several: bool) -> None:
    """Refuse layers whose results, and whose moving averages, would differ between ranks."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    trained = [layer.name for layer in layers if layer.trainable]
    if several and trained:
        raise InputError(
            f"batch normalization ({', '.join(trained)}) normalises over each rank's share: results would depend on "
            "the split, and moving averages would differ between ranks",
            hint="keras.layers.GroupNormalization or LayerNormalization, or freeze these layers (trainable = False)",
        )


def _check_gradients(gradients: Sequence[Any], trained: Sequence[Any]) -> None:
    unused = [variable.path for variable, found in zip(trained, gradients, strict=True) if found is None]
    if unused:
        raise InputError(
            f"the loss does not depend on {', '.join(unused[:5])}, which would get no gradient",
            hint="freeze layers that the loss does not use (trainable = False), or give their output a loss",
        )


def _follow(model: Any, shadow: _Shadow) -> None:
    """Give the model's variables the values of their shadow."""
    for value, variable in zip(shadow.values, model.trainable_variables, strict=True):
        variable.assign(value.detach().numpy())


def _handed_over(gradient: Any) -> Tensor:
    """TensorFlow's gradient as a torch tensor over the same memory; a sparse one is made dense."""
    return torch.from_dlpack(tf.experimental.dlpack.to_dlpack(tf.convert_to_tensor(gradient)))
