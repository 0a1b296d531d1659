"""What a shared step can train: refusals of models, optimizers and states, each with its reason."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from paceline.errors import InputError

__all__ = ["check_trainable", "fitting", "kind_of", "num_optimized", "optimizers_of"]

SUMMED = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
"""Types of gradients that travel."""


def optimizers_of(given: object) -> tuple[torch.optim.Optimizer, ...]:
    """One optimizer or several."""
    several = tuple(given) if isinstance(given, Iterable) else (given,)
    if several and all(isinstance(one, torch.optim.Optimizer) for one in several):
        return several
    kinds = ", ".join(type(one).__name__ for one in several) or "none"
    raise InputError(f"optimizers: {kinds}, expected one of torch.optim or a list of them")


def check_trainable(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse what ranks cannot train together."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("the model has no parameter that is trained")
    _check_sparse(model)
    _check_types(model)
    for optimizer in optimizers:
        _check_closure(optimizer)
    _check_foreign(optimizers, model)


@contextlib.contextmanager
def fitting(source: str) -> Iterator[None]:
    """A state that is not of this model, these optimizers and further states is the user's to mend."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:400]
        hint = "the model, optimizers and further states must be those that made it; a checkpoint can be moved away"
        raise InputError(f"{source} does not fit what is trained here: {reason}", hint=hint) from None


def _check_sparse(model: nn.Module) -> None:
    """Refuse layers with sparse gradients, which ranks cannot sum in buckets."""
    sparse = [name for name, part in model.named_modules() if getattr(part, "sparse", False) is True]
    if sparse:
        raise InputError(
            f"layers with sparse gradients: {', '.join(sparse)}; ranks sum dense gradients only",
            hint="nn.Embedding(..., sparse=False)",
        )


def _check_types(model: nn.Module) -> None:
    """Refuse parameters without a shape or of a type that ranks cannot sum."""
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise InputError(f"{name} has no shape yet", hint="run the model once on a sample before join()")
        if parameter.requires_grad and parameter.dtype not in SUMMED:
            raise InputError(
                f"{name} is of type {parameter.dtype}, which ranks cannot sum",
                hint="train float64, float32, float16, bfloat16 or complex parameters",
            )


def kind_of(parameter: nn.Parameter) -> tuple[bool, torch.dtype, torch.device]:
    """What must not change while it is trained."""
    return parameter.requires_grad, parameter.dtype, parameter.device


def num_optimized(optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Parameters that they have."""
    return sum(len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups)


def _check_foreign(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> None:
    """Refuse optimizers of parameters that are not the model's: they would be trained by each rank alone, or not."""
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreign = sum(id(parameter) not in own for parameter in parameters)
        if foreign:
            raise InputError(
                f"{foreign} of the {len(parameters)} parameters of {type(optimizer).__name__} are not in the model",
                hint="make the optimizer from the parameters of the model that joins, after fully_shard or .to(); what "
                "else is trained, as a loss with parameters, goes into one nn.Module with it",
            )


def _check_closure(optimizer: torch.optim.Optimizer) -> None:
    """Refuse optimizers that evaluate the loss several times for one step."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            f"{type(optimizer).__name__} calls a closure several times for one step, which a shared step cannot",
            hint="use an optimizer whose step() needs no closure",
        )
