"""Output of nccl-tests (`all_reduce_perf` and its siblings), text or JSON (-J): seconds by collective and size."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from paceline import __version__
from paceline.cost.collective import bus_factor
from paceline.errors import InputError
from paceline.measurements.run import Machine, Run, RunData
from paceline.measurements.trace.stream import ESCAPES, begin_of, read_content

__all__ = ["CollectiveTest", "TestedSize", "looks_like_nccl_tests", "read_nccl_tests", "reason_of", "sweep_of"]

MOST_BYTES = 64 << 20
MOST_RANKS = 10_000_000
OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "broadcast": "broadcast",
    "sendrecv": "point_to_point",
}
"""Our names of the tested collectives, by the names of the programs."""
PROGRAM = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|broadcast|sendrecv|alltoallv?|reduce|gather|scatter)_perf"
)
PREFIX = re.compile(r"^\s*\[[^\]\s]+\]<std\w+>:")
"""Prefix of a line by `mpirun --tag-output`; srun, kubectl and docker add words before it."""
STARTS = re.compile(r"^[^#]*#\s*nThreads? \d+ nGpus \d+", flags=re.M)
FAILURE = re.compile(r"^.*\bTest (?:NCCL |CUDA )?failure\b.*$", flags=re.M)
OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)\s+FAILED")
RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*?)\s*$"
)
HINT = "write it with `all_reduce_perf -b 8 -e 1G -f 2 -g 8 > out.txt`, or as JSON with `-J out.json`"


@dataclass(frozen=True)
class TestedSize:
    """One row: a buffer and its time; of both columns the one that is there, out of place first."""

    size_bytes: int
    seconds: float
    bus_bandwidth: float
    """Bytes per second, as nccl-tests defines it."""
    wrong: int
    """Elements that came out wrong, of both columns."""


@dataclass(frozen=True)
class CollectiveTest:
    """One run of one program of nccl-tests."""

    path: str
    operation: str
    ranks: int
    hosts: tuple[str, ...]
    device: str
    sizes: tuple[TestedSize, ...]

    @property
    def peak(self) -> float:
        """Largest bus bandwidth, in bytes per second."""
        return max(row.bus_bandwidth for row in self.sizes)

    @property
    def wrong(self) -> int:
        """Elements that came out wrong."""
        return sum(row.wrong for row in self.sizes)


def looks_like_nccl_tests(path: Path) -> bool:
    """Whether a file begins like the output of nccl-tests."""
    begin = begin_of(path, 1 << 16).decode("utf-8", errors="replace")
    if begin.lstrip().startswith("{"):
        return any(word in begin for word in ('"bus_bw"', '"average_bus_bandwidth"', '"nccl_version"'))
    return ("algbw" in begin and "busbw" in begin) or STARTS.search(begin) is not None


def read_nccl_tests(path: Path, operation: str | None = None) -> CollectiveTest:
    """The rows of one test; its collective is in the output, else in the file's name, else it has to be named."""
    text = ESCAPES.sub("", read_content(path, MOST_BYTES, HINT).decode("utf-8", errors="replace"))
    try:
        found = _from_json(json.loads(text)) if text.lstrip().startswith("{") else _from_text(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise InputError(f"{path} is no sound output of nccl-tests: {reason_of(error)}", hint=HINT) from None
    if not text.lstrip().startswith("{") and (failure := FAILURE.search(text)):
        raise InputError(f"{path}: the test failed: {failure.group().strip()[:160]}",
                         hint="mend that and test again; without this line, the rows before it are read")  # fmt: skip
    if not found.rows:
        raise InputError(f"{path} has no row with a size, a time and a bandwidth", hint=HINT)
    if found.ranks < 2:
        raise InputError(f"{path} was measured with {found.ranks} rank, a collective needs two", hint=found.hint)
    if found.ranks > MOST_RANKS:
        raise InputError(
            f"{path} was measured with {str(found.ranks)[:40]} ranks, at most {MOST_RANKS:,} are read", hint=HINT
        )
    named = _operation(path, text, operation, found.implied)
    _check_factor(path, named, found)
    return CollectiveTest(str(path), named, found.ranks, found.hosts, found.device, tuple(found.rows))


@dataclass(frozen=True)
class _Found:
    rows: list[TestedSize]
    places: list[tuple[int, int, str, str]]
    """Rank, group, host and device of every process or rank."""
    each: int = 1
    """Ranks of a process, where a place is a process."""
    implied: str | None = None
    """The collective that the columns imply, if the program is not named."""
    factors: tuple[float, ...] = ()
    """Bus bandwidth over the bandwidth of the buffer, row by row."""

    @property
    def ranks(self) -> int:
        """Ranks of one communicator: groups are tested side by side."""
        return max(Counter(group for _, group in {place[:2] for place in self.places}).values(), default=0) * self.each

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place[2] for place in self.places))

    @property
    def device(self) -> str:
        return self.places[0][3] if self.places else ""

    @property
    def hint(self) -> str:
        if len(self.places) > 1:
            return "each process measured alone: build nccl-tests with `make MPI=1`, so that mpirun and srun join them"
        return HINT if self.places else "keep the lines `# Rank 0 Group 0 Pid ...` before the table"


