"""Two files of records with checksums, filled in turns: what a shard has answered is in one of them, on disk and whole.

A record is a head and a content. The head holds a mark, the number of its generation, its index in the generation, how
many records of the generation were on disk when it was written, the length of the content, and the CRC-32 of all of it.
The content is the length of a JSON text in eight bytes, the text, which holds facts and the name, type and shape of
arrays, and the numbers of the arrays. Facts and arrays of a later record replace those of earlier ones.

When old records fill a file, everything becomes the first record of the next generation, in the other file, over what
the generation before the last had left there. So files stop growing, and to synchronise one waits for its own blocks
only, not for the file system's own journal and what others write.

Records are written before they are on disk, and their blocks get there in any order. A record that is not whole, and
of which no later one says that it was on disk, was never answered: it is dropped, and those behind it. Any other record
that is not whole is damage, which is an error.
"""

from __future__ import annotations

import json
import logging
import math
import os
import struct
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from paceline.errors import StoreError
from paceline.files import read_regular, sync

__all__ = ["DAMAGED", "SHARD_RESTARTS", "Disk", "FileDisk", "Journal", "Part"]

DAMAGED = 2
"""Exit code of a shard whose journal cannot be read: starting it again would not help."""
SHARD_RESTARTS = 20
"""How often a shard is started again: one that ends more often has a reason that starting it does not remove."""

LARGEST = 4
"""A file is full when it is this many times as large as one record of everything, and has many bytes."""
MANY_BYTES = 1 << 20
ROOM = 1 << 16
"""Files grow by multiples of it: records of a later generation are a few bytes longer or shorter."""
SUFFIXES = ("", "-other")
"""Of the names of the two files."""
MARK = b"\x93PACE\r\n\x1a"
"""No JSON text holds it."""
_HEAD, _SUM, _TEXT = struct.Struct(">8sQQQQ"), struct.Struct(">I"), struct.Struct(">Q")
Part = bytes | memoryview
log = logging.getLogger("paceline.runtime")


class Disk(Protocol):
    """Two files, 0 and 1; what was not synchronised may be lost with the host, in any order."""

    name: str

    def read(self, side: int) -> bytes:
        """Everything that a file holds."""
        ...

    def write(self, side: int, at: int, parts: Sequence[Part]) -> None:
        """Write over what is there, or behind the end."""
        ...

    def synchronise(self, side: int) -> None:
        """Return when everything that was written to a file will survive."""
        ...


