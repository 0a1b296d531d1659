"""Chrome's trace event format, which Perfetto and chrome://tracing open: complete events, a process for each rank.

Times are microseconds with fractions; `args` keeps the exact values, so that reading a written trace gives equal spans.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paceline.errors import InputError
from paceline.measurements.run import PHASES, Span

__all__ = ["load_events", "read_chrome", "spans_from_events", "to_chrome"]


def to_chrome(spans: Iterable[Span], *, title: str = "", first_rank: int = 0) -> dict[str, Any]:
    """Spans as one trace document; ranks are processes, phases are threads."""
    spans = list(spans)
    rows = sorted({(span.rank, span.phase) for span in spans})
    names = [
        _metadata("process_name", rank + first_rank, 0, f"{title} rank {rank}".strip())
        for rank in sorted({span.rank for span in spans})
    ]
    names += [_metadata("thread_name", rank + first_rank, _thread(phase), phase) for rank, phase in rows]
    events = [_event(span, first_rank) for span in spans]
    return {"traceEvents": names + events, "displayTimeUnit": "ms", "otherData": {"producer": "paceline"}}


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _thread(phase: str) -> int:
    return PHASES.index(phase) if phase in PHASES else len(PHASES)


def _event(span: Span, first_rank: int) -> dict[str, Any]:
    exact = {"step": span.step, "phase": span.phase, "start_s": span.start_s, "seconds": span.seconds}
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.phase,
        "pid": span.rank + first_rank,
        "tid": _thread(span.phase),
        "ts": span.start_s * 1e6,
        "dur": span.seconds * 1e6,
        "args": {**exact, "size_bytes": span.size_bytes, "source": span.source},
    }


def read_chrome(path: Path) -> tuple[Span, ...]:
    """The spans of a trace that `to_chrome` wrote."""
    return spans_from_events(load_events(path))


def spans_from_events(events: Iterable[dict[str, Any]]) -> tuple[Span, ...]:
    """Complete events as spans; times from `args` where they are exact, else from the event."""
    return tuple(_span(event) for event in events if event.get("ph") == "X")


def _span(event: dict[str, Any]) -> Span:
    given = event.get("args") or {}
    return Span(
        rank=int(event.get("pid", 0)),
        step=int(given.get("step", 0)),
        phase=str(given.get("phase", event.get("cat", "other"))),
        name=str(event.get("name", "")),
        start_s=float(given.get("start_s", float(event["ts"]) / 1e6)),
        seconds=float(given.get("seconds", float(event.get("dur", 0.0)) / 1e6)),
        size_bytes=given.get("size_bytes"),
        source=str(given.get("source", "chrome")),
    )


def load_events(path: Path) -> list[dict[str, Any]]:
    """The events of a trace file: a document, a list, or a list without its end."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}", hint="give the path of a trace") from None
    try:
        document = json.loads(text)
    except json.JSONDecodeError:
        document = _repaired(text, path)
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(f"{path} holds no trace events", hint="expected a list, or an object with `traceEvents`")
    return [event for event in events if isinstance(event, dict)]


def _repaired(text: str, path: Path) -> Any:
    """Parse a list without its end, such as a timeline whose program still runs."""
    try:
        return json.loads(text.rstrip().rstrip(",") + "]")
    except json.JSONDecodeError as error:
        raise InputError(f"{path} is not a trace: {error.msg} at line {error.lineno}", hint="a trace is JSON") from None
