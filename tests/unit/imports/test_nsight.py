"""Nsight Systems' SQLite export, in the schema that nsys writes: steps, phases of kernels, ranks; what is refused."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paceline.cli import program
from paceline.errors import InputError
from paceline.measurements.foreign.nsight import scan_nsight
from paceline.measurements.store import Store
from paceline.measurements.trace.rank_trace import shares_of

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 contextId INTEGER NOT NULL, greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER,
 globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, mangledName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
 globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER,
 category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER);
"""
NAMES = {1: "gemm", 2: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 3: "cudaLaunchKernel", 4: "forward", 5: "backward",
         6: "Optimizer.step#SGD.step", 7: "batch copied"}  # fmt: skip
MS = 1_000_000
LAG = 5 * MS
"""The device runs behind the host."""


def report(path: Path, *, processes: int = 1, steps: int = 4, name: str = "step {step}", phases: bool = True) -> Path:
    """Steps of 100 ms: copy 5, forward 30, backward 40 with an exchange of 50 that begins in its middle, update 10."""
    db = sqlite3.connect(path)
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES.items())
    correlation = 0
    for process in range(processes):
        pid = (7000 + process) << 24
        for step in range(steps):
            at = 10**12 + step * 100 * MS
            _range(db, pid + 1, at, at + 100 * MS, text=name.format(step=step + 3))
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 0, ?, 4096, 1)",
                       (at, at + 5 * MS, process, pid))  # fmt: skip
            for phase, begin, end, kernel in ((4, 5, 35, 1), (5, 35, 75, 1), (5, 55, 105, 2), (6, 85, 95, 1)):
                correlation += 1
                if phases:
                    _range(db, pid + 1, at + begin * MS, at + min(end, 95) * MS, number=phase)
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, 3, 0)",
                           (at + begin * MS, at + begin * MS + 1000, pid + 2, correlation))  # fmt: skip
                times = (at + begin * MS + LAG, at + end * MS + LAG)
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, NULL, 7, ?, ?, ?, ?, NULL)",
                           (*times, process, correlation, pid, kernel, kernel))  # fmt: skip
    db.commit()
    db.close()
    return path


def _range(db: sqlite3.Connection, thread: int, start: int, end: int, text: Any = None, number: Any = None) -> None:
    db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, NULL, NULL, ?, ?, NULL, ?, 0)",
               (start, end, text, thread, number))  # fmt: skip


def test_kernels_have_the_phase_of_their_launch_and_steps_those_of_the_device(tmp_path: Path) -> None:
    (trace,) = scan_nsight(report(tmp_path / "r.sqlite"), fallback_rank=3)
    assert (trace.rank, sorted(trace.steps)) == (3, [3, 4, 5, 6])
    assert trace.steps[4] == pytest.approx((1000.110, 1000.210))  # from the first kernel, 10 ms after the range
    (share,) = shares_of(trace, [4])
    assert share.seconds == pytest.approx(0.1)
    assert share.exposed == pytest.approx(
        {"update": 0.010, "backward": 0.040, "forward": 0.030, "aggregate": 0.020, "h2d": 0.0}, abs=1e-6)  # fmt: skip
    assert share.communication_s == pytest.approx(0.050)
    assert {span.source for span in trace.exchanges} == {"nsight"}


@pytest.mark.parametrize("name", ["iteration_{step}", "ProfilerStep#{step}", "train_step", "Iter: {step}"])
def test_names_of_steps(tmp_path: Path, name: str) -> None:
    (trace,) = scan_nsight(report(tmp_path / "r.sqlite", name=name))
    assert sorted(trace.steps) == ([0, 1, 2, 3] if "{" not in name else [3, 4, 5, 6])


def test_processes_of_one_report_are_ranks_and_a_run_is_stored(tmp_path: Path) -> None:
    path = report(tmp_path / "job.sqlite", processes=2)
    done = CliRunner().invoke(program, ["import", str(path), "--store", str(tmp_path / "s")])
    assert done.exit_code == 0, done.output
    assert "job: 2 ranks, 4 steps, nsight" in done.output
    (run,) = Store(tmp_path / "s").read_all()
    assert (run.ranks, run.facts["source"]) == (2, "nsight")


