"""One append-only file of records with checksums: what a shard has answered is in it, on disk, whole or not at all.

A record is its length in eight bytes, the CRC-32 of its content in four, and the content: the length of a JSON text in
eight, the text, which holds facts and the name, type and shape of arrays, and the numbers of the arrays.
Facts and arrays of a later record replace those of earlier ones. A record that was cut off at the end was never
answered and is dropped; damage before the end is an error. When old records fill the file, it is written anew.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import struct
import threading
import zlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paceline.errors import StoreError
from paceline.files import atomic_write, sync

__all__ = ["DAMAGED", "SHARD_RESTARTS", "Disk", "FileDisk", "Journal"]

DAMAGED = 2
"""Exit code of a shard whose journal cannot be read: starting it again would not help."""
SHARD_RESTARTS = 20
"""How often a shard is started again: one that ends more often has a reason that starting it does not remove."""

LARGEST = 8
"""The file is written anew when it is this many times as large as one record of everything, and has many bytes."""
MANY_BYTES = 16 << 20
"""Read in a moment; small models would be written anew, which synchronises twice, after every few steps otherwise."""
_HEAD, _TEXT = struct.Struct(">QI"), struct.Struct(">Q")
log = logging.getLogger("paceline.runtime")


class Disk(Protocol):
    """Bytes that grow at their end; what was not synchronised may be lost with the process or its host."""

    name: str

    def read(self) -> bytes:
        """Everything."""
        ...

    def append(self, data: bytes) -> None:
        """Write behind the end."""
        ...

    def synchronise(self) -> None:
        """Return when everything that was written will survive."""
        ...

    def replace(self, data: bytes) -> None:
        """Become this content, on disk, or stay as it is."""
        ...


class FileDisk:
    """A file, and its folder, which has to know of it."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        self._entered = False
        """Whether the folder's entry of the file is on disk."""

    def read(self) -> bytes:
        """The whole file."""
        return self._path.read_bytes() if self._path.exists() else b""

    def append(self, data: bytes) -> None:
        """Write behind the end of the file."""
        with self._path.open("ab") as file:
            file.write(data)

    def synchronise(self) -> None:
        """Of the file and, the first time, of its entry in the folder."""
        sync(self._path)
        if not self._entered:
            sync(self._path.parent)
            self._entered = True

    def replace(self, data: bytes) -> None:
        """Write the file anew, under another name until it is complete."""
        atomic_write(self._path, data)


class Journal:
    """What a shard remembers, as of the last record."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._synchronising = threading.Lock()
        self.facts: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray] = {}
        content = disk.read()
        # What a process before this one wrote may be lost with the host's power as well.
        self._written, self._synchronised = int(bool(content)), 0
        """Records written, and how many of them are on disk."""
        self._size = self._load(content)
        if self._size < len(content):
            log.warning("%s ends in a record that was cut off; it was never answered and is dropped", disk.name)
            disk.replace(content[: self._size])

    def append(self, facts: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        """Write a record; it is on disk when this returns."""
        self.write(facts, arrays)
        self.synchronise()

    def synchronise(self) -> None:
        """Return when everything that was written is on disk; threads that wait together share one synchronisation."""
        wanted = self._written
        with self._synchronising:
            if self._synchronised < wanted:
                reached = self._written
                self._disk.synchronise()
                self._synchronised = reached

    def write(self, facts: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        """Write a record, one thread at a time; it survives the end of this process, but not yet that of its host."""
        self.facts |= facts
        self.arrays |= arrays or {}
        record = _record(facts, arrays or {})
        if self._size > MANY_BYTES and self._size > LARGEST * _size_of(self.arrays):
            record = _record(self.facts, self.arrays)
            self._disk.replace(record)
            self._size = 0
        else:
            self._disk.append(record)
        self._size += len(record)
        self._written += 1

    def _load(self, content: bytes) -> int:
        """Take in all whole records; the bytes that they are."""
        at = 0
        while at < len(content):
            begin = at + _HEAD.size
            size, checksum = _HEAD.unpack_from(content, at) if begin <= len(content) else (len(content), 0)
            body = content[begin : begin + size]
            if begin + size > len(content) or (zlib.crc32(body) != checksum and begin + size == len(content)):
                return at
            if zlib.crc32(body) != checksum:
                raise StoreError(f"{self._disk.name} is damaged at byte {at}", hint="start the job from its checkpoint")
            self._take(body, at)
            at = begin + size
        return at

    def _take(self, body: bytes, at: int) -> None:
        try:
            begin = _TEXT.size + _TEXT.unpack_from(body)[0]
            about = json.loads(body[_TEXT.size : begin])
            self.facts |= about["facts"]
            for name, kind, shape in about["arrays"]:
                self.arrays[name] = np.frombuffer(body, kind, math.prod(shape), begin).reshape(shape).copy()
                begin += self.arrays[name].nbytes
        except (struct.error, TypeError, ValueError, KeyError) as error:
            raise StoreError(f"{self._disk.name} cannot be read at byte {at}: {error}") from error


def _record(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    kinds = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    text = json.dumps({"facts": facts, "arrays": kinds}).encode()
    parts = [_TEXT.pack(len(text)), text, *(array.tobytes() for array in arrays.values())]
    checksum = functools.reduce(lambda before, part: zlib.crc32(part, before), parts, 0)
    return b"".join((_HEAD.pack(sum(map(len, parts)), checksum), *parts))


def _size_of(arrays: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values()) + 1
