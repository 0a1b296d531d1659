"""Checks of models, optimizers and states: each refusal states why ranks cannot train them together."""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from paceline.errors import InputError

__all__ = [
    "check_trainable",
    "fitting",
    "kind_of",
    "norm_of",
    "num_optimized",
    "optimizers_of",
    "rates_of",
    "refuse_apart",
]

SUMMED = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128)
"""Data types of gradients that ranks can sum."""
WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"}
DEVICE_OPTIONS = ("foreach", "fused", "capturable", "differentiable")
"""Settings of an optimizer that may differ between ranks, because they do not change results."""
GOLDEN = 0.618
EQUAL = 1e-6
"""Relative tolerance for equal rates, which are sent as float32."""


def optimizers_of(given: object) -> tuple[torch.optim.Optimizer, ...]:
    """The optimizers as a tuple, from one optimizer or a list."""
    several = tuple(given) if isinstance(given, Iterable) else (given,)
    if several and all(isinstance(one, torch.optim.Optimizer) for one in several):
        return several
    kinds = ", ".join(type(one).__name__ for one in several) or "none"
    raise InputError(f"optimizers: {kinds}, expected one of torch.optim or a list of them")


def check_trainable(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Refuse models and optimizers that ranks cannot train together."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("the model has no parameter that is trained")
    _check_wrapped(model)
    _check_sparse(model)
    _check_types(model)
    for optimizer in optimizers:
        _check_closure(optimizer)
    _check_foreign(optimizers, model)


@contextlib.contextmanager
def fitting(source: str) -> Iterator[None]:
    """Raise InputError if loading a state fails because the model, optimizers or further states differ."""
    try:
        yield
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())[:400]
        hint = "the model, optimizers and further states must be those that made it; a checkpoint can be moved away"
        raise InputError(f"{source} does not fit what is trained here: {reason}", hint=hint) from None


def _check_wrapped(model: nn.Module) -> None:
    """Refuse models whose wrapper exchanges gradients itself, with equal weights."""
    found = sorted({type(part).__name__ for part in model.modules()} & WRAPPERS)
    if found:
        raise InputError(
            f"the model is wrapped in {', '.join(found)}, which exchanges gradients itself: with unequal shares they "
            "would be weighted wrongly",
            hint="join the model without a wrapper, and call it in the loop; fully_shard with paceline.shard_mesh for "
            "models that are larger than a device",
        )


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
    """Properties of a parameter that must not change during training."""
    return parameter.requires_grad, parameter.dtype, parameter.device


def num_optimized(optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Number of parameters in all optimizers."""
    return sum(len(group["params"]) for optimizer in optimizers for group in optimizer.param_groups)


def rates_of(optimizers: Sequence[torch.optim.Optimizer]) -> float:
    """One number that changes with each rate, momentum, decay: on a scale of logarithms, small ones count as well."""
    numbers = [
        float(number)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for name, value in sorted(group.items(), key=lambda item: str(item[0]))
        if name not in {"params", *DEVICE_OPTIONS}
        for number in (value if isinstance(value, list | tuple) else (value,))
        if isinstance(number, int | float) or (isinstance(number, torch.Tensor) and number.numel() == 1)
    ]
    return sum((1 + index * GOLDEN % 1) * math.log(abs(number) + 1e-30) for index, number in enumerate(numbers))


def norm_of(parameters: Sequence[nn.Parameter]) -> float:
    """The norm over all elements of all parameters."""
    with torch.no_grad():
        return float(torch.stack([one.detach().norm().double().cpu() for one in parameters]).norm())


def refuse_apart(rates: Sequence[float], norms: Sequence[float], dtype: torch.dtype) -> None:
    """Refuse to continue if optimizers or parameters differ between ranks: each would train a different model."""
    apart = [rank for rank, rate in enumerate(rates) if not _close(rate, rates[0], EQUAL)]
    if apart:
        raise InputError(
            f"rates, momenta or decays of the optimizers of ranks {apart} are not those of rank 0",
            hint="set them from what all ranks know, as pace.position or a metric of all samples; step a schedule only "
            "if pace.step() or pace.update() returned True, or give it to Settings(also=...)",
        )
    # Devices of different kinds round differently, but by far less than the square root of the type's precision.
    whole = [rank for rank, norm in enumerate(norms) if norm]  # ranks that hold shards send 0
    apart = [rank for rank in whole if not _close(norms[rank], norms[whole[0]], torch.finfo(dtype).eps ** 0.5)]
    if apart:
        raise InputError(
            f"parameters of ranks {apart} are not those of rank {whole[0]}",
            hint="what changes parameters, or gradients between backward() and update(), must do the same on every "
            "rank: no `if pace.rank == 0`, no random numbers of the rank's own; what else the loop trains belongs into "
            "the nn.Module that joins",
        )


def _close(one: float, other: float, tolerance: float) -> bool:
    """Whether two numbers are equal within a relative tolerance; two numbers that are not finite are equal."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.isfinite(one) == math.isfinite(other)
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _check_foreign(optimizers: Sequence[torch.optim.Optimizer], model: nn.Module) -> None:
    """Refuse optimizers of parameters outside of the model, whose gradients would not be exchanged."""
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
    """Refuse optimizers that evaluate the loss several times per step."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            f"{type(optimizer).__name__} calls a closure several times for one step, which a shared step cannot",
            hint="use an optimizer whose step() needs no closure",
        )
