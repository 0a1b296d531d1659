"""The training state as JSON and tensors, for late joiners and for checkpoints.

A state is nested tables, lists, numbers and tensors. `pack_state` takes the tensors out and leaves indices, so that
the structure travels as JSON and the tensors as plain memory: nothing is pickled, nothing is executed on arrival.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.errors import InputError, StoreError
from paceline.files import atomic_write
from paceline.runtime.tensorfile import read_tensors, write_tensors

__all__ = ["Stateful", "broadcast_state", "load_checkpoint", "pack_state", "save_checkpoint", "unpack_state"]


log = logging.getLogger("paceline.runtime")

PIECE = 16 << 20
"""Number of elements per message."""


class Stateful(Protocol):
    """An object with a state: a model, an optimizer, a schedule."""

    def state_dict(self) -> dict[str, Any]:
        """Its state."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Take a state."""
        ...


def pack_state(state: Any, tensors: list[Tensor]) -> Any:
    """The state as JSON data; its tensors are appended to the list."""
    if isinstance(state, Tensor):
        tensors.append(state.detach())
        return {
            "tensor": len(tensors) - 1,
            "shape": list(state.shape),
            "dtype": str(state.dtype).removeprefix("torch."),
        }
    if isinstance(state, dict):
        return {"table": [[key, pack_state(value, tensors)] for key, value in state.items()]}
    if isinstance(state, list | tuple):
        return {"list": [pack_state(value, tensors) for value in state]}
    if state is None or isinstance(state, bool | int | float | str):
        return {"value": state}
    raise InputError(
        f"a state that holds a {type(state).__name__} cannot be shared between ranks",
        hint="keep numbers, texts, lists, tables and tensors in state_dict()",
    )


def unpack_state(packed: Any, tensors: Sequence[Tensor]) -> Any:
    """The state again."""
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    if "table" in packed:
        return {key: unpack_state(value, tensors) for key, value in packed["table"]}
    if "list" in packed:
        return [unpack_state(value, tensors) for value in packed["list"]]
    return packed["value"]


def broadcast_state(packed: Any, mine: Sequence[Tensor] | None, broadcast: Callable[[Tensor], None]) -> list[Tensor]:
    """The source's tensors on every rank; `mine` is None on the ranks that receive."""
    tensors = list(mine) if mine is not None else _empty(packed)
    flat = [tensor.detach().cpu().contiguous().view(-1) for tensor in tensors]
    for dtype in sorted({tensor.dtype for tensor in flat}, key=str):
        _broadcast_alike([tensor for tensor in flat if tensor.dtype == dtype], broadcast, receive=mine is None)
    return tensors


def _broadcast_alike(tensors: list[Tensor], broadcast: Callable[[Tensor], None], *, receive: bool) -> None:
    """Many small tensors as a few large ones."""
    while tensors:
        piece: list[Tensor] = []
        filled = 0
        while tensors and (not piece or filled + tensors[0].numel() <= PIECE):
            piece.append(tensors.pop(0))
            filled += piece[-1].numel()
        buffer = torch.cat(piece) if len(piece) > 1 else piece[0].clone()
        broadcast(buffer)
        if receive:
            for tensor, part in zip(piece, buffer.split([tensor.numel() for tensor in piece]), strict=True):
                tensor.copy_(part)


def _empty(packed: Any) -> list[Tensor]:
    tensors: dict[int, Tensor] = {}

    def visit(item: Any) -> None:
        if "tensor" in item:
            tensors[item["tensor"]] = torch.zeros(item["shape"], dtype=getattr(torch, item["dtype"]))
        for value in item.get("list", ()):
            visit(value)
        for _, value in item.get("table", ()):
            visit(value)

    visit(packed)
    return [tensors[index] for index in range(len(tensors))]


SCHEMA = 1
"""Version of the content of checkpoints; newer ones are refused."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically; the previous checkpoint is kept beside it. StoreError if there is no space.

    The file is in the safetensors format: the model's tensors are called `model.` and their names, further tensors
    `state.` and a number; the note `paceline` says how they make up the content again.
    """
    tensors: list[Tensor] = []
    packed = pack_state(content, tensors)
    names = _names(packed, len(tensors))
    note = json.dumps({"schema": SCHEMA, "names": names, "content": packed})
    named = dict(zip(names, tensors, strict=True))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, lambda file: write_tensors(file, named, {"paceline": note}), previous=_previous(path))
    except OSError as error:
        raise StoreError(f"cannot write the checkpoint {path}: {error.strerror or error}") from error


def _names(packed: Any, count: int) -> list[str]:
    """A name for each tensor: the model's own, if it is one of the first state's."""
    names = [f"state.{number}" for number in range(count)]
    states = dict(packed["table"]).get("state", {"list": []})["list"]
    for key, value in states[0]["table"] if states else []:
        if "tensor" in value:
            names[value["tensor"]] = f"model.{key}"
    return names


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.before")


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The newest sound checkpoint, or None if there is none.

    If the newest is damaged, it is moved aside and the one before it is taken, with a warning. A damaged checkpoint
    without one before it, and one of a newer Paceline, are a StoreError.
    """
    before = _previous(path)
    if not path.exists():
        return _content(before) if before.exists() else None
    try:
        return _content(path)
    except NewerCheckpoint:
        raise
    except StoreError as error:
        content = _content(before) if before.exists() else None
        if content is None:
            raise
        aside = path.replace(path.with_name(f"{path.name}.damaged"))
        log.warning("%s: going on from the one before it; the damaged one is now %s", error.message, aside)
        return content


class NewerCheckpoint(StoreError):
    """A checkpoint of a newer Paceline."""


def _content(path: Path) -> dict[str, Any]:
    hint = "move it away to start anew"
    try:
        tensors, notes = read_tensors(path)
        note = json.loads(notes["paceline"])
        if note["schema"] > SCHEMA:
            reason = f"written by a newer Paceline (schema {note['schema']}, this one reads {SCHEMA})"
            raise NewerCheckpoint(f"the checkpoint {path} was {reason}", hint="upgrade Paceline")
        content: dict[str, Any] = unpack_state(note["content"], [tensors[name] for name in note["names"]])
        missing = {"identity", "position", "mark", "costs", "state"} - set(content)
    except OSError as error:
        raise StoreError(f"cannot read the checkpoint {path}: {error.strerror or error}", hint=hint) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{path} is not a sound checkpoint of Paceline: {error}", hint=hint) from None
    if missing:
        raise StoreError(f"{path} is not a sound checkpoint of Paceline: no {min(missing)}", hint=hint)
    return content
