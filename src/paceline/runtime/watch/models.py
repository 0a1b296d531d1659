"""Facts about the outermost modules of a watched process. Python 3.9, standard library and torch only."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.runtime.counting import WorkCounter, device_name, model_precision
from paceline.runtime.watch.recorder import Recorder

__all__ = ["WorkCount", "described", "is_compiled", "is_trainable", "replica_of", "user_module", "wrapped"]


COUNTABLE = hasattr(TorchDispatchMode, "supports_higher_order_operators")
"""Whether operators can be counted without an effect on those that PyTorch composes, such as flex_attention."""


def wrapped(owner: Any, name: str, around: Any, recorder: Recorder | None) -> Any:
    """Call `around` in place of a method, in watched steps of a recorder or always; returns a function that undoes
    this.

    A replacement that other code installed later stays.
    """
    original, own = getattr(owner, name), name in vars(owner)

    @functools.wraps(original)
    def method(*given: Any, **named: Any) -> Any:
        watching = recorder is None or recorder.watching
        return around(original, *given, **named) if watching else original(*given, **named)

    def undo() -> None:
        if vars(owner).get(name) is method:
            setattr(owner, name, original) if own else delattr(owner, name)

    setattr(owner, name, method)
    return undo


def user_module(root: Any) -> Any:
    """The user's module, which DistributedDataParallel may wrap."""
    return root.module if isinstance(root, torch.nn.parallel.DistributedDataParallel) else root


def replica_of(root: Any) -> Any:
    """The DistributedDataParallel in a module; None without one."""
    parts = root.modules() if root is not None else ()
    return next((part for part in parts if isinstance(part, torch.nn.parallel.DistributedDataParallel)), None)


def is_compiled(roots: Iterable[Any]) -> bool:
    """Whether `torch.compile` or `Module.compile` compiled a part of the model."""
    parts = (part for root in roots for part in root.modules())
    return any(type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None for part in parts)


def is_trainable(module: Any) -> bool:
    """Whether a module has parameters with gradients."""
    return any(parameter.requires_grad for parameter in module.parameters())


class WorkCount:
    """The work of one forward pass, for MFU and for predictions on other devices; an error in it is no error of the
    training."""

    def __init__(self, model: Any) -> None:
        self._model, self._begun = model, False
        self._counter = WorkCounter(model)

    @staticmethod
    def of(model: Any) -> WorkCount | None:
        """The count of a model; None if it would change what PyTorch does, or if parameters have no storage."""
        with contextlib.suppress(Exception):
            return WorkCount(model) if COUNTABLE else None
        return None

    def begins(self, inputs: Any, named: Any) -> None:
        """Count from here, if this is the first pass of the step."""
        if not self._begun:
            self._begun = True
            self._given = [value for value in (*inputs, *named.values()) if torch.is_tensor(value) and value.dim()]
            self._counter.begin()

    def ends(self, facts: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Stop counting; the work of each layer for a sample, and its unit in `facts`. Nothing without a pass."""
        with contextlib.suppress(Exception):
            self._counter.end()
            if self._begun and self._given and len(self._given[0]) and self._counter.total:
                first, names = self._given[0], [name for name, _ in self._model.named_modules() if name]
                text = first.dim() == 2 and not first.is_floating_point()
                facts.update(
                    unit="tokens" if text else "images" if first.dim() == 4 else "samples",
                    units_per_sample=int(first.shape[1]) if text else 1,
                    precision=model_precision(self._model, first.device),
                )
                return [(name, self._counter.of_sample(name, len(first))) for name in names]
        return []


def described(roots: list[Any], sent: int, graphs: bool) -> dict[str, Any]:
    """Facts about the outermost modules; `sent`: elements that were sent point to point in a step."""
    root = roots[0] if roots else None
    replica = replica_of(root)
    inner = root if replica is None else replica.module
    inner = getattr(inner, "_orig_mod", inner)
    parameters = list(inner.parameters()) if inner is not None else []
    ddp = {} if replica is None else {
        "find_unused_parameters": bool(replica.find_unused_parameters),
        "unused": sum(1 for p in parameters if p.requires_grad and p.grad is None),
        "buckets": _buckets(replica),
    }  # fmt: skip
    group = torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None
    place = {"rank": group.get_rank(), "world": group.get_world_size()} if group else {}
    return {
        **place, "model": type(inner).__name__ if roots else "model", "modules": len(roots),
        "parameters": sum(p.numel() for p in parameters), "ddp": ddp,
        "served": 0 < sum(p.numel() for p in parameters if p.requires_grad) <= sent,
        "sharded": any(hasattr(p, "device_mesh") for p in parameters) or _flat(root),
        "compiled": graphs or is_compiled(roots), "threads": torch.get_num_threads(),
        "versions": {"torch": str(torch.__version__)},
        "device": parameters[0].device.type if parameters else "cpu",
        "device_name": device_name(parameters[0].device) if parameters else "host-cpu",
        "python": sys.version.split()[0],
    }  # fmt: skip


def _buckets(replica: Any) -> list[int]:
    """Bytes of each bucket of DistributedDataParallel."""
    told = replica._get_ddp_logging_data()
    sizes = told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes") or ""
    return [int(size) for size in str(sizes).replace(",", " ").split()][:1000]


def _flat(root: Any) -> bool:
    """Whether a part of the model is sharded by the first kind of FSDP."""
    return root is not None and any(type(part).__name__ == "FullyShardedDataParallel" for part in root.modules())
