"""The PyTorch profiler's export (Kineto): Chrome events whose names determine the phase; the rank is in the document.

Phases by name: `gloo:`, `nccl:`, `c10d::` and all-reduce kernels aggregate; autograd's evaluation is backward;
optimizer steps update; data loaders read; copies to the device are h2d; other operators are forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.errors import InputError
from paceline.measurements.run import Span
from paceline.measurements.trace.chrome import load_document, load_events

__all__ = ["phase_of", "read_kineto", "to_kineto"]

STEP = "ProfilerStep#"
_WORDS = (
    ("aggregate", ("gloo:", "nccl:", "c10d::", "allreduce", "all_reduce", "DistributedDataParallel.reduce")),
    ("io", ("DataLoader", "enumerate(")),
    ("h2d", ("Memcpy HtoD", "aten::to ", "pin_memory")),
    ("update", ("Optimizer.step", "Optimizer.zero_grad", "aten::_foreach")),
    ("backward", ("autograd::", "Backward", "AccumulateGrad")),
)
_KEPT = ("cpu_op", "user_annotation", "kernel", "gpu_memcpy", "python_function")


def phase_of(name: str) -> str:
    """The phase of an operator, by its name."""
    lowered = name.lower()
    return next((phase for phase, words in _WORDS if any(word.lower() in lowered for word in words)), "forward")


def read_kineto(path: Path) -> tuple[Span, ...]:
    """Operators of a profile as spans, in seconds since its first event; steps are the profiler's step marks."""
    events = [event for event in load_events(path, ranks=False) if event.get("ph") == "X" and event.get("cat") in _KEPT]
    if not events:
        return ()
    origin = min(float(event["ts"]) for event in events)
    marks = sorted((e for e in events if str(e["name"]).startswith(STEP)), key=lambda event: float(event["ts"]))
    steps = [(float(mark["ts"]), float(mark["ts"]) + float(mark.get("dur", 0.0))) for mark in marks]
    rank = _rank(path)
    kept = [event for event in events if not str(event["name"]).startswith(STEP)]
    return tuple(_span(event, rank, origin, _step(float(event["ts"]), steps)) for event in kept)


def _rank(path: Path) -> int:
    document = load_document(path)
    info = document.get("distributedInfo") if isinstance(document, dict) else None
    rank = info.get("rank", 0) if isinstance(info, dict) else 0
    if not isinstance(rank, int) or isinstance(rank, bool) or not 0 <= rank < 2**31:
        raise InputError(f"{path}: distributedInfo.rank: got {rank!r}, expected the number of a rank")
    return rank


def _step(at: float, steps: list[tuple[float, float]]) -> int:
    return next((number for number, (begin, end) in enumerate(steps) if begin <= at < end), 0)


def _span(event: dict[str, Any], rank: int, origin: float, step: int) -> Span:
    given = event.get("args") or {}
    size = given.get("size_bytes", given.get("In msg nelems"))
    return Span(
        rank=rank,
        step=int(given.get("paceline_step", step)),
        phase=str(given.get("paceline_phase", phase_of(str(event["name"])))),
        name=str(event["name"]),
        start_s=float(given.get("paceline_start_s", (float(event["ts"]) - origin) / 1e6)),
        seconds=float(given.get("paceline_seconds", float(event.get("dur", 0.0)) / 1e6)),
        size_bytes=int(size) if isinstance(size, int | float) else None,
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
