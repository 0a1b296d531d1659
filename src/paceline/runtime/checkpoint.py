"""The training state as JSON and tensors, for late joiners and for checkpoints.

A state consists of nested tables, lists, numbers and tensors. `pack_state` replaces each tensor by an index, so that
the structure is sent as JSON and the tensors as plain memory: nothing is pickled or executed.

A checkpoint is a file in the safetensors format, with a checksum of its whole content: 8 bytes of length, a JSON
header, and the bytes of the tensors. This module writes and reads the format itself, because the environment of a
training process need not have the safetensors package. That package can read these files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from glob import escape
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import quote

import torch
from torch import Tensor

from paceline.errors import InputError, StoreError
from paceline.files import atomic_write, read_regular, remove_abandoned

__all__ = [
    "CheckpointWriter",
    "Stateful",
    "broadcast_state",
    "checkpoint_of_group",
    "load_checkpoint",
    "pack_state",
    "path_to_resume",
    "save_checkpoint",
    "unpack_state",
    "write_tensors",
]


log = logging.getLogger("paceline.runtime")

PIECE = 16 << 20
"""Number of elements in one message."""


class Stateful(Protocol):
    """An object with a state: a model, an optimizer, a schedule."""

    def state_dict(self) -> dict[str, Any]:
        """The state of the object."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Replace the state of the object."""
        ...


def pack_state(state: Any, tensors: list[Tensor]) -> Any:
    """The state as JSON data; the tensors of the state are appended to the list."""
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
    """The state from JSON data and its tensors; the inverse of `pack_state`."""
    if "tensor" in packed:
        if not 0 <= packed["tensor"] < len(tensors):
            raise ValueError(f"there is no tensor {packed['tensor']}")
        return tensors[packed["tensor"]]
    if "table" in packed:
        return {key: unpack_state(value, tensors) for key, value in packed["table"]}
    if "list" in packed:
        return [unpack_state(value, tensors) for value in packed["list"]]
    return packed["value"]


def broadcast_state(
    packed: Any, mine: Sequence[Tensor] | None, broadcast: Callable[[Tensor], None], *, receive: bool
) -> list[Tensor]:
    """Broadcast the tensors of the source to every rank; `mine` is None on ranks without a state."""
    tensors = list(mine) if mine is not None else _empty(packed)
    flat = [_sendable(tensor.detach().cpu().contiguous().view(-1)) for tensor in tensors]
    for dtype in sorted({tensor.dtype for tensor in flat}, key=str):
        _broadcast_alike([tensor for tensor in flat if tensor.dtype == dtype], broadcast, receive=receive)
    return tensors


SENDABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8)
"""Data types that Gloo can send; other types are sent as bytes."""


def _sendable(flat: Tensor) -> Tensor:
    return flat if flat.dtype in SENDABLE else flat.view(torch.uint8)


def _broadcast_alike(tensors: list[Tensor], broadcast: Callable[[Tensor], None], *, receive: bool) -> None:
    """Broadcast tensors of one data type in a few large messages."""
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
"""Version of the format; checkpoints of a newer version are refused."""


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint atomically; the previous checkpoint is kept beside it. StoreError if there is no space.

    The file is in the safetensors format. Tensors of the model are called `model.` and their name, other tensors
    `state.` and a number. The metadata entry `paceline` describes how the tensors form the content.
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
    """A name for each tensor: tensors of the first state, which is that of the model, keep their names."""
    names = [f"state.{number}" for number in range(count)]
    states = dict(packed["table"]).get("state", {"list": []})["list"]
    for key, value in states[0]["table"] if states else []:
        if "tensor" in value:
            names[value["tensor"]] = f"model.{key}"
    return names


def checkpoint_of_group(path: Path, group: str) -> Path:
    """The checkpoint file of one of several groups: they may share a folder, and each has its own optimizer state."""
    return path.with_name(f"{path.stem}.of-{quote(group, safe='')}{path.suffix}")