def damaged(path: Path, kind: str) -> Path:
    """A report that must be refused."""
    if kind == "one step":
        return report(path, steps=1)
    report(path, phases=kind != "no phases", name="epoch" if kind == "no steps" else "step {step}")
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:9000])
        return path
    db = sqlite3.connect(path)
    changes = {
        "no kernels": "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "view": "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO k; CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH "
                "RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x FROM c) SELECT x AS start FROM c",
        "function": "DROP TABLE StringIds; CREATE TABLE StringIds (id INTEGER, value TEXT AS (hex(zeroblob(9))))",
        "negative": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start - 7",
        "text": "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'",
        "column": "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN shortName",
        "clock": "UPDATE NVTX_EVENTS SET start = start + 90000000000, end = end + 90000000000 WHERE text >= 'step 5';"
                 "UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET start = start + 90000000000 WHERE start >= 1000200000000;"
                 "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start + 90000000000, end = end + 90000000000 "
                 "WHERE start > 1000205000000",
    }  # fmt: skip
    db.executescript(changes.get(kind, ""))
    db.commit()
    db.close()
    return path


@pytest.mark.parametrize(("kind", "says", "hint"), [
    ("no kernels", "no kernel of a device", "--trace=cuda,nvtx"),
    ("no steps", "no NVTX range of a step", "range_push"),
    ("one step", "1 NVTX range of a step", "range_push"),
    ("no phases", "tells backward from forward", "--pytorch=autograd-nvtx"),
    ("truncated", "no sound SQLite report", "nsys export --type sqlite"),
    ("view", "no kernel of a device", "--trace=cuda,nvtx"),
    ("function", "computed columns", "nsys export"),
    ("negative", "lasts from", "nsys export"),
    ("text", "no event", "nsys export"),
    ("column", "no column shortName", "nsys export"),
    ("clock", "the clock jumps", "without setting the clock"),
])  # fmt: skip
def test_what_is_refused(tmp_path: Path, kind: str, says: str, hint: str) -> None:
    path = damaged(tmp_path / "r.sqlite", kind)
    with pytest.raises(InputError, match=says) as refused:
        scan_nsight(path)
    assert hint in str(refused.value.hint)
    done = CliRunner().invoke(program, ["import", str(path), "--store", str(tmp_path / "s")])
    assert isinstance(done.exception, InputError)
    assert not (tmp_path / "s").exists()


def test_a_report_is_only_read(tmp_path: Path) -> None:
    path = report(tmp_path / "r.sqlite")
    before = path.read_bytes()
    path.chmod(0o444)
    scan_nsight(path)
    assert (path.read_bytes(), sorted(one.name for one in tmp_path.iterdir())) == (before, ["r.sqlite"])


def test_graphs_without_kernels_are_refused(tmp_path: Path) -> None:
    """As nsys records them by default: one event for all kernels of a launch."""
    path = report(tmp_path / "r.sqlite")
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INT, end INT, deviceId INT, graphId INT)")
    db.commit()
    assert len(scan_nsight(path)) == 1
    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (?, ?, 0, 1)", (10**12, 10**12 + 100 * MS))
    db.commit()
    db.close()
    with pytest.raises(InputError, match=r"0\.1 s run as CUDA graphs") as found:
        scan_nsight(path)
    assert "--cuda-graph-trace=node" in str(found.value)


def test_an_empty_text_stands_for_a_registered_one(tmp_path: Path) -> None:
    path = report(tmp_path / "r.sqlite")
    db = sqlite3.connect(path)
    db.execute("UPDATE NVTX_EVENTS SET text = '' WHERE text IS NULL")
    db.commit()
    db.close()
    (trace,) = scan_nsight(path)
    assert {"forward", "backward", "update"} <= set(trace.covers)
