"""What cannot be imported is one clear error: exit code 2, no traceback, and an untouched store."""

from __future__ import annotations

import bz2
import gzip
import json
import os
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
from paceline.measurements.store import Store
from paceline.measurements.trace.job import read_job
from tests.unit.imports.generated import LIGHTNING, MEGATRON, NCCL_TEXT, TITAN, dump, entry, event, kineto, step_events
from tests.unit.imports.test_records import inspected

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


def elsewhere(document: dict[str, Any]) -> None:
    for one in document["traceEvents"]:
        one["ts"] += 0 if one["name"].startswith("ProfilerStep") else 1e9


def pairs(length: float) -> bytes:
    """Three steps of one forward pass each, as events of begin and end."""
    begin = [
        {"ph": "B", "name": "forward", "cat": "forward", "ts": 9 * s, "pid": 0, "args": {"step": s}} for s in range(3)
    ]
    end = [{"ph": "E", "ts": one["ts"] + length, "pid": 0} for one in begin]
    return json.dumps([event for both in zip(begin, end, strict=True) for event in both]).encode()


def packed(content: bytes, times: int = 1) -> bytes:
    return packed(gzip.compress(content), times - 1) if times else content


HF_METRICS = b"{'loss': 2.5, 'learning_rate': 5e-05, 'train_samples_per_second': 87.6, 'epoch': 0.1}\n" * 5


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
    "operations of XLA": ({"t.json": json.dumps({"traceEvents": [
        {"ph": "M", "pid": 3, "name": "process_name", "args": {"name": "/device:TPU:0"}},
        {"ph": "X", "pid": 3, "tid": 1, "ts": 1.0, "dur": 5.0, "name": "fusion.1"}]}).encode()}, "XLA.*paceline watch"),
    "a graph without times": ({"t.json": b'{"schema": "1.1.1-chakra.0.0.4", "nodes": [{"id": 1, "name": "a"}]}'},
                              "without durations.*torch.profiler"),
    "text that is no JSON": ({"t.json": b"{traceEvents: []}"}, "damaged"),
    "binary": ({"t.bin": bytes(range(256)) * 40}, "t.bin"),
    "time as text": ({"t.json": first(ts="soon")}, r"\.ts: got 'soon', expected a number of microseconds"),
    "time that is not finite": ({"t.json": SOUND.replace(b'"ts": 1000000004000.0', b'"ts": NaN', 1)}, r"\.ts: got nan"),
    "infinite duration": ({"t.json": SOUND.replace(b'"dur": 30000.0', b'"dur": 1e999', 1)}, r"\.dur: got inf"),
    "negative duration": ({"t.json": first(dur=-5)}, r"\.dur: got -5, expected a number of microseconds, 0 or more"),
    "no durations": ({"t.json": trace(lambda d: [e.pop("dur") for e in d["traceEvents"]])}, "3 takes no time"),
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
    "log with one step": ({"a.log": TITAN.split("\n")[2].encode()}, "timed steps of torchtitan"),
    "table without columns": ({"t.parquet": operations(duration=None)}, "lacks the columns duration"),
    "table with text for a stage": ({"t.parquet": operations(stage=["a", "b"])}, "stage: got string"),
    "table with a negative duration": ({"t.parquet": operations(duration=[1.0, -2.0])}, "row 1 lasts -2 s"),
    "table with a time that is not finite": ({"t.parquet": operations(start_ts=[float("nan"), 0.0])}, "not finite"),
    "table without times": ({"t.parquet": operations(duration=[0.0, 0.0])}, "step 0 of rank 0 takes no time"),
    "table with an unknown operation": ({"t.parquet": operations(optype=[None, "a"])}, "optype: 1 missing"),
    "metrics of HF Trainer": ({"a.log": HF_METRICS}, "5 lines of metrics of HF Trainer.*disable_tqdm=False"),
    "metrics as JSON": ({"a.log": HF_METRICS.replace(b"'", b'"')}, "5 lines of metrics of HF Trainer"),
    "metrics after other lines": ({"a.log": b"Starting\n" + HF_METRICS}, "5 lines of metrics of HF Trainer"),
    "compressed too often": ({"t.gz": packed(SOUND, 4)}, "compressed more than 3 times.*gunzip"),
    "another compression": ({"t.json.bz2": bz2.compress(SOUND)}, "packed by bzip2.*unpack it first"),
    "an archive": ({"t.zip": b"PK\x03\x04" + SOUND}, "packed by zip"),
    "a mark of UTF-8 alone": ({"t.json": b"\xef\xbb\xbf \n"}, "t.json is empty"),
    "report of Nsight Systems itself": ({"r.nsys-rep": b"\x07NVIDIA Nsight"}, "nsys export --type sqlite"),
    "zeros": ({"t.json": bytes(5000)}, "no file that `import` knows"),
    "something after the document": ({"t.json": SOUND + SOUND}, "expected nothing after the trace"),
    "number of a step in other digits": ({"t.json": SOUND.replace(b"Step#3", rb"Step#\u00b2")}, "no mark of a step"),
    "operators outside of the steps": ({"t.json": trace(elsewhere)}, "nothing that rank 0 did lies within its steps"),
    "end before its begin": ({"t.json": pairs(-5)}, "'forward' begins at 0.0 s and lasts -5e-06 s"),
    "compressed SQLite": ({"r.sqlite.gz": packed(b"SQLite format 3\0" + bytes(500))}, "compressed SQLite.*gunzip"),
    "files of two kinds": ({"a.json": SOUND, "readme.txt": b"hello\n"}, "a.json is of kind trace, and .*readme.txt is"),
    "memo without such a number": ({"dump_0": b"\x80\x04h\x05."}, "takes number 5 of its memo"),
    "rank of a dump as text": ({"dump_0": pickle.dumps({**dump([]), "rank": "x"})}, "rank: got x, .*BUFFER_SIZE"),
    "test of a size beyond all": ({"o.txt": NCCL_TEXT.replace(" 268435456 ", f" {9**40} ").encode()}, f"size {9**40}"),
    "test without its results": ({"o.json": b'{"nccl_version": 1, "bus_bw": 2}'}, "it has no field 'results'"),
    "Inspector of a job beyond all": ({"a.log": inspected(1, 1, 9).replace('ranks": 3', f'ranks": {9**10}').encode()},
                                      f"rank 1 of {9**10}"),
    "steps beyond all": ({"a.log": LIGHTNING.replace("/100", "/999999999").replace("Epoch 0", "Epoch 9999").encode()},
                         "no file that `import` knows"),
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