def path_to_resume(path: Path, group: str | None) -> Path:
    """The checkpoint of this group; without one, the newest that the job or another of its groups has written."""
    own = path if group is None else checkpoint_of_group(path, group)
    others = [path, *path.parent.glob(f"{escape(path.stem)}.of-*{escape(path.suffix)}")]
    if any(os.path.lexists(one) for one in (own, _previous(own))):
        return own
    return max((one for one in others if one.is_file()), key=lambda one: one.stat().st_mtime, default=own)


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.name}.before")


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The newest checkpoint that can be read, or None if there is no checkpoint.

    If the newest checkpoint is damaged, it is renamed and the previous one is loaded, with a warning. A damaged
    checkpoint without a previous one, or a checkpoint of a newer Paceline, is a StoreError.
    """
    with contextlib.suppress(OSError):  # remove what a killed process left half-written: it is as large as a checkpoint
        remove_abandoned(path.parent, name=path.name)
    before = _previous(path)
    if not os.path.lexists(path):  # a broken link does not mean "no checkpoint": its disk may not be mounted now
        return _content(before) if os.path.lexists(before) else None
    try:
        return _content(path)
    except NewerCheckpoint:
        raise
    except StoreError as error:
        content = _content(before) if os.path.lexists(before) else None
        if content is None:
            raise
        log.warning("%s: going on from the one before it; the damaged one is now %s", error.message, _set_aside(path))
        return content


def _set_aside(path: Path) -> Path:
    """Rename a damaged file; leave it in place if the new name exists, or if renaming is not permitted."""
    try:
        return path.replace(path.with_name(f"{path.name}.damaged"))
    except OSError:
        return path


class NewerCheckpoint(StoreError):
    """The checkpoint was written by a newer Paceline."""


def _content(path: Path) -> dict[str, Any]:
    hint = "move it away to start from the beginning"
    try:
        tensors, notes = read_tensors(path)
        note = json.loads(notes["paceline"])
        if note["schema"] > SCHEMA:
            reason = f"written by a newer Paceline (schema {note['schema']}, this one reads {SCHEMA})"
            raise NewerCheckpoint(f"the checkpoint {path} was {reason}", hint="upgrade Paceline")
        content: dict[str, Any] = unpack_state(note["content"], [tensors[name] for name in note["names"]])
        if not isinstance(content, dict):
            raise ValueError("its content is no table")
        missing = {"identity", "position", "mark", "costs", "state"} - set(content)
    except OSError as error:
        raise StoreError(f"cannot read the checkpoint {path}: {error.strerror or error}", hint=hint) from None
    except (MemoryError, OverflowError):
        raise StoreError(f"cannot read the checkpoint {path}: no memory for it", hint=hint) from None
    except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:  # torch: a shape too large
        raise StoreError(f"{path} is not a sound checkpoint of Paceline: {error}", hint=hint) from None
    if missing:
        raise StoreError(f"{path} is not a sound checkpoint of Paceline: no {min(missing)}", hint=hint)
    return content


TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in TYPES.items()}
MAX_HEADER = 100 * 10**6
"""Largest header in bytes; the reader of the safetensors package has the same limit."""
DIGEST = "sha256"


def write_tensors(file: IO[bytes], tensors: dict[str, Tensor], notes: dict[str, str]) -> None:
    """Write tensors and notes to an open file."""
    header: dict[str, Any] = {}
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES or tensor.layout != torch.strided:
            raise InputError(f"a checkpoint cannot hold {name}: {tensor.dtype}, {tensor.layout}")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    digest = _digest(header, notes, (_raw(tensor) for tensor in tensors.values()))
    text = json.dumps({"__metadata__": {"format": "pt", **notes, DIGEST: digest}, **header}).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for tensor in tensors.values():
        file.write(_raw(tensor))


def _raw(tensor: Tensor) -> Any:
    """The bytes of a tensor, without a copy if the tensor is on the CPU."""
    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _digest(header: dict[str, Any], notes: dict[str, str], parts: Iterator[Any]) -> str:
    hashed = hashlib.sha256(json.dumps([header, notes], sort_keys=True).encode())
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes of a file; raises ValueError with the reason if the file is damaged."""
    content = memoryview(bytearray(read_regular(path, follow=True)))
    header, data = _parts(content)
    notes = header.pop("__metadata__", None)
    if not isinstance(notes, dict) or DIGEST not in notes:
        raise ValueError("no checksum in it: another program wrote it")
    given, _ = notes.pop(DIGEST), notes.pop("format", None)
    if given != _digest(header, notes, iter([data])):
        raise ValueError("its content does not match its checksum")
    return {name: _tensor(entry, data) for name, entry in header.items()}, notes


def _parts(content: memoryview) -> tuple[dict[str, Any], memoryview]:
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or not 2 <= length <= min(MAX_HEADER, len(content) - 8):
        raise ValueError("not a safetensors file, or cut short")
    try:
        header = json.loads(bytes(content[8 : 8 + length]))
    except (ValueError, RecursionError):
        raise ValueError("not a safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("not a safetensors file: its header is not a table")
    return header, content[8 + length :]


def _tensor(entry: dict[str, Any], data: memoryview) -> Tensor:
    (begin, end), shape, dtype = entry["data_offsets"], entry["shape"], TYPES[entry["dtype"]]
    counts = [begin, end, *shape]
    if any(type(count) is not int or count < 0 for count in counts) or not begin <= end <= len(data):
        raise ValueError(f"a tensor at {begin} to {end} of {len(data)} bytes, of the shape {str(shape)[:60]}")
    # Checked before memory is allocated, because a damaged header may state a shape of any size.
    if math.prod(shape) * torch.empty(0, dtype=dtype).element_size() != end - begin:
        raise ValueError(f"a tensor of {end - begin} bytes cannot have the shape {str(shape)[:60]}")
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(shape)


class CheckpointWriter:
    """Writes checkpoints in a separate thread, one at a time; after a failure a later step tries again."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="paceline-checkpoint")
        self._writing: tuple[int, Future[None]] | None = None
        """The step of the checkpoint that is being written, and the result of writing it."""
        self.failures, self.again = 0, -1
        """Number of consecutive failures, and the step of the next attempt: 1, 2, 4, ... steps after the failure."""

    def begin(self, step: int, write: Callable[[], None]) -> None:
        """Start to write the checkpoint of a step, after the previous one is complete."""
        self._writing = (step, self._thread.submit(write))

    def look(self, now: int) -> None:
        """Take the result of the checkpoint if writing has ended; do not wait for it."""
        if self._writing is not None and self._writing[1].done():
            self.finish(now)

    def finish(self, now: int) -> None:
        """Wait for the checkpoint that is being written; a failure to write is logged, and training continues."""
        if self._writing is None:
            return
        (step, writing), self._writing = self._writing, None
        try:
            writing.result()
        except StoreError as error:
            if not self.failures:
                log.warning("step %d: %s; training continues, and a later step tries again", step, error.message)
            self.again = now + 2**self.failures
            self.failures += 1
        else:
            if self.failures:
                log.warning("step %d: the checkpoint could be written again", step)
            self.failures = 0

    def close(self) -> None:
        """End the writing thread."""
        self._thread.shutdown()
