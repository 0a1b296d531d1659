"""Reports of Nsight Systems, exported as SQLite: kernels, copies, launches and NVTX ranges of every process.

A step is an NVTX range such as `step 5`, `iteration_5` or `ProfilerStep#5`, or one named `step`, counted in order.
Ranges tell the phases of the host, kernels belong to the phase in which they were launched, and a step lasts from the
first kernel that was launched in its range to the first of the next step. Only columns are read that nsys has written
since 2020; a report whose graphs are single events has no kernels to tell apart, and is refused. The file is opened
read-only; only plain tables are read, and no function is called.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from paceline.errors import InputError
from paceline.measurements.trace.kineto import STEP, phase_of
from paceline.measurements.trace.profiled import PhaseScan
from paceline.measurements.trace.rank_trace import RankTrace, check_clock, phase_by_words
from paceline.measurements.trace.stream import begin_of

__all__ = ["looks_like_nsight", "scan_nsight"]

MAGIC = b"SQLite format 3\0"
LONGEST = 1 << 20
"""Characters of the longest text that SQLite hands over."""
PUSH_POP, START_END = 59, 60
"""Kinds of an NVTX event that are ranges."""
TO_DEVICE = (1, 3)
"""Kinds of a copy from host memory to the device: plain, and to an array."""
STEP_NAME = re.compile(
    r"^((?:profiler|train(?:ing|er)?|global)?[ _-]?(?:step|iter(?:ation)?|batch)(?:_idx)?)[ _#:=-]*(\d{1,9})?$",
    flags=re.I,
)
SHORT = (
    ("fwd", "forward"),
    ("bwd", "backward"),
    ("optim", "update"),
    ("opt.", "update"),
    ("load", "io"),
    ("data", "io"),
)
"""Short words in the names of users' ranges."""
AGAIN = "export it again: nsys export --type sqlite --force-overwrite true report.nsys-rep"
RANGES = (
    "profile with `nsys profile --trace=cuda,nvtx --pytorch=autograd-nvtx`, or put the loop under "
    "torch.autograd.profiler.emit_nvtx()"
)
STEPS = "put torch.cuda.nvtx.range_push(f'step {i}') and range_pop() around every iteration, and profile several"
GRAPHS = "profile again with `nsys profile --cuda-graph-trace=node`, which records the kernels of graphs"
LEAST_GRAPHS = 0.01
"""Share of the time of kernels from which what runs as a graph counts."""
KERNELS = "profile with `nsys profile --trace=cuda,nvtx`"
Row = tuple[Any, ...]


def looks_like_nsight(path: Path) -> bool:
    """Whether a file is an SQLite database."""
    return begin_of(path, len(MAGIC)) == MAGIC


def scan_nsight(path: Path, *, fallback_rank: int = 0) -> tuple[RankTrace, ...]:
    """The traces of all processes of a report that ran kernels; one process has the fallback's rank."""
    if not looks_like_nsight(path):
        raise InputError(f"{path} is no SQLite report", hint=AGAIN)
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InputError(f"{path} is a compressed SQLite report", hint=f"unpack it: gunzip {path.name}")
    try:
        with _Report(path) as report:
            return _traces(path, report, fallback_rank)
    except sqlite3.Error as error:
        raise InputError(f"{path} is no sound SQLite report: {error}", hint=AGAIN) from None
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} has a row that is no event: {error}", hint=AGAIN) from None