@pytest.mark.parametrize("kind", ["nsight", "operations", "log", "chakra"])
def test_a_pipe_is_refused_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = CliRunner().invoke(
        program, ["import", str(tmp_path / "pipe"), "--kind", kind, "--store", str(tmp_path / "s")]
    )
    assert isinstance(done.exception, InputError)
    assert "not a regular file" in str(done.exception)


UNUSUAL: dict[str, Files] = {
    "compressed twice": {"t.json.gz": packed(SOUND, 2)},
    "UTF-16": {"t.json": SOUND.decode().encode("utf-16")},
    "UTF-16 without a mark": {"t.json": SOUND.decode().encode("utf-16-le")},
    "UTF-16, the high byte first": {"t.json": SOUND.decode().encode("utf-16-be")},
    "UTF-32": {"t.json": SOUND.decode().encode("utf-32")},
    "a mark inside gzip": {"t.json.gz": packed(b"\xef\xbb\xbf" + SOUND)},
    "times in nanoseconds for display, after a base": {"t.json": trace(lambda d: (
        d.update(displayTimeUnit="ns", baseTimeNanoseconds=1712000000 * 10**9),
        [e.update(ts=e["ts"] - 1e12) for e in d["traceEvents"]]))},
    "very long fields": {"t.json": b"{%s,%s" % (b",".join(b'"%d": "%s"' % (n, bytes(10_000_000).replace(b"\0", b"a"))
                                                          for n in range(5)), SOUND[1:])},
}  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_files_of_a_sound_trace_give_the_same_steps(tmp_path: Path, name: str) -> None:
    for file, content in UNUSUAL[name].items():
        (tmp_path / file).write_bytes(content)
    job = read_job([tmp_path / file for file in UNUSUAL[name]])
    assert job.steps == (3, 4, 5, 6)
    assert [round(1e3 * one.seconds, 3) for one in job.shares] == [100.0] * 4
    assert {round(1e3 * one.exposed["backward"], 3) for one in job.shares} == {40.0}


@pytest.mark.parametrize(("option", "value"), [
    ("--network", ""), ("--network", "a\nb"), ("--network", "n" * 201), ("--framework", ""), ("--framework", "pytorch"),
    ("--name", "a/b"), ("--cluster", "nowhere"),
])  # fmt: skip
def test_labels_that_mean_nothing_are_refused(tmp_path: Path, option: str, value: str) -> None:
    (tmp_path / "t.json").write_bytes(SOUND)
    given = ["import", str(tmp_path / "t.json"), option, value, "--store", str(tmp_path / "s")]
    assert isinstance(CliRunner().invoke(program, given).exception, InputError)
    assert not (tmp_path / "s" / "runs").exists()


def test_begin_and_end_of_a_phase_are_one_span(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(pairs(4))
    job = read_job([tmp_path / "t.json"])
    assert (job.format, [round(1e6 * one.exposed["forward"], 3) for one in job.shares]) == ("chrome", [4.0] * 3)


@pytest.mark.parametrize(("name", "content", "says"), [
    ("a.log", TITAN.encode("utf-16"), "3 timed steps of torchtitan"),
    ("a.log.gz", packed(TITAN.encode(), 2), "3 timed steps of torchtitan"),
    ("a.log", b"x" * 5_000_000 + b"\n" + TITAN.encode(), "3 timed steps of torchtitan"),
    ("a.log", MEGATRON.replace("size:    64", "size: " + "9" * 400).encode(), "2 timed steps of megatron"),
    ("o.txt.gz", packed(NCCL_TEXT.encode()), "1.00 GiB"),
    ("o.txt", NCCL_TEXT.encode("utf-16"), "1.00 GiB"),
    ("dump_0.gz", packed(pickle.dumps(dump([entry(1, state="started")], {"0": "[0]"}))), "hang in nccl:all_reduce 1"),
])  # fmt: skip
def test_other_records_may_be_compressed_and_of_other_encodings(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(content)
    done = CliRunner().invoke(program, ["import", str(tmp_path / name), "--store", str(tmp_path / "s")])
    assert done.exit_code == 0, done.exception
    assert says in done.output


def test_an_mfu_above_the_peak_is_left_out_and_explained(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(TITAN.replace("10.27%", "310.27%"))
    done = CliRunner().invoke(program, ["import", str(path), "--store", str(tmp_path / "s"), "--json"])
    document = json.loads(done.output)["log"]
    assert [step["mfu"] for step in document["steps"]] == [None] * 3
    assert "error: the log states an MFU of 310.3 % in step 2" in document["notes"][0]
    (run,) = Store(tmp_path / "s").read_all()
    assert "mfu" not in run.facts
    path.write_text(TITAN.replace("10.27%", "100.00%"))
    done = CliRunner().invoke(program, ["import", str(path), "--store", str(tmp_path / "s")])
    assert "MFU 10.3 %" in done.output
    assert "error" not in done.output


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
