"""TensorBoard scalars: event files in TensorBoard's own record format, one directory per case.

A record is its length, a checksum of the length, the data, and a checksum of the data; checksums are CRC-32C, rotated
and offset as TFRecord asks. The scalar of launch n is at step n.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from paceline.explain.explanation import CaseExplanation
from paceline.measurements.trace import wire
from paceline.report.words import file_name

__all__ = ["write_scalars"]

_POLYNOMIAL = 0x82F63B78


def write_scalars(cases: Iterable[CaseExplanation], folder: Path) -> list[Path]:
    """Throughput and step of every launch, phases of every case."""
    written = []
    for case in cases:
        run = case.evidence.run
        place = folder / file_name(case.evidence.label)
        place.mkdir(parents=True, exist_ok=True)
        at = datetime.fromisoformat(run.started_at).timestamp()
        path = place / f"events.out.tfevents.{int(at)}.{run.case_id}"
        path.write_bytes(b"".join(_record(event) for event in _events(case, at)))
        written.append(path)
    return written


def _events(case: CaseExplanation, at: float) -> list[bytes]:
    launches = case.evidence.launches
    events = [wire.double(1, at) + wire.text(3, "brain.Event:2")]
    for step, (rate, seconds) in enumerate(zip(launches.throughputs, launches.steps, strict=True)):
        events.append(_scalar(at, step, "samples_per_s", rate))
        events.append(_scalar(at, step, "step_s", seconds))
    for name, seconds in case.evidence.result.phases.items():
        events.append(_scalar(at, 0, f"phase/{name}_s", seconds))
    return events


def _scalar(at: float, step: int, tag: str, value: float) -> bytes:
    summary = wire.message(1, wire.text(1, tag) + wire.float32(2, value))
    return wire.double(1, at) + wire.number(2, step) + wire.message(5, summary)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    entries = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        entries.append(value)
    return tuple(entries)


_TABLE = _table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