class _Report:
    """An open report; nothing but reading of columns is allowed."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1", uri=True)
        self._db.text_factory = lambda text: text.decode("utf-8", errors="replace")
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        self._db.execute("PRAGMA trusted_schema=OFF")
        self.columns: dict[str, set[str]] = {}
        for name, code in self._db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchmany(
            10_000
        ):
            if str(code).upper().startswith("CREATE TABLE"):
                self.columns[str(name)] = set()
        for name in set(TABLES) & set(self.columns):
            columns = self._db.execute(f'PRAGMA table_xinfo("{name}")').fetchmany(10_000)
            if any(column[6] for column in columns):
                raise ValueError(f"table {name} has computed columns")
            self.columns[name] = {str(column[1]) for column in columns}
        self._db.set_authorizer(_only_reading)

    def __enter__(self) -> _Report:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def rows(self, table: str, where: str = "") -> Iterator[Row]:
        """The known columns of a table, row after row; nothing if there is no such table."""
        wanted = TABLES[table]
        if table not in self.columns:
            return
        missing = [name for name in wanted if name not in self.columns[table] and name not in OPTIONAL]
        if missing:
            raise ValueError(f"table {table} has no column {missing[0]}")
        cells = ", ".join(f'"{name}"' if name in self.columns[table] else "NULL" for name in wanted)
        yield from self._db.execute(f'SELECT {cells} FROM "{table}" {where}')

    def text(self, number: Any) -> str:
        """A text by its number."""
        found = self._db.execute("SELECT value FROM StringIds WHERE id = ?", (number,)).fetchone()
        return str(found[0]) if found else ""


TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("start", "end", "globalPid", "correlationId", "deviceId", "shortName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "globalPid", "copyKind", "bytes"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "globalTid", "correlationId"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("start", "end"),
    "NVTX_EVENTS": ("start", "end", "globalTid", "eventType", "text", "textId"),
    "StringIds": ("id", "value"),
}
OPTIONAL = ("globalPid", "textId", "eventType", "globalTid")


def _only_reading(action: int, *_: object) -> int:
    return sqlite3.SQLITE_OK if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ) else sqlite3.SQLITE_DENY


def _process(identifier: Any) -> int:
    """The process of a serialized thread or process: all but the lowest 24 bits."""
    return int(identifier or 0) >> 24


def _traces(path: Path, report: _Report, fallback_rank: int) -> tuple[RankTrace, ...]:
    scans: dict[int, PhaseScan] = defaultdict(lambda: PhaseScan(path, "nsight"))
    devices, busy_ns = _kernels(report, scans)
    graphs_ns = sum(int(end) - int(start) for start, end in report.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"))
    if graphs_ns > LEAST_GRAPHS * busy_ns:
        raise InputError(f"{path}: {graphs_ns / 1e9:.3g} s run as CUDA graphs, whose kernels it lacks", hint=GRAPHS)
    if not devices:
        raise InputError(f"{path} has no kernel of a device", hint=KERNELS)
    for start, thread, correlation in report.rows("CUPTI_ACTIVITY_KIND_RUNTIME"):
        if _process(thread) in devices:
            scans[_process(thread)].take(_event("cuda_runtime", "launch", start, start, correlation=correlation))
    marks = _ranges(report, scans)
    ordered = sorted(devices, key=lambda process: (devices[process], process))
    ranks = {process: fallback_rank if len(ordered) == 1 else place for place, process in enumerate(ordered)}
    return tuple(_trace(path, scans[process], marks.get(process, {}), ranks[process]) for process in ordered)


def _kernels(report: _Report, scans: dict[int, PhaseScan]) -> tuple[dict[int, int], int]:
    """Note kernels and copies; the device of each process, and nanoseconds of all kernels."""
    names: dict[Any, str] = {}
    devices: dict[int, int] = {}
    busy_ns = 0
    for start, end, process, correlation, device, name in report.rows("CUPTI_ACTIVITY_KIND_KERNEL"):
        if name not in names:
            names[name] = report.text(name)
        devices.setdefault(_process(process), int(device))
        scans[_process(process)].take(_event("kernel", names[name], start, end, correlation=correlation))
        busy_ns += int(end) - int(start)
    for start, end, process, kind, size in report.rows("CUPTI_ACTIVITY_KIND_MEMCPY"):
        if kind in TO_DEVICE and _process(process) in devices:
            scans[_process(process)].take(_event("gpu_memcpy", "Memcpy HtoD", start, end, size_bytes=size))
    return devices, busy_ns


def _event(kind: str, name: str, start: Any, end: Any, **args: Any) -> dict[str, Any]:
    begin, finish = int(start), int(end)
    if not 0 <= begin <= finish < 2**63:
        raise ValueError(f"{name[:60]!r} lasts from {begin} to {finish} ns")
    return {"cat": kind, "name": name, "ts": begin / 1e3, "dur": (finish - begin) / 1e3, "args": args}


Marks = dict[str, list[tuple[int | None, int, int]]]


def _ranges(report: _Report, scans: dict[int, PhaseScan]) -> dict[int, Marks]:
    """Note the ranges that tell a phase; the ranges that may be steps, by process and by name without number."""
    marks: dict[int, Marks] = defaultdict(lambda: defaultdict(list))
    names: dict[Any, str] = {}
    for start, end, thread, kind, text, number in report.rows("NVTX_EVENTS"):
        process = _process(thread)
        if end is None or kind not in (PUSH_POP, START_END, None) or process not in scans:
            continue
        if not text and number not in names:  # of 2020, every column has a value
            names[number] = report.text(number)
        name = str(text or names[number])
        step = STEP_NAME.match(name.strip())
        if step:
            marks[process][step[1].lower()].append((int(step[2]) if step[2] else None, int(start), int(end)))
        elif phase := _phase(name):
            event = _event("cpu_op", name, start, end)
            scans[process].host[phase].add(event["ts"] / 1e6, (event["ts"] + event["dur"]) / 1e6)
    return marks


def _phase(name: str) -> str | None:
    """The phase of a range; exchanges are recognised by kernels."""
    if name.startswith(("aten::", "autograd::", "Optimizer.")) or "Backward" in name:
        phase: str | None = phase_of(name)
    else:
        lowered = name.lower()
        phase = phase_by_words(name) or next((phase for word, phase in SHORT if word in lowered), None)
    return None if phase == "aggregate" else phase


def _trace(path: Path, scan: PhaseScan, marks: Marks, rank: int) -> RankTrace:
    """The trace of one process, by the family of marks that covers the most time."""
    chosen = max(marks.values(), key=lambda family: sum(end - start for _, start, end in family), default=[])
    if len(chosen) < 2:
        found = f"{len(chosen)} NVTX range of a step" if chosen else "no NVTX range of a step"
        raise InputError(f"{path}: rank {rank} has {found}", hint=STEPS)
    if not {"backward", "update"} & set(scan.host):
        hint = f"{RANGES}; or name ranges `forward`, `backward` and `optimizer`"
        raise InputError(f"{path}: rank {rank} has no NVTX range that tells backward from forward", hint=hint)
    ordered = sorted(chosen, key=lambda mark: mark[1])
    for number, (given, start, end) in enumerate(ordered):
        label = number if given is None else given
        scan.take(_event("user_annotation", f"{STEP}{label}", start, end))
    check_clock(str(path), scan.marks["host"])
    scan.marks["device"] = _projected(scan)
    return scan.result(rank=rank, world=None)


def _projected(scan: PhaseScan) -> dict[int, tuple[float, float]]:
    """Steps as the device had them: from the first kernel launched in a range to the first of the next one."""
    launched, begins, ends = scan.kernels.times()
    found = {}
    for number, (begin, end) in scan.marks["host"].items():
        inside = (launched >= begin) & (launched < end)
        if np.any(inside):
            found[number] = float(begins[inside].min()), float(ends[inside].max())
    for one, later in pairwise(sorted(found, key=lambda number: found[number][0])):
        found[one] = found[one][0], found[later][0]
    return found
