"""Readers of traces: streams in bounded memory, unions of intervals, and the shares of every rank and step."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.api import profile_of_run
from paceline.cli import program
from paceline.errors import InputError, PacelineError
from paceline.measurements.trace import intervals, wire
from paceline.measurements.trace.formats import read_trace
from paceline.measurements.trace.intervals import Gathering, divide
from paceline.measurements.trace.job import rank_in_name, read_job
from paceline.measurements.trace.profiled import scan_kineto
from paceline.measurements.trace.stream import EventStream
from paceline.model.profiles import _bucket_rows, _layers
from tests.unit.imports.generated import event, kineto, step_events, write_ranks

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(JSON, max_size=6), st.dictionaries(st.text(), JSON, max_size=3), st.integers(1, 40), st.booleans())
def test_a_stream_equals_the_parsed_document(tmp_path_factory, events, head, chunk, packed):  # type: ignore[no-untyped-def]
    head.pop("traceEvents", None)
    path = tmp_path_factory.mktemp("t") / "t.json"
    text = json.dumps({**head, "traceEvents": events, "after": 12345}).encode()
    path.write_bytes(gzip.compress(text) if packed else text)
    stream = EventStream(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.measurements.trace.stream.CHUNK", chunk)
        assert list(stream) == events
    assert stream.head == {**head, "after": 12345}


def test_a_list_may_lack_its_end_and_a_document_may_not(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('[{"a": 1},\n {"a": 2},\n')
    assert list(EventStream(path)) == [{"a": 1}, {"a": 2}]
    path.write_text('{"traceEvents": [{"a": 1}, {"a": 2}')
    with pytest.raises(InputError, match="truncated"):
        list(EventStream(path))
    path.write_text('[{"a": 1}, {"a": ')
    with pytest.raises(InputError, match="truncated"):
        list(EventStream(path))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=40), st.integers(1, 7))
def test_a_gathering_is_the_union(spans, pending):  # type: ignore[no-untyped-def]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "PENDING", pending)
        gathering = Gathering()
        for begin, length in spans:
            gathering.add(float(begin), float(begin + length))
        cover = gathering.cover()
    covered = {tick for begin, length in spans for tick in range(begin, begin + length)}
    assert cover.seconds == len(covered)
    ticks = np.arange(70) + 0.5
    assert set(np.flatnonzero(cover.holds(ticks)).tolist()) == covered
    inner = cover.within(10.0, 20.0)
    assert inner.seconds == len([tick for tick in covered if 10 <= tick < 20])


def test_very_many_intervals_are_bounded_and_the_closed_gaps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "MOST", 100)
    monkeypatch.setattr(intervals, "PENDING", 50)
    gathering = Gathering()
    for number in range(400):
        gathering.add(10.0 * number, 10.0 * number + (9.0 if number % 2 else 5.0))
    cover = gathering.cover()
    assert cover.starts.size <= 100
    assert gathering.closed_s > 0
    assert cover.seconds == pytest.approx(200 * 9.0 + 200 * 5.0 + gathering.closed_s)


def test_a_window_is_divided_by_precedence() -> None:
    covers = {name: _cover(*spans) for name, spans in {"a": [(0, 4)], "b": [(2, 6), (8, 9)], "c": [(5, 20)]}.items()}
    division = divide(covers, ("a", "b", "c"), 1.0, 12.0)
    assert division.seconds == {"a": 3.0, "b": 3.0, "c": 5.0}
    assert division.pieces == (("a", 1.0, 4.0), ("b", 4.0, 6.0), ("c", 6.0, 8.0), ("b", 8.0, 9.0), ("c", 9.0, 12.0))
    assert divide(covers, ("a",), 30.0, 31.0).seconds == {"a": 0.0}


def _cover(*spans: tuple[float, float]) -> intervals.Cover:
    gathering = Gathering()
    for begin, end in spans:
        gathering.add(begin, end)
    return gathering.cover()


def test_the_shares_of_every_rank_and_step_are_those_of_the_trace(tmp_path: Path) -> None:
    job = read_job(write_ranks(tmp_path))
    assert (job.format, job.ranks, job.steps) == ("kineto", (0, 1), (3, 4, 5, 6))
    for one in job.shares:
        shown = {phase: round(1e3 * seconds, 3) for phase, seconds in one.exposed.items()}
        assert shown == {"io": 4.0, "forward": 30.0, "backward": 40.0, "aggregate": 15.0, "update": 5.0}
        assert [round(1e3 * value, 3) for value in (one.seconds, one.compute_s, one.communication_s, one.overlap_s,
                one.exposed_s, one.idle_s)] == [100.0, 75.0, 35.0, 20.0, 15.0, 6.0]  # fmt: skip
    exchange = next(span for span in job.spans() if span.phase == "aggregate")
    assert (exchange.size_bytes, exchange.rank, exchange.step) == (4000, 0, 3)
    assert exchange.start_s == pytest.approx(0.054)


def test_an_imported_run_is_predicted_from_its_exchanges(tmp_path: Path) -> None:
    """The only exchange stands for the only layer, which the profile of the trace has."""
    store = tmp_path / "s"
    names = list(map(str, write_ranks(tmp_path)))
    given = ["import", *names, "--name", "mine", "--batch", "16", "--cluster", "dgx-a100", "--store", str(store)]
    assert CliRunner().invoke(program, given).exit_code == 0
    profile = profile_of_run("mine", store)
    assert (profile.device, profile.batch, [layer.gradients for layer in profile.layers]) == (
        "a100-40gb",
        16,
        [(4000.0,)],
    )
    (layer,) = profile.layers
    assert [round(1e3 * value, 3) for value in (layer.forward, layer.backward, profile.update)] == [30.0, 40.0, 11.0]
    asked = ["predict", "--from", "mine", "--cluster", "dgx-a100", "--devices", "1,8", "--json", "--store", str(store)]
    done = CliRunner().invoke(program, asked)
    assert done.exit_code == 0, done.exception


@pytest.mark.parametrize(
    ("name", "says"), [("gloo:all_gather", "had shards of the layers"), ("gloo:broadcast", "sizes")]
)
def test_a_run_without_gradients_is_not_predicted(tmp_path: Path, name: str, says: str) -> None:
    for path in write_ranks(tmp_path):
        path.write_text(path.read_text().replace("gloo:all_reduce", name))
    given = ["import", *map(str, tmp_path.iterdir()), "--name", "mine", "--store", str(tmp_path / "s")]
    assert CliRunner().invoke(program, given).exit_code == 0
    with pytest.raises(PacelineError, match=says):
        profile_of_run("mine", tmp_path / "s")


def test_each_exchange_is_the_end_of_a_part_of_backward() -> None:
    """Two buckets: sent 10 and 30 ms after backward began, in both runs; the last is of the first layers."""
    sent = [
        ("r", step, "nccl:all_reduce", start, size) for step in (3, 4) for start, size in ((0.02, 100), (0.04, 300))
    ]
    unusual = [("r", step, "nccl:all_reduce", at, 7) for step in (5, 6) for at in (0.5, 0.6, 0.7)]
    rows = _bucket_rows([*sent, *unusual], begin=0.01)
    layers, ready = _layers(rows, 0.030, 0.060)
    assert [(one.name, one.gradients, round(one.backward, 4)) for one in layers] == [
        ("bucket 1", (300.0,), 0.04), ("bucket 0", (100.0,), 0.02)]  # fmt: skip
    assert ready == ("bucket 0", "bucket 1")


def test_a_slow_rank_computes_longer_and_exposes_less(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path)
    paths[1].write_text(json.dumps(kineto(1, 2, slow=10_000.0)))
    shares = [one for one in read_job(paths).shares if one.step == 3]
    assert [round(1e3 * one.exposed["backward"], 3) for one in shares] == [40.0, 50.0]
    assert [round(1e3 * one.exposed_s, 3) for one in shares] == [15.0, 5.0]


def test_kernels_belong_to_the_phase_in_which_the_host_launched_them(tmp_path: Path) -> None:
    """Kernels run 20 ms later than the host: forward 20, backward 30, update 5, exchange 25 of which 10 exposed."""
    events = []
    for number in (0, 1, 2):
        at = 1e6 + 100_000 * number
        events += [
            event(f"ProfilerStep#{number}", at, at + 100_000, "user_annotation"),
            event("autograd::engine::evaluate_function: X", at + 20_000, at + 50_000),
            event("Optimizer.step#SGD.step", at + 60_000, at + 70_000, "user_annotation"),
        ]
        for place, (launch, begin, end) in enumerate([(5, 25, 45), (30, 45, 75), (65, 85, 90)]):
            correlation = 10 * number + place + 1
            events.append(event("cudaLaunchKernel", at + 1e3 * launch, at + 1e3 * launch + 5, "cuda_runtime",
                                correlation=correlation))  # fmt: skip
            events.append(event("sgemm", at + 1e3 * begin, at + 1e3 * end, "kernel", correlation=correlation))
        given = {"In msg nelems": 10, "dtype": "BFloat16"}
        events.append(event("ncclDevKernel_AllReduce", at + 60_000, at + 85_000, "kernel", **given))
        events.append(event("Memcpy HtoD (Pageable -> Device)", at + 2_000, at + 4_000, "gpu_memcpy"))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    (one, *_) = read_job([path]).shares
    shown = {phase: round(1e3 * seconds, 3) for phase, seconds in one.exposed.items() if seconds}
    assert shown == {"h2d": 2.0, "forward": 20.0, "backward": 30.0, "update": 5.0, "aggregate": 10.0}
    assert round(1e3 * one.overlap_s, 3) == 15.0
    assert scan_kineto(path).exchanges[0].size_bytes == 20


def test_a_compressed_trace_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(json.dumps(kineto(world=1)).encode()))
    assert read_job([path]).steps == (3, 4, 5, 6)


FORMER = {"cpu_op": "Operator", "user_annotation": "Operator"}


@pytest.mark.parametrize("how", ["text", "former", "marked"])
def test_traces_of_other_versions_have_the_same_shares(tmp_path: Path, how: str) -> None:
    document = kineto(0, 1)
    usual, other = tmp_path / "usual.json", tmp_path / "other.json"
    usual.write_text(json.dumps(document))
    for one in document["traceEvents"]:
        one.update({"ts": str(one["ts"]), "dur": str(one["dur"])} if how == "text" else {})
        one.update(cat=FORMER[one["cat"]] if how == "former" else one["cat"])
    for name in ("schemaVersion", "distributedInfo") if how == "former" else ():
        del document[name]
    other.write_bytes(b"\xef\xbb\xbf" * (how == "marked") + json.dumps(document).encode())
    (expected,), (found,) = ([job.shares] for job in (read_job([usual]), read_job([other])))
    assert [one.exposed for one in found] == [one.exposed for one in expected]


def test_a_timeline_of_horovod_has_a_step_for_each_exchange_of_a_tensor(tmp_path: Path) -> None:
    events = [{"name": "process_name", "ph": "M", "pid": pid, "args": {"name": f"grad{pid}"}} for pid in (1, 2)]
    for step in range(3):
        for pid in (1, 2):
            begin = 1e5 * step + 1e4 * pid
            events += [
                {"ph": "B", "name": "ALLREDUCE", "ts": begin, "pid": pid},
                {"ph": "E", "ts": begin + 5e3, "pid": pid},
            ]
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(events)[:-1] + ",\n")
    job = read_job([path])
    assert (job.format, job.steps) == ("horovod", (0, 1))
    assert [round(one.communication_s, 6) for one in job.shares] == [0.01, 0.01]
    assert [round(one.seconds, 6) for one in job.shares] == [0.1, 0.1]  # until the next one begins
    done = CliRunner().invoke(program, ["import", str(path), "--name", "h", "--store", str(tmp_path / "s")])
    assert "10.0 ms (10.0 %)" in done.output
    shown = CliRunner().invoke(program, ["show", "h", "--store", str(tmp_path / "s")]).output
    assert "10.0 %" in shown.split("Where the step goes")[1]


def test_events_of_another_tool_have_the_phases_that_their_names_tell(tmp_path: Path) -> None:
    kinds = (("forward-compute", 0, 30), ("backward-compute", 30, 80), ("grads-reduce-scatter", 60, 95), ("gc", 95, 97))
    events = [
        {**event(kind, 1e5 * step + 1e3 * begin, 1e5 * step + 1e3 * end, kind, step=step), "pid": 0}
        for step in range(2)
        for kind, begin, end in kinds
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps(events))
    (one, _) = read_job([path]).shares
    shown = {phase: round(1e3 * seconds, 3) for phase, seconds in one.exposed.items()}
    assert shown == {"forward": 30.0, "backward": 50.0, "aggregate": 15.0, "other": 2.0}
    assert round(1e3 * one.overlap_s, 3) == 20.0


def test_ranks_are_read_from_names_where_the_trace_does_not_say_them(tmp_path: Path) -> None:
    for rank in (0, 1):
        document = kineto(rank)
        del document["distributedInfo"]
        (tmp_path / f"worker_rank_{1 - rank}.json").write_text(json.dumps(document))
    assert read_job(sorted(tmp_path.iterdir())).ranks == (0, 1)


def test_missing_ranks_are_refused_unless_a_part_is_enough(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path, world=3)
    with pytest.raises(InputError, match="1 of 3 ranks are missing: 1"):
        read_job([paths[0], paths[2]])
    job = read_job([paths[0], paths[2]], partial=True)
    assert job.ranks == (0, 2)
    assert "1 of 3 ranks" in job.notes[0]


LIMITED = """
import resource, sys
from pathlib import Path
from paceline.measurements.trace.formats import read_trace
from paceline.measurements.trace.job import rank_in_name, read_job
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[2]) << 20,) * 2)
job = read_job([Path(sys.argv[1])])
print(len(job.steps), round(sum(one.compute_s for one in job.shares), 3))
"""


@pytest.mark.full
def test_a_trace_of_100_mb_is_read_in_less_memory_than_it_has(tmp_path: Path) -> None:
    path, steps = tmp_path / "large.json", 2500
    filler = [event(f"aten::op_{'x' * 90}", 0, 1, shape=list(range(40))) for _ in range(120)]
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [')
        for number in range(3, 3 + steps):
            at = 1e12 + (number - 3) * 1e5
            inside = [{**one, "ts": at + 35_000 + 200 * place} for place, one in enumerate(filler)]
            text = json.dumps(step_events(number) + inside)[1:-1]
            file.write(("," if number > 3 else "") + text)
        file.write("]}")
    assert path.stat().st_size > 100e6
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), "300"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(steps), str(round(0.075 * steps, 3))]


def test_measured_steps_go_to_chakra_and_come_back(tmp_path: Path) -> None:
    """Phases of every step survive the round trip; what lies between the last span and the end of a step does not."""
    store = ["--store", str(tmp_path / "s"), "--json"]
    paths = [str(path) for path in write_ranks(tmp_path, steps=5)]
    call = CliRunner().invoke(program, ["import", *paths, "--name", "first", *store])
    first = json.loads(call.output)
    out = ["--to", "chakra-measured", "-o", str(tmp_path / "out")]
    assert CliRunner().invoke(program, ["export", "first", *out, *store]).exit_code == 0
    files = sorted(str(path) for path in (tmp_path / "out").glob("*/*.et"))
    assert len(files) == 2
    call = CliRunner().invoke(program, ["import", *files, "--name", "second", *store])
    assert call.exit_code == 0, call.output
    again = json.loads(call.output)
    assert [step["phases"] for step in again["steps"]] == [
        pytest.approx(step["phases"], abs=1e-9) for step in first["steps"]
    ]
    assert [s["communication_s"] for s in again["steps"]] == pytest.approx(
        [s["communication_s"] for s in first["steps"]]
    )


def _node(number: int, kind: int, *times: bytes) -> bytes:
    content = wire.number(1, number) + wire.text(2, f"node{number}") + wire.number(3, kind) + b"".join(times)
    return wire.varint(len(content)) + content


def test_a_chakra_trace_for_simulators_is_refused_and_exchanges_of_others_are_known(tmp_path: Path) -> None:
    """As its converters write them: durations in whole microseconds, no start; or by hand, with starts and no rank."""
    head = wire.varint(7) + wire.text(1, "0.0.4")
    path = tmp_path / "trace.3.et"
    path.write_bytes(head + b"".join(_node(n, kind, wire.number(7, 12)) for n, kind in enumerate((4, 7, 5), 1)))
    with pytest.raises(InputError, match="none of its 3 nodes says when it began") as found:
        read_job([path])
    assert "torch.profiler" in str(found.value)
    kinds = (4, 7, 5, 6, 2, 8, 1)
    path.write_bytes(
        head + b"".join(_node(n, k, wire.number(6, 5 + n), wire.number(7, 12)) for n, k in enumerate(kinds, 1))
    )
    phases = ["forward", "aggregate", "aggregate", "aggregate", "h2d", "io"]
    assert [(span.rank, span.phase) for span in read_trace(path, fallback_rank=3)] == [(3, phase) for phase in phases]
    assert (rank_in_name(path, 0), rank_in_name(Path("rank7.et"), 0), rank_in_name(Path("a.et"), 2)) == (3, 7, 2)
