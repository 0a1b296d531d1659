"""The subset of the protocol-buffer wire format that traces and event files need: four kinds of field, and varints."""

from __future__ import annotations

import struct
from collections.abc import Iterator

__all__ = ["double", "fields", "float32", "message", "number", "read_varint", "text", "varint"]


def varint(value: int) -> bytes:
    """A number in groups of seven bits, the lowest first."""
    value &= (1 << 64) - 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(field: int, value: int) -> bytes:
    """An integer field; zero is left out, as its default."""
    return varint(field << 3) + varint(value) if value else b""


def double(field: int, value: float) -> bytes:
    """A field of 64 bits of floating point."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def float32(field: int, value: float) -> bytes:
    """A field of 32 bits of floating point."""
    return varint(field << 3 | 5) + struct.pack("<f", value)


def message(field: int, content: bytes) -> bytes:
    """A field that holds bytes or another message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    """A field of text."""
    return message(field, value.encode()) if value else b""


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at an offset, and the offset after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Number and value of every field of a message."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        kind, field = key & 7, key >> 3
        value: int | float | bytes
        if kind == 0:
            value, at = read_varint(data, at)
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        elif kind == 2:
            size, at = read_varint(data, at)
            if at + size > len(data):
                raise ValueError("a field longer than its message")
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {kind}")
        yield field, value
