"""The training state as JSON and tensors, for late joiners and for checkpoints.

A state is nested tables, lists, numbers and tensors. `pack_state` takes the tensors out and leaves indices, so that
the structure travels as JSON and the tensors as plain memory: nothing is pickled, nothing is executed on arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.errors import InputError, StoreError
from paceline.files import atomic_write

__all__ = ["Stateful", "broadcast_state", "load_checkpoint", "pack_state", "save_checkpoint", "unpack_state"]


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


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically; the previous checkpoint is kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, lambda file: torch.save(content, file), previous=_previous(path))
    except OSError as error:
        raise StoreError(f"cannot write the checkpoint {path}: {error}") from error


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.before")


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The newest complete checkpoint, or None; tensors and plain values only."""
    for file in (path, _previous(path)):
        if file.exists():
            try:
                content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # torch raises many kinds for a damaged file
                raise StoreError(
                    f"cannot read the checkpoint {file}: {error}", hint="remove it to start anew"
                ) from error
            return content
    return None