def _operation(path: Path, text: str, given: str | None, implied: str | None) -> str:
    """The collective: as given, as the program is named in the output or the file's name, or as columns imply."""
    written = list(dict.fromkeys(match.group(1) for match in PROGRAM.finditer(text)))
    if len(written) > 1 and not text.lstrip().startswith("{"):
        raise InputError(f"{path} holds tests of {' and '.join(written)}", hint="one file for each test")
    plain = path.name.replace("-", "_")
    named = next(iter([*([given] if given else []), *written, *PROGRAM.findall(plain)]), None)
    named = named or next((name for name in OPERATIONS if name in plain), implied)
    known = {**OPERATIONS, **{name: name for name in OPERATIONS.values()}}
    if named not in known:
        what = f"the collective {named!r} has no place in the model" if named else "it does not name its collective"
        known_names = ", ".join(sorted(set(OPERATIONS.values())))
        hint = f"test one of {known_names}" if written else f"--operation, one of {known_names}"
        raise InputError(f"{path}: {what}", hint=hint)
    if given and written and OPERATIONS.get(written[0]) != known[named]:
        raise InputError(f"{path} is the output of {written[0]}_perf, not of {given}", hint="leave --operation out")
    return known[named]


def reason_of(error: Exception) -> str:
    """Why a record cannot be read, without words of Python."""
    if isinstance(error, KeyError):
        return f"it has no field {error}"
    if isinstance(error, AttributeError | TypeError):
        return "a field is of another kind than expected: a number, a text, a list or a table"
    return str(error)[:120] or type(error).__name__


def _row(size: Any, micros: Any, bus: Any, wrong: Any, *, buffer: Any = None) -> TestedSize:
    """A row; `buffer`: the bandwidth of the buffer, which size and time have to give."""
    seconds, bandwidth = float(micros) / 1e6, float(bus) * 1e9
    stated = float(buffer) * 1e9 if buffer is not None else 0.0
    missed = 0 if wrong in (None, "N/A") else int(float(wrong))
    sound = all(math.isfinite(number) and number >= 0 for number in (seconds, bandwidth, missed))
    if isinstance(size, bool) or not (sound and 0 <= int(size) < 2**63):
        raise ValueError(f"size {size}: time {micros} us, bus bandwidth {bus} GB/s, {missed} wrong")
    if stated >= 1e9 and seconds > 0 and not 0.8 < int(size) / seconds / stated < 1.25:
        raise ValueError(f"{size} bytes in {micros} us are {int(size) / seconds / 1e9:.3g} GB/s, stated are {buffer}: "
                         "time in microseconds and bandwidth in GB/s are expected")  # fmt: skip
    return TestedSize(int(size), seconds, bandwidth, missed)


def _wrong_of(columns: list[Any]) -> float:
    """Wrong elements of both columns; a negative number stays one."""
    counts = [float(count) for count in columns if count not in (None, "N/A")]
    return min(counts) if any(count < 0 for count in counts) else sum(counts)


class _Table:
    """The table of a test; other output may be between its lines, and labels before them."""

    def __init__(self) -> None:
        self.rows: list[TestedSize] = []
        self.places: list[tuple[int, int, str, str]] = []
        self.factors: list[float] = []
        self.reduces = False
        self.sizes: list[int] = []
        """Ranks that were listed before each header of a table."""
        self._columns: list[str] = []
        self._labels = 0
        """Words before each line, as many as before the names of the columns."""
        self._listed: set[tuple[int, int]] = set()

    def take(self, line: str) -> None:
        """Parse one line."""
        names = line.replace("#", " ", 1).split() if line.find("#") < line.find("size") else line.split()
        if {"size", "algbw", "busbw"} <= set(names):
            self._labels = names.index("size")
            self._columns = names[self._labels :]
            self.sizes.append(len(self._listed))
            self._listed = set()
        elif place := RANK.search(line):
            self.places.append((int(place[1]), int(place[2] or 0), place[3], place[4]))
            self._listed.add(self.places[-1][:2])
        elif self._columns:
            self._take_row(line.split()[self._labels :])

    def _take_row(self, words: list[str]) -> None:
        """A row by the names of the columns, which differ between versions and programs."""
        columns = self._columns
        if len(words) <= columns.index("busbw") or not words[0].isdecimal() or not int(words[0]):
            return
        pairs = list(zip(columns[: len(words)], words[: len(columns)], strict=True))
        cells = dict(reversed(pairs))  # of both columns, the first
        micros = cells.get("time", cells.get("cputime"))
        if not cells.get("count", "0").isdecimal() or not all(
            map(_is_number, (micros, cells["algbw"], cells["busbw"]))
        ):
            return  # output of NCCL has broken the row
        wrong = [cell for name, cell in pairs if name == "#wrong"]
        buffer = cells["algbw"] if "time" in cells else None  # the time of the processor is another one
        row = _row(words[0], micros, cells["busbw"], _wrong_of(wrong), buffer=buffer)
        if row.seconds:
            self.rows.append(row)
            self.factors += [float(cells["busbw"]) / float(cells["algbw"])] if float(cells["algbw"]) > 1 else []
            self.reduces = cells.get("redop", "none") != "none" and cells.get("root", "-1") == "-1"


