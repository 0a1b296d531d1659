"""Output of nccl-tests (`all_reduce_perf` and its siblings), text or JSON (-J): seconds by collective and size."""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline import __version__
from paceline.errors import InputError
from paceline.files import read_regular
from paceline.measurements.run import Machine, Run, RunData

__all__ = ["CollectiveTest", "TestedSize", "looks_like_nccl_tests", "read_nccl_tests", "sweep_of"]

MOST_BYTES = 64 << 20
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
RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*?)\s*$", flags=re.M)
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(\S+)\s+(-?\d+)\s+(\S.*?)\s*$", flags=re.M)
HINT = "write it with `all_reduce_perf -b 8 -e 1G -f 2 -g 8 > out.txt`, or as JSON with `-J out.json`"


@dataclass(frozen=True)
class TestedSize:
    """One row: a buffer and its time; of both columns the one that is there, out of place first."""

    size_bytes: int
    seconds: float
    bus_bandwidth: float
    """Bytes per second, as nccl-tests defines it."""
    wrong: int


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
    try:
        begin = read_regular(path, most=1 << 16, follow=True).decode("utf-8", errors="replace")
    except OSError:
        return False
    if begin.lstrip().startswith("{"):
        return any(word in begin for word in ('"bus_bw"', '"average_bus_bandwidth"', '"nccl_version"'))
    return "algbw" in begin and "busbw" in begin


def read_nccl_tests(path: Path, operation: str | None = None) -> CollectiveTest:
    """The rows of one test; its collective is in the output, else in the file's name, else it has to be named."""
    try:
        content = read_regular(path, most=MOST_BYTES + 1, follow=True)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint=HINT) from None
    if len(content) > MOST_BYTES:
        raise InputError(f"{path} has more than {MOST_BYTES >> 20} MiB", hint=HINT)
    text = content.decode("utf-8", errors="replace")
    try:
        found = _from_json(json.loads(text)) if text.lstrip().startswith("{") else _from_text(text)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        reason = str(error)[:120] or type(error).__name__
        raise InputError(f"{path} is no sound output of nccl-tests: {reason}", hint=HINT) from None
    rows, ranks, hosts, device = found
    if not rows:
        raise InputError(f"{path} has no row with a size, a time and a bandwidth", hint=HINT)
    if ranks < 2:
        raise InputError(f"{path} was measured with {ranks} rank, a collective needs two", hint=HINT)
    return CollectiveTest(str(path), _operation(path, text, operation), ranks, hosts, device, tuple(rows))


Found = tuple[list[TestedSize], int, tuple[str, ...], str]


def _operation(path: Path, text: str, given: str | None) -> str:
    named = given or next((m.group(1) for m in PROGRAM.finditer(text)), None)
    named = named or next((m.group(1) for m in PROGRAM.finditer(path.name)), None)
    for name in OPERATIONS if named is None else ():
        named = name if name in path.name.replace("-", "_") else named
    known = {**OPERATIONS, **{name: name for name in OPERATIONS.values()}}
    if named not in known:
        what = f"the collective {named!r} has no place in the model" if named else "it does not name its collective"
        raise InputError(f"{path}: {what}", hint=f"--operation, one of {', '.join(sorted(set(OPERATIONS.values())))}")
    return known[named]


def _row(size: Any, micros: Any, bus: Any, wrong: Any) -> TestedSize:
    seconds, bandwidth = float(micros) / 1e6, float(bus) * 1e9
    if not (int(size) >= 0 and math.isfinite(seconds) and seconds >= 0 and math.isfinite(bandwidth) and bandwidth >= 0):
        raise ValueError(f"size {size}: time {micros} us, bus bandwidth {bus} GB/s")
    return TestedSize(int(size), seconds, bandwidth, int(wrong) if str(wrong).isdigit() else 0)


def _from_text(text: str) -> Found:
    rows = []
    for match in ROW.finditer(text):
        columns = match.group(6).split()
        if len(columns) >= 3:
            rows.append(_row(match.group(1), columns[0], columns[2], columns[3] if len(columns) > 3 else 0))
    places = RANK.findall(text)
    hosts = tuple(dict.fromkeys(host for _, host, _ in places))
    ranks = len({rank for rank, _, _ in places})
    return [row for row in rows if row.size_bytes and row.seconds], ranks, hosts, str(places[0][2]) if places else ""


def _from_json(document: dict[str, Any]) -> Found:
    config = document.get("config") or {}
    devices = [item for item in config.get("devices", document.get("devices")) or [] if isinstance(item, dict)]
    each = max(1, int(config.get("nthreads", 1))) * max(1, int(config.get("ngpus", 1)))
    rows = []
    for item in document["results"]:
        column = item.get("out_of_place") or item.get("in_place") or {}
        size, bandwidth = item["size"], column.get("alg_bw", 0.0)
        micros = column.get("time", column.get("time_us"))
        micros = float(size) / (float(bandwidth) * 1e3) if micros is None and bandwidth else micros or 0.0
        rows.append(_row(size, micros, column.get("bus_bw", 0.0), column.get("nwrong", 0) or 0))
    hosts = tuple(dict.fromkeys(str(item.get("hostname", "")) for item in devices))
    name = str(devices[0].get("device_info", devices[0].get("device_name", ""))) if devices else ""
    return [row for row in rows if row.size_bytes and row.seconds], len(devices) * each, hosts, name


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
