"""Horovod's timeline: a process for each tensor, begin and end events for its negotiation and its exchange."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.measurements.run import Span
from paceline.measurements.trace.chrome import load_events

__all__ = ["read_horovod", "to_horovod"]


def read_horovod(path: Path, *, rank: int = 0) -> tuple[Span, ...]:
    """Exchanges as spans named `tensor activity`; a timeline belongs to the rank that wrote it."""
    names: dict[int, str] = {}
    open_: dict[int, list[dict[str, Any]]] = {}
    spans: list[Span] = []
    for event in load_events(path):
        process = int(event.get("pid", 0))
        kind = event.get("ph")
        if kind == "M" and event.get("name") == "process_name":
            names[process] = str(event["args"]["name"])
        elif kind == "B":
            open_.setdefault(process, []).append(event)
        elif kind == "E" and open_.get(process):
            begin = open_[process].pop()
            spans.append(_span(begin, float(event["ts"]), tensor=names.get(process, str(process)), rank=rank))
        elif kind == "X":
            end = float(event["ts"]) + float(event.get("dur", 0.0))
            spans.append(_span(event, end, tensor=names.get(process, str(process)), rank=rank))
    return tuple(sorted(spans, key=lambda span: (span.start_s, span.name)))


def _span(begin: dict[str, Any], end: float, *, tensor: str, rank: int) -> Span:
    given = begin.get("args") or {}
    size = given.get("size_bytes")
    return Span(
        rank=rank,
        step=int(given.get("step", 0)),
        phase="aggregate",
        name=f"{tensor} {begin['name']}",
        start_s=float(begin["ts"]) / 1e6,
        seconds=(end - float(begin["ts"])) / 1e6,
        size_bytes=int(size) if size is not None else None,
        source="horovod",
    )


def to_horovod(spans: Iterable[Span], *, rank: int = 0) -> list[dict[str, Any]]:
    """One rank's exchanges as a timeline; the last word of a span's name is the activity."""
    chosen = [span for span in spans if span.rank == rank and span.phase == "aggregate"]
    tensors = list(dict.fromkeys(span.name.rpartition(" ")[0] for span in chosen))
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": number, "args": {"name": tensor}}
        for number, tensor in enumerate(tensors, start=1)
    ]
    for span in chosen:
        tensor, _, activity = span.name.rpartition(" ")
        given = {"step": span.step, "size_bytes": span.size_bytes}
        ends = {"ph": "E", "pid": tensors.index(tensor) + 1, "ts": (span.start_s + span.seconds) * 1e6}
        begin = {**ends, "ph": "B", "name": activity, "ts": span.start_s * 1e6, "args": given}
        events += [begin, ends]
    return events
