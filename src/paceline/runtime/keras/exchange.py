"""Exchange of a Keras model: sums its gradients over all ranks.

Keras computes gradients, and its own optimizer updates the variables. The runtime works on torch parameters that shadow
the variables: they receive the gradients, and late joiners, checkpoints and the syncer read and write variables through
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import torch
from torch import Tensor, nn

from paceline import variables
from paceline.errors import InputError
from paceline.runtime.keras.losses import check_reductions
from paceline.runtime.keras.rows import Picked, Rows
from paceline.runtime.members.rendezvous import launched_size
from paceline.runtime.pace import join
from paceline.runtime.settings import Settings

__all__ = ["Exchange"]


class _Handover(torch.autograd.Function):
    """A loss whose backward pass returns gradients that the Keras backend has already computed."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Any, ...]:
        scaled = ctx.gradients if float(scale) == 1.0 else [gradient * scale for gradient in ctx.gradients]
        return (None, *scaled)


class _Shadow(nn.Module):
    """Torch parameters with the values of the model's trained variables, as of the last call of `look`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._keras = [model]  # in a list: on the torch backend it would become a submodule
        for index, variable in enumerate(model.trainable_variables):
            self.register_parameter(f"variable{index}", nn.Parameter(_plain(variable)))

    def forward(self, indices: np.ndarray, gradients: Sequence[Tensor]) -> Tensor:
        """A loss for these samples that has these gradients."""
        return _Handover.apply(gradients, *self.parameters())

    def look(self) -> None:
        """Copy values from the variables to the shadow."""
        with torch.no_grad():
            for shadow, variable in zip(self.parameters(), self._keras[0].trainable_variables, strict=True):
                shadow.copy_(_plain(variable))

    def show(self) -> None:
        """Copy values from the shadow to the variables."""
        for shadow, variable in zip(self.parameters(), self._keras[0].trainable_variables, strict=True):
            variable.assign(shadow.detach().numpy())

    def state_dict(self, *rest: Any, **options: Any) -> Any:
        """The present values of the variables."""
        self.look()
        return super().state_dict(*rest, **options)


class _ShadowOptimizer(torch.optim.Optimizer):
    """A torch optimizer in place of Keras' optimizer: it keeps the summed gradients for Keras to apply."""

    def __init__(self, model: Any, shadow: _Shadow) -> None:
        self._model, self._shadow = model, shadow
        self.summed: list[Tensor] = []
        """Gradients of the last step."""
        super().__init__(shadow.parameters(), {"lr": 0.0})

    def look(self) -> None:
        """Take the rate of Keras' optimizer, which ranks compare."""
        self.param_groups[0]["lr"] = float(keras.ops.convert_to_numpy(self._model.optimizer.learning_rate))

    def step(self, closure: Any = None) -> None:
        """Keep the summed gradients."""
        self.summed = [item.grad for item in self._shadow.parameters()]

    def state_dict(self) -> dict[str, Any]:
        """State of Keras' optimizer, and the variables that are not trained."""
        return {"variables": [_plain(variable) for variable in self._kept()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state; the shadow is loaded before, and its values are copied to the model here."""
        for variable, value in zip(self._kept(), state["variables"], strict=True):
            variable.assign(value.numpy())
        self._shadow.show()

    def _kept(self) -> list[Any]:
        return [*self._model.optimizer.variables, *self._model.non_trainable_variables]


class Exchange:
    """The exchange of one process, for a compiled and built Keras model."""

    def __init__(self, model: Any, rows: Rows, *, global_batch: int, settings: Settings | None = None) -> None:
        several = launched_size() > 1 or variables.SYNCER in os.environ
        _check_model(model)
        _check_batchnorm(model, several=several)
        if several or (settings and settings.chunk):
            check_reductions(model, "mean" if settings is None else settings.reduction)
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        self.model = model
        self.shadow = _Shadow(model)
        self._optimizer = _ShadowOptimizer(model, self.shadow)
        told = replace(settings or Settings(), collate=rows.pick)
        self.pace = join(self.shadow, self._optimizer, rows, global_batch=global_batch, settings=told)
        self._indices = np.zeros(0, dtype=np.int64)
        self._failure: Exception | None = None

    def batches(self, *, epochs: int | None = None, steps: int | None = None) -> Iterator[Any]:
        """Batches of this rank as tensors of the Keras backend: (inputs, targets) or (inputs, targets, weights)."""
        batches = self.pace.batches(epochs=epochs, steps=steps)
        while True:
            self._raise_failure()
            if hasattr(self.model, "jax_state_sync"):
                self.model.jax_state_sync()  # late joiners read the state from the variables
            # Several groups exchange the values of the shadow.
            if self.pace.grouped or self.pace.settings.scheme == "auto":
                self.shadow.look()
            batch = next(batches, None)
            if batch is None:
                return
            if self.pace.grouped:
                self.shadow.show()
            self._indices = batch.indices
            picked: Picked = batch.inputs
            yield picked.data

    def sum(self, gradients: Sequence[Tensor]) -> list[Tensor] | None:
        """The gradients of the whole step; equal on all ranks. None if there is nothing to apply yet.

        That is the case if further passes of the rank's share follow, or if the group has changed and the step repeats.
        """
        try:
            self._optimizer.look()
            if self.pace._training.looks:
                self.shadow.look()
            with torch.enable_grad():
                self.pace.backward(self.shadow(self._indices, gradients))
                return self._optimizer.summed if self.pace.update() else None
        except Exception as error:  # noqa: BLE001
            # Raised after the step: the graph of a backend would replace the error by one of its own.
            self._failure = error
            return None

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def check_gradients(self, gradients: Sequence[Any]) -> None:
        """Refuse missing gradients, and gradients of only some variables, because ranks could not sum them."""
        trained = self.model.trainable_variables
        if len(gradients) != len(trained):
            raise InputError(
                f"the optimizer got {len(gradients)} gradients, the model has {len(trained)} trained variables",
                hint="apply gradients of model.trainable_variables, all at once",
            )
        unused = [variable.path for variable, found in zip(trained, gradients, strict=True) if found is None]
        if unused:
            raise InputError(
                f"the loss does not depend on {', '.join(unused[:5])}, which would get no gradient",
                hint="freeze layers that the loss does not use (trainable = False), or give their output a loss",
            )


def _check_model(model: Any) -> None:
    if not getattr(model, "compiled", False) or not model.built:
        raise InputError(
            "the Keras model is not compiled and built", hint="call model.build(...) and model.compile(...)"
        )
    if model.loss is None and not model.losses and type(model).compute_loss is keras.Model.compute_loss:
        raise InputError("the Keras model has no loss", hint="model.compile(optimizer, loss=...)")
    if model.steps_per_execution != 1:
        raise InputError(
            f"steps_per_execution is {model.steps_per_execution}: ranks exchange gradients after every step",
            hint="model.compile(..., steps_per_execution=1)",
        )


def _check_batchnorm(model: Any, *, several: bool) -> None:
    """Refuse batch normalization, whose results and moving averages would differ between ranks."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    trained = [layer.name for layer in layers if layer.trainable]
    if several and trained:
        raise InputError(
            f"batch normalization ({', '.join(trained)}) normalises over each rank's share: results would depend on "
            "the split, and moving averages would differ between ranks",
            hint="keras.layers.GroupNormalization or LayerNormalization, or freeze these layers (trainable = False)",
        )


def _plain(variable: Any) -> Tensor:
    """A torch copy of the values of a variable."""
    return torch.from_numpy(np.array(keras.ops.convert_to_numpy(variable)))
