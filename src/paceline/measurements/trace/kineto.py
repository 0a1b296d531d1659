"""The PyTorch profiler's export (Kineto): Chrome events whose names determine the phase; the rank is in the document.

Phases by name: `gloo:`, `nccl:`, `c10d::` and all-reduce kernels aggregate; autograd's evaluation is backward;
optimizer steps update; data loaders read; copies to the device are h2d; other operators are forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.errors import InputError
from paceline.measurements.run import Span
from paceline.measurements.trace.chrome import checked_events
from paceline.measurements.trace.stream import EventStream

__all__ = ["GRADIENT", "STEP", "info_of", "phase_of", "read_kineto", "shape_bytes", "size_of", "to_kineto"]

STEP = "ProfilerStep#"
GRADIENT = "gradient"
"""Name of the moment at which the gradient of a parameter is ready, in a trace without exchanges."""
_WORDS = (
    ("aggregate", ("gloo:", "nccl:", "c10d::", "allreduce", "all_reduce", "DistributedDataParallel.reduce")),
    ("io", ("DataLoader", "enumerate(")),
    ("h2d", ("Memcpy HtoD", "aten::to ", "pin_memory")),
    ("update", ("Optimizer.step", "Optimizer.zero_grad", "aten::_foreach")),
    ("backward", ("autograd::", "Backward", "AccumulateGrad")),
)
WIDTHS = {
    "double": 8, "long": 8, "float": 4, "int": 4, "half": 2, "bfloat16": 2, "short": 2, "byte": 1, "char": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "c10::bfloat16": 2, "c10::half": 2, "long int": 8,
    "signed char": 1, "unsigned char": 1,
}  # fmt: skip
"""Bytes of an element by the profiler's name of its type; four for other types."""
_KEPT = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "python_function")


def phase_of(name: str) -> str:
    """The phase of an operator, by its name."""
    lowered = name.lower()
    return next((phase for phase, words in _WORDS if any(word.lower() in lowered for word in words)), "forward")


def read_kineto(path: Path) -> tuple[Span, ...]:
    """Operators of a profile as spans, in seconds since its first event; steps are the profiler's step marks."""
    stream = EventStream(path)
    events = [event for event in checked_events(stream, ranks=False) if _is_kept(event)]
    rank = info_of(stream).get("rank", 0)
    if not events:
        return ()
    origin = min(float(event["ts"]) for event in events)
    marks = sorted((e for e in events if str(e["name"]).startswith(STEP)), key=lambda event: float(event["ts"]))
    steps = [(float(mark["ts"]), float(mark["ts"]) + float(mark.get("dur", 0.0))) for mark in marks]
    kept = [event for event in events if not str(event["name"]).startswith(STEP)]
    return tuple(_span(event, rank, origin, _step(float(event["ts"]), steps)) for event in kept)


def _is_kept(event: dict[str, Any]) -> bool:
    return event.get("ph") == "X" and event.get("cat") in _KEPT


def info_of(stream: EventStream) -> dict[str, int]:
    """`rank` and `world_size` of the job, if the trace states them; valid after the trace was read."""
    info = stream.head.get("distributedInfo")
    given = info if isinstance(info, dict) else {}
    for name, least in (("rank", 0), ("world_size", 1)):
        value = given.get(name, least)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
            expected = "the number of a rank" if name == "rank" else "a number of ranks"
            raise InputError(f"{stream.path}: distributedInfo.{name}: got {str(value)[:80]!r}, expected {expected}",
                             hint="start the profiler after `init_process_group`, and export again")  # fmt: skip
    return {name: given[name] for name in ("rank", "world_size") if name in given}


def size_of(given: dict[str, Any]) -> int | None:
    """Bytes of an exchange: what Paceline wrote, else elements times the size of their kind."""
    size = given.get("size_bytes")
    if size is None and isinstance(given.get("In msg nelems"), int | float):
        size = given["In msg nelems"] * WIDTHS.get(str(given.get("dtype", "")).lower(), 4)
    return int(size) if isinstance(size, int | float) else None


def shape_bytes(given: dict[str, Any]) -> int | None:
    """Bytes of the tensors of an operator, which the profiler states with `record_shapes=True`; lists are left out."""
    total = 0
    for kind, dims in zip(_listed(given.get("Input type")), _listed(given.get("Input Dims")), strict=False):
        lengths = _listed(dims)
        if str(kind).lower() in WIDTHS and lengths and all(type(n) is int and 0 <= n < 2**40 for n in lengths):
            total += math.prod(lengths) * WIDTHS[str(kind).lower()]
    return total if 0 < total < 2**60 else None


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _step(at: float, steps: list[tuple[float, float]]) -> int:
    return next((number for number, (begin, end) in enumerate(steps) if begin <= at < end), 0)


def _span(event: dict[str, Any], rank: int, origin: float, step: int) -> Span:
    given = event.get("args") or {}
    return Span(
        rank=rank,
        step=int(given.get("paceline_step", step)),
        phase=str(given.get("paceline_phase", phase_of(str(event["name"])))),
        name=str(event["name"]),
        start_s=float(given.get("paceline_start_s", (float(event["ts"]) - origin) / 1e6)),
        seconds=float(given.get("paceline_seconds", float(event.get("dur", 0.0)) / 1e6)),
        size_bytes=size_of(given),
        source="kineto",
    )


def to_kineto(spans: Iterable[Span], *, rank: int) -> dict[str, Any]:
    """One rank's spans as a document in the format of the profiler's export."""
    events = [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": span.name,
            "pid": span.rank,
            "tid": 1,
            "ts": span.start_s * 1e6,
            "dur": span.seconds * 1e6,
            "args": {
                "paceline_phase": span.phase,
                "paceline_step": span.step,
                "paceline_start_s": span.start_s,
                "paceline_seconds": span.seconds,
                "size_bytes": span.size_bytes,
            },
        }
        for span in spans
        if span.rank == rank
    ]
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events}
