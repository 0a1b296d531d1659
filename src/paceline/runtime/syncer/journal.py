"""The journal of a shard: records with checksums in two files, written in turns. Every acknowledged change is on disk.

A record is a head and a content. The head holds a mark, the number of its generation, its index in the generation, how
many records of the generation were on disk when it was written, the length of the content, and the CRC-32 of all of it.
The content is the length of a JSON text in eight bytes, the text, which holds facts and the name, type and shape of
arrays, and the numbers of the arrays. Facts and arrays of a later record replace those of earlier ones.

When a file is full, the whole state is written as the first record of the next generation, into the other file, over
the records of an older generation. So files stop growing, and a synchronisation waits only for blocks of this file, not
for the journal of the file system and for writes of other processes.

The kernel writes blocks to disk in any order. An incomplete record that no later record lists as on disk was never
acknowledged: it is dropped, with all records after it. Any other incomplete record is damage, which is an error.
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
"""Exit code of a shard whose journal cannot be read; it is not restarted."""
SHARD_RESTARTS = 20
"""Largest number of restarts of a shard; a shard that ends more often has a lasting cause."""

LARGEST = 4
"""A file is full when it is this many times as large as one record of the whole state, and above a minimum."""
MANY_BYTES = 1 << 20
GROWTH_BYTES = 1 << 16
"""Files grow in multiples of this many bytes; records of a later generation differ by a few bytes."""
SUFFIXES = ("", "-other")
"""Suffixes of the names of the two files."""
MARK = b"\x93PACE\r\n\x1a"
"""Marks the begin of a record; these bytes cannot occur in JSON text."""
_HEAD, _SUM, _TEXT = struct.Struct(">8sQQQQ"), struct.Struct(">I"), struct.Struct(">Q")
Part = bytes | memoryview
log = logging.getLogger("paceline.runtime")


class Disk(Protocol):
    """Two files, 0 and 1. Data that was not synchronised may be lost if the host fails, in any order."""

    name: str

    def read(self, side: int) -> bytes:
        """The content of a file."""
        ...

    def write(self, side: int, at: int, parts: Sequence[Part]) -> None:
        """Write at a position, over the present content or after its end."""
        ...

    def synchronise(self, side: int) -> None:
        """Return when all data written to a file would survive a failure of the host."""
        ...


class FileDisk:
    """Two files in one folder; the folder is synchronised as well, so that it lists them."""

    def __init__(self, path: Path) -> None:
        self.name, self._paths = str(path), [path.with_name(path.name + suffix) for suffix in SUFFIXES]
        self._handles: dict[int, int] = {}
        self._entered: set[int] = set()
        """Files whose folder entry is on disk."""

    def read(self, side: int) -> bytes:
        """The content of a file; raises StoreError if the path is something else."""
        try:
            return read_regular(self._paths[side])
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StoreError(f"{self._paths[side]} cannot be read: {error.strerror}",
                             hint="a journal is a file in the folder of its job") from error  # fmt: skip

    def write(self, side: int, at: int, parts: Sequence[Part]) -> None:
        """Write in place; the file grows by more than is needed."""
        handle = self._handle(side)
        end = at + sum(map(len, parts))
        if end > os.fstat(handle).st_size:
            parts = (*parts, bytes(-end % GROWTH_BYTES))
        for part in parts:
            rest = memoryview(part)
            while rest:
                count = os.pwrite(handle, rest, at)
                at, rest = at + count, rest[count:]

    def synchronise(self, side: int) -> None:
        """Synchronise the content of a file and, the first time, its folder entry."""
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
    """The persistent state of a shard, as of its last record."""

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
        """The highest generation that was ever begun, so that old records are not read as part of a new generation."""
        self._size: int | None = None
        """Bytes of this generation; None if the next record begins a new one."""
        # Records of an earlier process may be lost as well if the host loses power.
        self._written, self._synchronised = int(newest.generation > 0), 0
        """Number of records written, and number of records on disk."""
        self._first = self._written
        """Number of the first record of this generation."""

    def append(self, facts: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        """Write a record, and return when it is on disk."""
        self.write(facts, arrays)
        self.synchronise()

    def synchronise(self) -> None:
        """Return when all written records are on disk; waiting threads share one synchronisation."""
        wanted = self._written
        with self._synchronising:
            if self._synchronised < wanted:
                # The count is read before the side: a generation that begins in between starts with a record of all
                # before.
                reached = self._written
                self._disk.synchronise(self._side)
                self._synchronised = reached

    def write(self, facts: dict[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
        """Write a record; one thread at a time. It survives the end of this process, but not yet a failure of the
        host."""
        self.facts |= facts
        self.arrays |= arrays or {}
        full = self._size is None or self._size > max(MANY_BYTES, LARGEST * _size_of(self.arrays))
        if full:
            self._begin_generation()
        else:
            self._put(self._side, facts, arrays or {})

    def _begin_generation(self) -> None:
        """Write the whole state as the first record of the other file, whose records are no longer needed."""
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
        # The side is set before the count: a thread that reads the count synchronises the file of that record.
        self._side = side
        self._written += 1


@dataclass
class _Side:
    """The content of one file."""

    name: str
    generation: int = 0
    """Generation of the file; 0 if its first record is incomplete."""
    count: int = 0
    size: int = 0
    """Bytes of complete records from the begin of the file."""
    facts: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    cut_off: bool = False
    """Whether an incomplete record of this generation follows."""
    damaged: int = 0
    """The newest generation that lacks a record that was on disk."""
    seen: int = 0
    """The newest generation of which the file has a record."""


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
    """Everything after this position that looks like a record."""
    while (at := content.find(MARK, at)) >= 0:
        found = _record_at(content, at)
        if found is not None:
            yield found
        at += 1


def _record_at(content: bytes, at: int) -> _Found | None:
    """The record at this position, if there is the head of a record."""
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
    """The parts of a record; arrays are written from memory without a copy."""
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
