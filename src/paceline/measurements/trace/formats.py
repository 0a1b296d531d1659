"""A trace file of any known tool as spans, and how long each rank was busy in each phase."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from paceline.errors import InputError, PacelineError, UnknownName
from paceline.measurements.run import PHASES, Span
from paceline.measurements.trace.chakra import read_chakra
from paceline.measurements.trace.chrome import read_chrome
from paceline.measurements.trace.horovod import read_horovod
from paceline.measurements.trace.kineto import read_kineto
from paceline.measurements.trace.stream import EventStream, begin_of

__all__ = ["TRACE_READERS", "busy_seconds", "checked_spans", "format_of", "read_trace"]

BY_PROFILER = ("cpu_op", "kernel", "Operator", "Kernel")
"""Categories of events that only PyTorch's profiler writes."""
SNIFFED = 1000
"""Events that tell the tool which wrote a trace."""

TRACE_READERS: dict[str, Callable[[Path], tuple[Span, ...]]] = {
    "chakra": read_chakra,
    "chrome": read_chrome,
    "horovod": read_horovod,
    "kineto": read_kineto,
}
"""The reader of each format: Chakra execution traces, Chrome events as Paceline exports them, Horovod's timeline, and
what `torch.profiler` exports."""


def read_trace(path: Path, format: str | None = None, *, fallback_rank: int = 0) -> tuple[Span, ...]:  # noqa: A002
    """The spans of a trace; its content tells the format if none is named, and its rank if the format does."""
    name = format or format_of(path)
    if name not in TRACE_READERS:
        raise UnknownName("trace format", name, TRACE_READERS)
    try:
        chakra = name == "chakra"
        found = read_chakra(path, fallback_rank=fallback_rank) if chakra else TRACE_READERS[name](path)
        return tuple(checked_spans(path, found))
    except PacelineError:  # some are a ValueError too
        raise
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise InputError(
            f"{path} is not a sound {name} trace: {error}", hint="expected numbers in times and steps"
        ) from None


def checked_spans(path: Path, spans: Iterable[Span]) -> Iterator[Span]:
    """The spans unchanged; raises an error for an impossible span."""
    for span in spans:
        if not _sound(span):
            raise InputError(f"{path}: {span.name[:80]!r} begins at {span.start_s} s and lasts {span.seconds} s",
                             hint="a trace has finite times, and no span ends before it begins")  # fmt: skip
        yield span


def _sound(span: Span) -> bool:
    return (
        math.isfinite(span.start_s) and 0 <= span.seconds < math.inf and span.rank >= 0 and span.step >= 0
        and (span.size_bytes or 0) >= 0
    )  # fmt: skip


def format_of(path: Path) -> str:
    """The format of a trace. JSON is recognised by fields of each tool; other files are assumed to be Chakra."""
    if not begin_of(path, 64).lstrip().startswith((b"{", b"[")):
        return "chakra"
    stream = EventStream(path)
    first = [event for event in islice(stream, SNIFFED) if isinstance(event, dict)]
    if any(map(_is_process_of_xla, first)):
        what = f"{path} is a trace of XLA's profiler (JAX or TensorFlow): its operations belong to no phase of training"
        raise InputError(what, hint="`paceline watch -- python train.py` records the steps of JAX and TensorFlow")
    if any(event.get("ph") in ("B", "E") for event in first) and not any(map(_has_phase, first)):
        return "horovod"
    by_profiler = {"distributedInfo", "schemaVersion", "deviceProperties"} & set(stream.head)
    return "kineto" if by_profiler or any(event.get("cat") in BY_PROFILER for event in first) else "chrome"


def _is_process_of_xla(event: dict[str, Any]) -> bool:
    name = event.get("args")
    named = name.get("name") if event.get("name") == "process_name" and isinstance(name, dict) else None
    return isinstance(named, str) and named.startswith(("/device:", "/host:"))


def _has_phase(event: dict[str, Any]) -> bool:
    """Whether an event states its phase, which no event of Horovod does."""
    args = event.get("args")
    return event.get("cat") in PHASES or (isinstance(args, dict) and args.get("phase") in PHASES)


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
