"""Data sets of `input = "files"`, written and read: CIFAR's binary records, or a folder of PNG images per class.

    write_data_set(folder, kind, shape, classes)  random images: records hold a class byte, then the planes of an image
    FileSet(job)           sample by sample, for frameworks whose loaders take a data set
    share(count, job, rank)  the samples of a rank
    read_ahead(job, rank)  batch by batch from a thread, for frameworks without a loader

Runs inside every framework's own environment: standard library and NumPy only, Python 3.9 syntax only.
"""

from __future__ import annotations

import os
import queue
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.bench.frameworks.harness import Job

__all__ = ["AHEAD", "FileSet", "decode_png", "encode_png", "read_ahead", "share", "write_data_set", "write_list"]

AHEAD = 4
"""Number of prefetched batches."""
RECORDS, FILES, IMAGES = 1000, 2, 256


class FileSet:
    """The job's data set by index: an image, channels first in [-1, 1], and its class."""

    def __init__(self, job: Job) -> None:
        given = job["network"]["input"]
        self.shape = (given["channels"], given["height"], given["width"])
        self.kind, self.path = job["data"]["kind"], job["data"]["path"]
        self._entries = _records(self.path, self.shape) if self.kind == "cifar" else _images(self.path)

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        place, position = self._entries[index]
        if self.kind == "cifar":
            size = 1 + int(np.prod(self.shape))
            with open(place, "rb") as file:
                file.seek(position * size)
                record = np.frombuffer(file.read(size), np.uint8)
            return _scaled(record[1:].reshape(self.shape)), np.int64(record[0])
        with open(place, "rb") as file:
            pixels = decode_png(file.read())
        return _scaled(pixels.transpose(2, 0, 1)), np.int64(position)

    def files(self) -> list[tuple[str, int]]:
        """Paths with the position of the record, or the class of the image."""
        return self._entries


def _scaled(pixels: Any) -> Any:
    return pixels.astype(np.float32) / np.float32(127.5) - np.float32(1)


def _records(path: str, shape: tuple[int, ...]) -> list[tuple[str, int]]:
    size = 1 + int(np.prod(shape))
    files = sorted(os.path.join(path, name) for name in os.listdir(path) if name.endswith(".bin"))
    return [(file, index) for file in files for index in range(os.path.getsize(file) // size)]


def _images(path: str) -> list[tuple[str, int]]:
    classes = sorted(name for name in os.listdir(path) if os.path.isdir(os.path.join(path, name)))
    return [
        (os.path.join(path, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(path, name)))
    ]


def write_data_set(folder: str, kind: str, shape: tuple[int, ...], classes: int) -> None:
    """Write random images of a shape (channels, height, width), of this kind, into a folder."""
    (_write_records if kind == "cifar" else _write_images)(folder, shape, classes)


def _write_records(folder: str, shape: tuple[int, ...], classes: int) -> None:
    generator = np.random.default_rng(0)
    for number in range(1, FILES + 1):
        records = generator.integers(256, size=(RECORDS, 1 + int(np.prod(shape))), dtype=np.uint8)
        records[:, 0] = generator.integers(classes, size=RECORDS)
        records.tofile(os.path.join(folder, f"data_batch_{number}.bin"))


def _write_images(folder: str, shape: tuple[int, ...], classes: int) -> None:
    generator = np.random.default_rng(0)
    channels, height, width = shape
    for label in range(classes):
        place = os.path.join(folder, f"class-{label}")
        os.mkdir(place)
        for index in range(IMAGES // classes):
            pixels = generator.integers(256, size=(height, width, channels), dtype=np.uint8)
            with open(os.path.join(place, f"{index:04d}.png"), "wb") as file:
                file.write(encode_png(pixels))


def encode_png(pixels: Any) -> bytes:
    """An 8-bit PNG of (height, width, channels) pixels, rows unfiltered."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def decode_png(data: bytes) -> Any:
    """Pixels (height, width, channels) of an 8-bit grey or colour PNG whose rows are not filtered."""
    width, height, depth, colour = struct.unpack(">IIBB", data[16:26])
    channels = {0: 1, 2: 3}.get(colour)
    if data[:8] != b"\x89PNG\r\n\x1a\n" or depth != 8 or channels is None:
        raise ValueError("only 8-bit grey or colour PNG images are read")
    packed, position = b"", 8
    while position < len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        if kind == b"IDAT":
            packed += data[position + 8 : position + 8 + length]
        position += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    if rows[:, 0].any():
        raise ValueError("PNG images with filtered rows are not read; Paceline's own data sets have none")
    return rows[:, 1:].reshape(height, width, channels)


def share(count: int, job: Job, rank: int) -> list[int]:
    """Indices of this rank's share of a data set, repeated until they fill a batch."""
    own = list(range(rank, count, job["ranks"]))
    return own * -(-job["batch"] // len(own))


def write_list(path: str, files: FileSet, indices: list[int]) -> None:
    """A file of lines `image class`, which older loaders read."""
    entries = files.files()
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{entries[index][0]} {entries[index][1]}\n" for index in indices)


def read_ahead(job: Job, rank: int) -> Iterator[tuple[Any, Any]]:
    """An endless iterator over batches of this rank's share, read by a prefetching thread."""
    ready: Any = queue.Queue(AHEAD)
    thread = threading.Thread(target=_fill, args=(ready, job, rank), daemon=True)
    thread.start()
    while True:
        batch = ready.get()
        if isinstance(batch, Exception):
            raise batch
        yield batch


def _fill(ready: Any, job: Job, rank: int) -> None:
    try:
        data = FileSet(job)
        order = np.random.RandomState(job["seed"]).permutation(len(data))[rank :: job["ranks"]]
        position = 0
        while True:
            chosen = [order[(position + index) % len(order)] for index in range(job["batch"])]
            position += job["batch"]
            samples = [data[int(index)] for index in chosen]
            ready.put((np.stack([image for image, _ in samples]), np.asarray([label for _, label in samples])))
    except Exception as error:  # noqa: BLE001  the queue is the only channel of the thread
        ready.put(error)
