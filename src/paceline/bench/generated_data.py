"""Generation of the data sets of `input = "files"`: random images, kept for later runs.

Colour images of 32 x 32 become CIFAR's binary records (a class byte, then red, green and blue planes); other sizes a
folder of PNG images per class. A data set is created under a temporary name and renamed.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from paceline.bench.environments import home
from paceline.errors import Unsupported
from paceline.files import atomic_directory
from paceline.spec.network import ImageInput, Network

__all__ = ["data_set", "encode_png"]

RECORDS, FILES, IMAGES, CLASSES = 1000, 2, 256, 4


def data_set(network: Network) -> dict[str, str]:
    """Kind and path of the data set for a network; creates the data set if necessary."""
    given = network.input
    if not isinstance(given, ImageInput):
        raise Unsupported(f"{network.name} reads tokens: only images are read from files", hint='use input = "copied"')
    kind = "cifar" if given.shape == (3, 32, 32) else "folder"
    folder = home() / "data" / f"{kind}-{given.channels}x{given.height}x{given.width}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(folder, durable=False) as building:
            (_write_records if kind == "cifar" else _write_images)(building, given.shape, min(CLASSES, network.classes))
    return {"kind": kind, "path": str(folder)}


def _write_records(folder: Path, shape: tuple[int, ...], classes: int) -> None:
    generator = np.random.default_rng(0)
    for number in range(1, FILES + 1):
        records = generator.integers(256, size=(RECORDS, 1 + int(np.prod(shape))), dtype=np.uint8)
        records[:, 0] = generator.integers(classes, size=RECORDS)
        (folder / f"data_batch_{number}.bin").write_bytes(records.tobytes())


def _write_images(folder: Path, shape: tuple[int, ...], classes: int) -> None:
    generator = np.random.default_rng(0)
    channels, height, width = shape
    for label in range(classes):
        (folder / f"class-{label}").mkdir()
        for index in range(IMAGES // classes):
            pixels = generator.integers(256, size=(height, width, channels), dtype=np.uint8)
            (folder / f"class-{label}" / f"{index:04d}.png").write_bytes(encode_png(pixels))


def encode_png(pixels: Any) -> bytes:
    """An 8-bit PNG of (height, width, channels) pixels, rows unfiltered."""
    height, width, channels = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
