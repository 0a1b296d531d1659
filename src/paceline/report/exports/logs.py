"""Logs of other tools: MLPerf logging lines, and TensorBoard event files with one directory per case.

MLPerf: `:::MLLOG` lines, one run block per launch, as mlperf_logging's parser reads them. TensorBoard: a record is
its length, a checksum of the length, the data, and a checksum of the data; checksums are CRC-32C, rotated and offset as
TFRecord asks. The scalar of launch n is at step n.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from paceline.explain.explanation import CaseExplanation
from paceline.measurements.trace import wire
from paceline.report.words import file_name

__all__ = ["mlperf_lines", "write_scalars"]

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


def mlperf_lines(cases: Iterable[CaseExplanation]) -> list[str]:
    """Lines for every launch of every case, in order."""
    return [line for case in cases for line in _case_lines(case)]


def _case_lines(case: CaseExplanation) -> list[str]:
    rates = iter(case.evidence.launches.throughputs)
    steps = iter(case.evidence.launches.steps)
    lines: list[str] = []
    for run in case.evidence.launches.runs:
        begin = round(datetime.fromisoformat(run.started_at).timestamp() * 1000)
        end = begin + round(run.seconds * 1000)
        facts: list[tuple[str, Any]] = [
            ("submission_benchmark", run.network),
            ("submission_platform", f"{run.cluster} x {run.ranks}"),
            ("submission_division", "open"),
            ("submission_org", "paceline"),
            ("submission_status", "research"),
            ("global_batch_size", run.batch * run.ranks),
        ]
        lines += [_line("POINT_IN_TIME", key, value, begin) for key, value in facts]
        lines.append(_line("INTERVAL_START", "run_start", None, begin, framework=run.framework, run=run.id))
        if run.outcome == "ok":
            measured = {"throughput": next(rates), "step_s": next(steps)}
            lines.append(_line("POINT_IN_TIME", "tracked_stats", measured, end, step=run.launch))
        status = "success" if run.outcome == "ok" else "aborted"
        lines.append(_line("INTERVAL_END", "run_stop", None, end, status=status))
    return lines


def _line(event: str, key: str, value: Any, at: int, **metadata: Any) -> str:
    content = {
        "namespace": "",
        "time_ms": at,
        "event_type": event,
        "key": key,
        "value": value,
        "metadata": {"file": "paceline", "lineno": 0, **metadata},
    }
    return f":::MLLOG {json.dumps(content)}"
