"""What cannot be imported is one clear error: exit code 2, no traceback, and an untouched store."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from paceline.cli import program
from paceline.errors import InputError
from paceline.measurements.trace.job import read_job
from tests.unit.imports.generated import NCCL_TEXT, TITAN, dump, entry, event, kineto, step_events

Files = dict[str, bytes]


def trace(change: Callable[[dict[str, Any]], object] = lambda document: None, rank: int = 0, world: int = 1) -> bytes:
    """A sound profile, changed."""
    document = kineto(rank, world)
    change(document)
    return json.dumps(document).encode()


def without(word: str) -> bytes:
    return trace(lambda d: d.update(traceEvents=[e for e in d["traceEvents"] if word not in e["name"]]))


def moved(seconds: float) -> bytes:
    """From the third step on, the clock is ahead by so much."""

    def change(document: dict[str, Any]) -> None:
        for one in document["traceEvents"]:
            one["ts"] += 1e6 * seconds if one["ts"] >= 1e12 + 2e5 else 0

    return trace(change)


def first(**fields: Any) -> bytes:
    return trace(lambda d: d["traceEvents"][3].update(fields))


def operations(**columns: Any) -> bytes:
    """Two operations of one rank, with columns replaced; None leaves one out."""
    table = {"dp_rank": [0, 0], "stage": [0, 0], "rank": [0, 0], "step": [0, 1], "optype": ["forward-compute"] * 2,
             "start_ts": [0.0, 0.0], "duration": [1.0, 1.0]}  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: value for name, value in {**table, **columns}.items() if value is not None}), sink)
    return bytes(sink.getvalue().to_pybytes())


def nested(depth: int) -> bytes:
    return b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * depth + b"]" * depth + b"}]}"


def one_step(document: dict[str, Any]) -> None:
    document["traceEvents"] = step_events(3)


def no_marks(document: dict[str, Any]) -> None:
    document["traceEvents"] = [event("aten::add", 0, 5), event("autograd::engine::evaluate_function: A", 5, 9)]


def only_kernels(document: dict[str, Any]) -> None:
    marks = [one for one in document["traceEvents"] if one["name"].startswith("ProfilerStep")]
    document["traceEvents"] = [*marks, event("sgemm", 1e12, 1e12 + 5, "kernel")]


class Harmful:
    def __reduce__(self) -> Any:
        return eval, ("1/0",)


SOUND = trace()
CASES: dict[str, tuple[Files, str]] = {
    "a file that is not there": ({}, "No such file"),
    "empty": ({"t.json": b""}, "t.json"),
    "truncated document": ({"t.json": SOUND[: len(SOUND) // 2]}, "truncated"),
    "truncated gzip": ({"t.json.gz": gzip.compress(SOUND)[:-30]}, "truncated"),
    "damaged gzip": ({"t.json.gz": gzip.compress(SOUND)[:40] + b"x" * 500}, "damaged"),
    "no events": ({"t.json": b'{"schemaVersion": 1}'}, "no trace events"),
    "events that are no list": ({"t.json": b'{"schemaVersion": 1, "traceEvents": 5}'}, "no trace events"),
    "text that is no JSON": ({"t.json": b"{traceEvents: []}"}, "damaged"),
    "binary": ({"t.bin": bytes(range(256)) * 40}, "t.bin"),
    "time as text": ({"t.json": first(ts="soon")}, r"\.ts: got 'soon', expected a number of microseconds"),
    "time that is not finite": ({"t.json": SOUND.replace(b'"ts": 1000000004000.0', b'"ts": NaN', 1)}, r"\.ts: got nan"),
    "infinite duration": ({"t.json": SOUND.replace(b'"dur": 30000.0', b'"dur": 1e999', 1)}, r"\.dur: got inf"),
    "negative duration": ({"t.json": first(dur=-5)}, r"\.dur: got -5, expected a number of microseconds, 0 or more"),
    "no durations": ({"t.json": trace(lambda d: [e.pop("dur") for e in d["traceEvents"]])}, "3 takes no time"),
    "text in another encoding": ({"t.json": SOUND.decode().encode("utf-16")}, "expected JSON in UTF-8"),
    "arguments as a list": ({"t.json": first(args=[1])}, "args"),
    "event without a name": ({"t.json": trace(lambda d: d["traceEvents"][3].pop("name"))}, "name"),
    "deep nesting": ({"t.json": nested(100_000)}, "nested"),
    "one step only": ({"t.json": trace(one_step)}, "only one step.*schedule"),
    "no step marks": ({"t.json": trace(no_marks)}, "no mark of a step.*prof.step"),
    "step marked twice": ({"t.json": trace(lambda d: d["traceEvents"].append(step_events(4)[0]))}, "marked twice"),
    "no backward annotations": ({"t.json": without("autograd")}, "no backward pass.*ProfilerActivity.CPU"),
    "kernels without the host": ({"t.json": trace(only_kernels)}, "ProfilerActivity.CPU"),
    "clock back": ({"t.json": moved(-0.15)}, "clock jumps by -0.150 s between step 4 and step 5"),
    "clock ahead": ({"t.json": moved(3600.0)}, r"clock jumps by \+3600.000 s between step 4 and step 5"),
    "missing ranks": ({"t-rank0.json": trace(rank=0, world=4), "t-rank2.json": trace(rank=2, world=4)},
                      "2 of 4 ranks are missing: 1, 3.*--partial"),
    "one rank twice": ({"a.json": SOUND, "b.json": SOUND}, "rank 0 has two traces.*distributedInfo"),
    "two jobs": ({"a.json": trace(world=2), "b.json": trace(rank=1, world=3)}, "jobs of 2 and 3 ranks"),
    "rank beyond the job": ({"a.json": trace(rank=5, world=2)}, "rank 5 of a job of 2"),
    "rank as text": ({"t.json": trace(lambda d: d["distributedInfo"].update(rank="first"))}, "distributedInfo.rank"),
    "other steps on each rank": ({"a.json": trace(world=2), "b.json": trace(
        lambda d: [e.update(name=e["name"].replace("#", "#10"), ts=e["ts"]) for e in d["traceEvents"]
                   if e["name"].startswith("ProfilerStep")], 1, 2)}, "0 steps in common.*schedule"),
    "two tools": ({"a.json": SOUND, "b.json": b'[{"ph": "B", "name": "A", "ts": 1, "pid": 1}]'}, "different tools"),
    "events of an unknown tool": ({"t.json": json.dumps([{"ph": "X", "name": "a", "ts": 1, "dur": 2}] * 3).encode()},
                                  "rank 0 has 1 step.*ProfilerStep"),
    "events without phases": ({"t.json": json.dumps([{**event("a", 9 * s, 9 * s + 2, "b", step=s), "pid": 0}
                                                     for s in range(3)]).encode()}, "no event of rank 0 belongs"),
    "malicious pickle": ({"dump_0": pickle.dumps(Harmful())}, "would import builtins.eval, which was not executed"),
    "truncated pickle": ({"dump_0": pickle.dumps(dump([entry(1)]))[:-20]}, "no sound dump"),
    "pickle of something else": ({"dump_0": pickle.dumps([1, 2])}, "no list of `entries`"),
    "entries of wrong types": ({"dump_0": pickle.dumps({"entries": [{"collective_seq_id": -1}]})}, r"entries\[0\]"),
    "two dumps of a rank": ({"a_1": pickle.dumps(dump([])), "b_1": pickle.dumps(dump([]))}, "are of one rank"),
    "test of one rank": ({"out.txt": NCCL_TEXT.replace("#  Rank  1", "# rank 1").encode()}, "measured with 1 rank"),
    "test with a negative time": ({"out.txt": NCCL_TEXT.replace(" 20.00 ", "-20.00 ").encode()}, "size 1048576"),
    "test without rows": ({"out.txt": NCCL_TEXT.split("     1048576")[0].encode()}, "no row with a size"),
    "table of something else": ({"a.csv": b"gpus,speed\n1,360\n"}, "no file that `import` knows.*nccl-tests"),
    "log of an unknown program": ({"a.log": b"epoch 1 done\n" * 50}, "a.log"),
    "log with one step": ({"a.log": TITAN.split("\n")[2].encode()}, "timed step of torchtitan"),
    "table without columns": ({"t.parquet": operations(duration=None)}, "lacks the columns duration"),
    "table with text for a stage": ({"t.parquet": operations(stage=["a", "b"])}, "stage: got string"),
    "table with a negative duration": ({"t.parquet": operations(duration=[1.0, -2.0])}, "row 1 lasts -2 s"),
    "table with a time that is not finite": ({"t.parquet": operations(start_ts=[float("nan"), 0.0])}, "not finite"),
    "truncated table": ({"t.parquet": operations()[:200]}, "not a readable table"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_imported_is_one_clear_error(tmp_path: Path, name: str) -> None:
    files, expected = CASES[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    paths = [str(tmp_path / file) for file in files] or [str(tmp_path / "nowhere.json")]
    done = CliRunner().invoke(program, ["import", *paths, "--store", str(tmp_path / "store")])
    assert isinstance(done.exception, InputError), done.exception
    assert done.exception.exit_code == 2
    message = " ".join(str(done.exception).split())
    assert re.search(expected, message), message
    assert len(message) < 1500
    assert not (tmp_path / "store" / "runs").exists()


def test_a_trace_of_a_job_that_is_said_to_be_huge_costs_no_more_memory_than_others(tmp_path: Path) -> None:
    peaks = []
    for world in (2, 10**6):
        (tmp_path / "t.json").write_bytes(trace(rank=0, world=world))
        tracemalloc.start()
        with pytest.raises(InputError, match=f"{world - 1} of {world} ranks are missing: 1"):
            read_job([tmp_path / "t.json"])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]
