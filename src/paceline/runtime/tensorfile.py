"""Tensors as a file in the safetensors format, with a checksum over everything in it; nothing is ever executed.

The format is 8 bytes of length, a header in JSON, and the bytes of the tensors, so that this module writes and reads it
itself: a training process has torch, and need not have the safetensors package. That package reads these files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from paceline.errors import InputError
from paceline.files import read_regular

__all__ = ["read_tensors", "write_tensors"]

TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in TYPES.items()}
MAX_HEADER = 100 * 10**6
"""Bytes of a header, as the format's own reader limits it."""
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
    """The bytes of a tensor, without a copy where it is on the CPU already."""
    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _digest(header: dict[str, Any], notes: dict[str, str], parts: Iterator[Any]) -> str:
    hashed = hashlib.sha256(json.dumps([header, notes], sort_keys=True).encode())
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and notes of a file whose checksum fits; ValueError says what is wrong."""
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
    begin, end = entry["data_offsets"]
    dtype = TYPES[entry["dtype"]]
    if begin == end:
        return torch.empty(entry["shape"], dtype=dtype)
    return torch.frombuffer(bytearray(data[begin:end]), dtype=dtype).reshape(entry["shape"])