class FileDisk:
    """A file and another beside it, and their folder, which has to know of them."""

    def __init__(self, path: Path) -> None:
        self.name, self._paths = str(path), [path.with_name(path.name + suffix) for suffix in SUFFIXES]
        self._handles: dict[int, int] = {}
        self._entered: set[int] = set()
        """Files whose entry in the folder is on disk."""

    def read(self, side: int) -> bytes:
        """A whole file; whatever else stands in its place is an error."""
        try:
            return read_regular(self._paths[side])
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(f"{self._paths[side]} cannot be read: {error.strerror}",
                             hint="a journal is a file in the folder of its job") from error  # fmt: skip

    def write(self, side: int, at: int, parts: Sequence[Part]) -> None:
        """Write in place; the file grows by more than it needs."""
        handle = self._handle(side)
        end = at + sum(map(len, parts))
        if end > os.fstat(handle).st_size:
            parts = (*parts, bytes(-end % ROOM))
        for part in parts:
            rest = memoryview(part)
            while rest:
                count = os.pwrite(handle, rest, at)
                at, rest = at + count, rest[count:]

    def synchronise(self, side: int) -> None:
        """Of the file's content and, the first time, of its entry in the folder."""
        os.fdatasync(self._handle(side))
        if side not in self._entered:
            sync(self._paths[side].parent)
            self._entered.add(side)

    def _handle(self, side: int) -> int:
        if side not in self._handles:
            self._handles[side] = os.open(self._paths[side], os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            weakref.finalize(self, os.close, self._handles[side])
        return self._handles[side]


class Journal:
    """What a shard remembers, as of the last record."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._synchronising = threading.Lock()
        sides = [_read(disk.read(side), f"{disk.name}{SUFFIXES[side]}") for side in (0, 1)]
        newest = max(sides, key=lambda side: side.generation)
        damaged = [side for side in sides if side.damaged > 0 and side.damaged >= newest.generation]
        if damaged:
            raise StoreError(
                f"{damaged[0].name} is damaged at byte {damaged[0].size}", hint="start the job from its checkpoint"
            )
        if newest.cut_off:
            log.warning("%s ends in a record that was cut off; it was never answered and is dropped", newest.name)
        self.facts, self.arrays = newest.facts, newest.arrays
        self._side = sides.index(newest)
        self._generation = max(side.seen for side in sides)
        """The highest that was ever begun, so that nothing that is left of one is taken for a part of the next."""
        self._size: int | None = None
        """Bytes of this generation; None if the next record begins one."""
        # What a process before this one wrote may be lost with the host's power as well.
        self._written, self._synchronised = int(newest.generation > 0), 0
        """Records written, and how many of them are on disk."""
        self._first = self._written
        """Number of the first record of this generation."""

    def append(self, facts: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        """Write a record; it is on disk when this returns."""
        self.write(facts, arrays)
        self.synchronise()

    def synchronise(self) -> None:
        """Return when everything that was written is on disk; threads that wait together share one synchronisation."""
        wanted = self._written
        with self._synchronising:
            if self._synchronised < wanted:
                # In this order: the first record of a generation that begins in between holds all before it.
                reached = self._written
                self._disk.synchronise(self._side)
                self._synchronised = reached

    def write(self, facts: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        """Write a record, one thread at a time; it survives the end of this process, but not yet that of its host."""
        self.facts |= facts
        self.arrays |= arrays or {}
        full = self._size is None or self._size > max(MANY_BYTES, LARGEST * _size_of(self.arrays))
        if full:
            self._begin_generation()
        else:
            self._put(self._side, facts, arrays or {})

    def _begin_generation(self) -> None:
        """Everything as the first record in the other file, whose own records are needed no more."""
        if self._synchronised < self._first:
            self.synchronise()
        self._generation, self._size, self._first = self._generation + 1, 0, self._written + 1
        self._put(1 - self._side, self.facts, self.arrays)

    def _put(self, side: int, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        assert self._size is not None
        settled = max(0, self._synchronised - self._first + 1)
        parts = _record((self._generation, self._written + 1 - self._first, settled), facts, arrays)
        self._disk.write(side, self._size, parts)
        self._size += sum(map(len, parts))
        # In this order: who reads how many are written must find them where it then synchronises.
        self._side = side
        self._written += 1


@dataclass
class _Side:
    """What one file holds."""

    name: str
    generation: int = 0
    """0 if its first record is not whole."""
    count: int = 0
    size: int = 0
    """Bytes of whole records from the beginning."""
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    cut_off: bool = False
    """Whether more of this generation was begun."""
    damaged: int = 0
    """The newest generation that lacks a record which was on disk."""
    seen: int = 0
    """The newest generation of which a record is left."""


@dataclass(frozen=True)
class _Found:
    """A record in a file."""

    generation: int
    index: int
    settled: int
    end: int
    content: memoryview
    whole: bool


def _read(content: bytes, name: str) -> _Side:
    side = _Side(name)
    while (found := _record_at(content, side.size)) is not None and found.whole and found.index == side.count:
        if side.count and found.generation != side.generation:
            break
        side.generation = side.seen = found.generation
        side.count += 1
        _take(side, found.content)
        side.size = found.end
    for later in _records_behind(content, side.size):
        own = not side.count or later.generation == side.generation
        side.cut_off |= own
        if later.whole:
            side.seen = max(side.seen, later.generation)
            if own and later.settled > side.count:
                side.damaged = max(side.damaged, later.generation)
    return side


def _records_behind(content: bytes, at: int) -> Iterator[_Found]:
    """All that look like records, whatever lies between them."""
    while (at := content.find(MARK, at)) >= 0:
        found = _record_at(content, at)
        if found is not None:
            yield found
        at += 1


def _record_at(content: bytes, at: int) -> _Found | None:
    """What stands at this place, if it has the head of a record."""
    begin = at + _HEAD.size + _SUM.size
    if begin > len(content):
        return None
    mark, generation, index, settled, length = _HEAD.unpack_from(content, at)
    if mark != MARK:
        return None
    body = memoryview(content)[begin : begin + length]
    checksum = zlib.crc32(body, zlib.crc32(content[at : at + _HEAD.size]))
    whole = len(body) == length and _SUM.unpack_from(content, at + _HEAD.size)[0] == checksum
    return _Found(generation, index, settled, begin + length, body, whole)


def _take(side: _Side, body: memoryview) -> None:
    try:
        begin = _TEXT.size + _TEXT.unpack_from(body)[0]
        about = json.loads(bytes(body[_TEXT.size : begin]))
        side.facts |= about["facts"]
        for name, kind, shape in about["arrays"]:
            side.arrays[name] = np.frombuffer(body, kind, math.prod(shape), begin).reshape(shape).copy()
            begin += side.arrays[name].nbytes
    except (struct.error, TypeError, ValueError, KeyError, OverflowError, RecursionError) as error:
        raise StoreError(f"{side.name} cannot be read at byte {side.size}: {error}") from error


def _record(place: tuple[int, int, int], facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> list[Part]:
    """Its parts: the numbers of arrays as they are in memory."""
    kinds = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    text = json.dumps({"facts": facts, "arrays": kinds}).encode()
    numbers = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays.values()]
    head = _HEAD.pack(MARK, *place, _TEXT.size + len(text) + sum(map(len, numbers)))
    begin = _TEXT.pack(len(text)) + text
    checksum = zlib.crc32(begin, zlib.crc32(head))
    for part in numbers:
        checksum = zlib.crc32(part, checksum)
    return [head + _SUM.pack(checksum) + begin, *numbers]


def _size_of(arrays: dict[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())
