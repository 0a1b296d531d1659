"""Chrome's trace event format, which Perfetto and chrome://tracing open: complete events, a process for each rank.

Times are microseconds with fractions; `args` keeps the exact values, so that reading a written trace gives equal spans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from paceline.errors import Problem
from paceline.measurements.run import PHASES, Span
from paceline.measurements.trace.stream import EventStream, open_trace
from paceline.spec.lines import line_of, locate_json
from paceline.spec.load import refuse_rows

__all__ = ["checked_events", "load_events", "read_chrome", "spans_from_events", "to_chrome"]


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
    return tuple(spans_from_events(load_events(path)))


def spans_from_events(events: Iterable[dict[str, Any]]) -> Iterator[Span]:
    """Complete events, and pairs of begin and end, as spans; times from `args` where they are exact."""
    begun: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for event in events:
        stack = begun.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
        if event.get("ph") == "X":
            yield _span(event)
        elif event.get("ph") == "B":
            stack.append(event)
        elif event.get("ph") == "E" and stack:
            begin = stack.pop()
            yield _span({**begin, "dur": float(event["ts"]) - float(begin["ts"])})


def _span(event: dict[str, Any]) -> Span:
    given = event.get("args") or {}
    return Span(
        rank=int(event.get("pid", 0)),
        step=int(given.get("step", 0)),
        phase=str(given.get("phase", event.get("cat", "other"))),
        name=str(event.get("name", "")),
        start_s=float(given.get("start_s", float(event["ts"]) / 1e6)),
        seconds=float(given.get("seconds", float(event.get("dur", 0.0)) / 1e6)),
        size_bytes=None if given.get("size_bytes") is None else int(given["size_bytes"]),
        source=str(given.get("source", "chrome")),
    )


def load_events(path: Path, *, ranks: bool = True) -> list[dict[str, Any]]:
    """The events of a trace file, checked: a document, a list, or a list without its end."""
    return list(checked_events(EventStream(path), ranks=ranks))


def checked_events(stream: EventStream, *, ranks: bool = True) -> Iterator[dict[str, Any]]:
    """The events of a trace one at a time; at its end the first problems of all events are one error.

    With `ranks`, the process of an event is the number of a rank; some tools write words there.
    """
    found: list[tuple[Any, ...]] = []
    for index, event in enumerate(stream):
        if not isinstance(event, dict):
            continue
        _as_numbers(event)
        under: tuple[Any, ...] = ("traceEvents", index) if stream.is_document else (index,)
        wrong = [(*under, *place, given, expected) for place, given, expected in _wrong(event, ranks=ranks)]
        if not wrong:
            yield event
        found += wrong
        if len(found) >= MOST_PROBLEMS:
            break
    if found:
        places = _places(stream.path)
        refuse_rows(str(stream.path), [_problem(item, str(stream.path), places) for item in found[:MOST_PROBLEMS]])


def _as_numbers(event: dict[str, Any]) -> None:
    """Some versions of the profiler write times as text."""
    for name in ("ts", "dur"):
        given = event.get(name)
        if isinstance(given, str) and NUMERAL.fullmatch(given):
            event[name] = float(given)


def _places(path: Path) -> dict[Any, int]:
    """The lines of a small trace; of a large one, the numbers of the events have to do."""
    with open_trace(path) as file:
        text = file.read(LOCATED + 1)
    return locate_json(text.decode("utf-8", errors="replace")) if len(text) <= LOCATED else {}


NUMERAL = re.compile(r"-?\d{1,30}(\.\d{1,30})?")
MOST_PROBLEMS = 20
LOCATED = 2 << 20
MOST = 1e18
Rule = tuple[str, Callable[[Any], bool], str]


def _is_number(value: Any, least: float = -MOST) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= MOST


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


TIMED: tuple[Rule, ...] = (
    ("ts", _is_number, "a number of microseconds"),
    ("dur", lambda value: _is_number(value, 0.0), "a number of microseconds, 0 or more"),
)
EXACT: tuple[Rule, ...] = (
    ("step", _is_whole, "a whole number, 0 or more"),
    ("start_s", _is_number, "a number of seconds"),
    ("seconds", lambda value: _is_number(value, 0.0), "a number of seconds, 0 or more"),
)
GIVEN: tuple[Rule, ...] = (
    *EXACT,
    *((f"paceline_{name}", fits, expected) for name, fits, expected in EXACT),
    ("size_bytes", lambda value: value is None or _is_number(value, 0.0), "a number of bytes, 0 or more"),
    ("In msg nelems", lambda value: not isinstance(value, int | float) or _is_number(value, 0.0), "0 or more"),
)


def _wrong(event: dict[str, Any], *, ranks: bool) -> Iterator[tuple[tuple[str, ...], Any, str]]:
    """Place, given and expected value of all that is wrong with an event that a reader would use."""
    kind, args = event.get("ph"), event.get("args")
    if kind not in ("X", "B", "E") and not (kind == "M" and event.get("name") == "process_name"):
        return
    given = args if isinstance(args, dict) else {}
    if args is not None and not isinstance(args, dict):
        yield ("args",), args, "a table"
    if kind == "M":
        if "name" not in given:
            yield ("args", "name"), None, "the name of the process"
    elif "ts" not in event or (kind != "E" and "name" not in event):
        yield ("ts" if "ts" not in event else "name",), None, "a value"
    if ranks and not _is_whole(event.get("pid", 0)):
        yield ("pid",), event["pid"], "the number of a rank"
    for name, fits, expected in TIMED if kind != "M" else ():
        if name in event and not fits(event[name]):
            yield (name,), event[name], expected
    for name, fits, expected in GIVEN if kind != "M" else ():
        if name in given and not fits(given[name]):
            yield ("args", name), given[name], expected


def _problem(found: tuple[Any, ...], file: str, places: dict[Any, int]) -> Problem:
    *place, given, expected = found
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    return Problem(file, line_of(tuple(place), places), field, repr(given)[:80], expected)
