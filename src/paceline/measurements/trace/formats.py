"""A trace file of any known tool as spans, and how long each rank was busy in each phase."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from paceline.errors import InputError, PacelineError, UnknownName
from paceline.files import read_regular
from paceline.measurements.run import PHASES, Span
from paceline.measurements.trace.chakra import read_chakra
from paceline.measurements.trace.chrome import load_document, load_events, read_chrome
from paceline.measurements.trace.horovod import read_horovod
from paceline.measurements.trace.kineto import read_kineto

__all__ = ["TRACE_READERS", "busy_seconds", "read_trace"]

TRACE_READERS: dict[str, Callable[[Path], tuple[Span, ...]]] = {
    "chakra": read_chakra,
    "chrome": read_chrome,
    "horovod": read_horovod,
    "kineto": read_kineto,
}
"""The reader of each format: Chakra execution traces, Chrome events as Paceline exports them, Horovod's timeline, and
what `torch.profiler` exports."""


def read_trace(path: Path, format: str | None = None) -> tuple[Span, ...]:  # noqa: A002
    """The spans of a trace; its content tells the format if none is named."""
    name = format or _format_of(path)
    if name not in TRACE_READERS:
        raise UnknownName("trace format", name, TRACE_READERS)
    try:
        spans = TRACE_READERS[name](path)
    except PacelineError:  # some are a ValueError too
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError(
            f"{path} is not a sound {name} trace: {error}", hint="expected numbers in times and steps"
        ) from None
    wrong = next((span for span in spans if not _sound(span)), None)
    if wrong is not None:
        raise InputError(f"{path}: {wrong.name[:80]!r} begins at {wrong.start_s} s and lasts {wrong.seconds} s",
                         hint="a trace has finite times, and no span ends before it begins")  # fmt: skip
    return spans


def _sound(span: Span) -> bool:
    return (
        math.isfinite(span.start_s) and 0 <= span.seconds < math.inf and span.rank >= 0 and span.step >= 0
        and (span.size_bytes or 0) >= 0
    )  # fmt: skip


def _format_of(path: Path) -> str:
    """JSON is told apart by what only one tool writes; anything else is taken for Chakra's binary format."""
    try:
        begin = read_regular(path, most=64, follow=True).lstrip()
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: {getattr(error, 'strerror', None) or error}", hint="give the path of a trace"
        ) from None
    if not begin.startswith((b"{", b"[")):
        return "chakra"
    events = load_events(path, ranks=False)
    if any(event.get("ph") in ("B", "E") for event in events):
        return "horovod"
    return "kineto" if begin.startswith(b"{") and _by_profiler(path) else "chrome"


def _by_profiler(path: Path) -> bool:
    return bool({"distributedInfo", "schemaVersion", "deviceProperties"} & set(load_document(path)))


def busy_seconds(spans: Iterable[Span]) -> dict[int, dict[str, float]]:
    """Seconds in which a rank had at least one span of a phase, by rank and phase; overlapping spans count once."""
    stretches: dict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for span in spans:
        stretches[span.rank, span.phase].append((span.start_s, span.start_s + span.seconds))
    phases = [*PHASES, *sorted({phase for _, phase in stretches} - set(PHASES))]
    ranks = sorted({rank for rank, _ in stretches})
    return {
        rank: {phase: _covered(stretches[rank, phase]) for phase in phases if (rank, phase) in stretches}
        for rank in ranks
    }


def _covered(stretches: list[tuple[float, float]]) -> float:
    """Length of the union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(stretches):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
