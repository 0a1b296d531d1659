"""Encodings of parameters between groups: unchanged, at half size, or as bytes with a scale for each block.

    none   float32
    half   float16
    int8   blocks of 256: a float32 scale, largest magnitude / 127, and one signed byte for each number

Rounding errors of bytes are not lost: the group adds them to its next progress (error feedback).
"""

from __future__ import annotations

from typing import Literal, cast

import numpy as np

from paceline.errors import InputError

__all__ = ["PACKINGS", "Packing", "check_packing", "pack_numbers", "unpack_numbers"]

Packing = Literal["none", "half", "int8"]
PACKINGS = ("none", "half", "int8")
BLOCK = 256


def check_packing(name: str) -> None:
    """Refuse an unknown packing."""
    if name not in PACKINGS:
        raise InputError(f"compress is {name!r}, expected one of {', '.join(PACKINGS)}")


def pack_numbers(numbers: np.ndarray, packing: str) -> bytes:
    """Numbers as bytes; without packing a view of their memory, which must not change until it is sent."""
    if packing == "half":
        largest = np.finfo(np.float16).max
        return np.clip(numbers, -largest, largest).astype(np.float16).tobytes()
    if packing == "int8":
        return _as_bytes(numbers)
    return cast("bytes", np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint8).data)  # sent like bytes


def unpack_numbers(data: bytes, packing: str) -> np.ndarray:
    """The numbers from bytes, up to rounding."""
    if packing == "half":
        return np.frombuffer(data, dtype=np.float16).astype(np.float32)
    if packing == "int8":
        return _from_bytes(data)
    return np.frombuffer(data, dtype=np.float32)


def _as_bytes(numbers: np.ndarray) -> bytes:
    count = len(numbers)
    blocks = np.zeros((-(-count // BLOCK), BLOCK), dtype=np.float32)
    blocks.reshape(-1)[:count] = numbers
    scales = (np.abs(blocks).max(axis=1) / 127).astype(np.float32)
    steps = np.rint(blocks / np.where(scales > 0, scales, 1)[:, None]).astype(np.int8)
    return np.uint64(count).tobytes() + scales.tobytes() + steps.reshape(-1)[:count].tobytes()


def _from_bytes(data: bytes) -> np.ndarray:
    count = int(np.frombuffer(data[:8], dtype=np.uint64)[0])
    num_blocks = -(-count // BLOCK)
    if len(data) != 8 + 4 * num_blocks + count:
        raise ValueError(f"{len(data)} bytes cannot hold {count} packed numbers")
    scales = np.frombuffer(data[8 : 8 + 4 * num_blocks], dtype=np.float32)
    steps = np.frombuffer(data[8 + 4 * num_blocks :], dtype=np.int8).astype(np.float32)
    return steps * np.repeat(scales, BLOCK)[:count]