def _is_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True


def _from_text(text: str) -> _Found:
    table = _Table()
    for line in text.splitlines():
        table.take(PREFIX.sub("", line))
    if len(sizes := {size for size in table.sizes if size}) > 1:
        raise ValueError(f"it holds tests of {' and '.join(map(str, sorted(sizes)))} ranks, one file for each")
    rows = table.rows
    if rows and not any(row.wrong for row in rows) and (failed := OUT_OF_BOUNDS.search(text)):
        rows[-1] = replace(rows[-1], wrong=int(failed[1]))
    found = _Found(rows, table.places, factors=tuple(table.factors))
    return replace(found, implied=_implied(found.ranks, table.factors) if table.reduces else None)


def _implied(ranks: int, factors: list[float]) -> str | None:
    """The reduction without a root whose bus bandwidth has this ratio to the bandwidth of the buffer."""
    measured = median(factors) if factors else 0.0
    names = {name: bus_factor(name, ranks) for name in ("all_reduce", "reduce_scatter")}
    return next((name for name, factor in names.items() if abs(measured - factor) < 0.05 * factor), None)


def _check_factor(path: Path, operation: str, found: _Found) -> None:
    """Refuse rows of another collective or number of ranks, such as those of a list that was cut."""
    expected, measured = bus_factor(operation, found.ranks), median(found.factors or (0.0,))
    if measured and abs(measured - expected) > 0.05 * expected:
        raise InputError(f"{path}: busbw is {measured:.3g} times algbw, {operation} of {found.ranks} ranks has "
                         f"{expected:.3g} times",
                         hint="keep all lines `# Rank ...`, and name its collective: --operation")  # fmt: skip


def _from_json(document: dict[str, Any]) -> _Found:
    """Version 1 and 2 of the document; it lists the first rank of each process only."""
    config = document.get("config") or {}
    devices = [item for item in config.get("devices") or [] if isinstance(item, dict)]
    rows, factors = [], list[float]()
    for item in document["results"]:
        column = item.get("out_of_place") or item.get("in_place") or {}
        micros = column.get("time", column.get("cpu_time"))
        if int(item["size"]) and micros:
            columns = [item.get(name) or {} for name in ("out_of_place", "in_place")]
            wrong, stated = _wrong_of([one.get("nwrong") for one in columns]), column.get("alg_bw")
            buffer = stated if "time" in column else None
            rows.append(_row(item["size"], micros, column["bus_bw"], wrong, buffer=buffer))
            factors += [float(column["bus_bw"]) / float(stated)] if stated and float(stated) > 1 else []
    places = [(int(item.get("rank", number)), int(item.get("group", 0)), str(item.get("hostname", "")),
               str(item.get("device_info", ""))) for number, item in enumerate(devices)]  # fmt: skip
    each = max(1, int(config.get("nthreads", 1))) * max(1, int(config.get("ngpus", 1)))
    return _Found([row for row in rows if row.seconds], places, each, factors=tuple(factors))


def sweep_of(test: CollectiveTest, cluster: str) -> RunData:
    """A test as a stored sweep, like those of `paceline bench-collectives`: `calibrate` and `predict` find it."""
    now = datetime.now(UTC)
    plain = {"operation": test.operation, "ranks": test.ranks, "sizes": [row.size_bytes for row in test.sizes]}
    case = hashlib.sha256(json.dumps({**plain, "cluster": cluster}, sort_keys=True).encode()).hexdigest()[:16]
    campaign = f"collectives-{now:%Y%m%dT%H%M%S}-{secrets.token_hex(2)}"
    times = [{"collective": test.operation, "ranks": test.ranks, "size_bytes": row.size_bytes, "seconds": row.seconds,
              "bus_bandwidth": row.bus_bandwidth} for row in test.sizes]  # fmt: skip
    where = (test.hosts or ("unknown",))[0]
    machine = Machine(host=where, cpu="", cores=1, memory_bytes=0, os="", kernel="", python="", paceline=__version__)
    run = Run(
        id=f"{campaign}-{case}-000", campaign=campaign, study="collectives", case_id=case, case=plain, network="none",
        framework="collectives/nccl", strategy="default", cluster=cluster, launcher="import", ranks=test.ranks, batch=1,
        scaling="weak", input="resident", launch=0, started_at=now.isoformat(timespec="milliseconds"), seconds=0.0,
        outcome="ok", machine=machine, facts={"collectives": times, "source": test.path, "device": test.device},
    )  # fmt: skip
    return RunData(run)
