"""Traces: spans go out and come back equal, and other tools' own readers agree."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InputError
from paceline.measurements.run import PHASES, Span
from paceline.measurements.trace.chakra import read_chakra, to_chakra
from paceline.measurements.trace.chrome import read_chrome, to_chrome
from paceline.measurements.trace.horovod import read_horovod, to_horovod
from paceline.measurements.trace.kineto import phase_of, read_kineto, to_kineto

TIMES = st.floats(min_value=0, max_value=1e4, allow_nan=False)
ZERO = st.just(0)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)


def spans(source, *, phases=PHASES, ranks=ZERO, names=NAMES):
    one = st.builds(
        Span,
        rank=ranks,
        step=st.integers(0, 9),
        phase=st.sampled_from(phases),
        name=names,
        start_s=TIMES,
        seconds=TIMES,
        size_bytes=st.none() | st.integers(0, 2**40),
        source=st.just(source),
    )
    return st.lists(one, max_size=12)


@settings(max_examples=40, deadline=None)
@given(spans("paceline", ranks=st.integers(0, 3)))
def test_chrome_round_trip(tmp_path_factory, given_spans):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    path.write_text(json.dumps(to_chrome(given_spans)))
    assert read_chrome(path) == tuple(given_spans)


@settings(max_examples=40, deadline=None)
@given(spans("kineto"))
def test_kineto_round_trip(tmp_path_factory, given_spans):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    path.write_text(json.dumps(to_kineto(given_spans, rank=0)))
    assert read_kineto(path) == tuple(given_spans)


@settings(max_examples=40, deadline=None)
@given(spans("chakra", ranks=st.just(3)))
def test_chakra_round_trip(tmp_path_factory, given_spans):
    path = tmp_path_factory.mktemp("trace") / "t.et"
    path.write_bytes(to_chakra(given_spans, rank=3))
    assert read_chakra(path) == tuple(sorted(given_spans, key=lambda span: (span.step, span.start_s)))


WORDS = st.from_regex(r"\A[a-z.0-9]{1,12} [A-Z_]{1,12}\Z")


@settings(max_examples=40, deadline=None)
@given(spans("horovod", phases=("aggregate",), names=WORDS))
def test_horovod_round_trip(tmp_path_factory, given_spans):
    path = tmp_path_factory.mktemp("trace") / "t.json"
    path.write_text(json.dumps(to_horovod(given_spans)))
    found = read_horovod(path)
    assert sorted((s.name, s.step, str(s.size_bytes)) for s in found) == sorted(
        (s.name, s.step, str(s.size_bytes)) for s in given_spans
    )
    for one, other in zip(sorted(s.start_s for s in found), sorted(s.start_s for s in given_spans), strict=True):
        assert one == pytest.approx(other, abs=1e-9)


def test_horovod_timeline_without_its_end(tmp_path):
    path = tmp_path / "timeline.json"
    path.write_text(
        '[\n{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "grad"}},\n'
        '{"ph": "B", "name": "ALLREDUCE", "ts": 100, "pid": 1},\n{"ph": "E", "ts": 350, "pid": 1},\n'
    )
    (span,) = read_horovod(path)
    assert (span.name, span.phase, span.seconds) == ("grad ALLREDUCE", "aggregate", pytest.approx(250e-6))


def test_a_profile_of_pytorch_is_sorted_into_phases_and_steps(tmp_path):
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 1000, "dur": 500},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 1500, "dur": 500},
        {"ph": "X", "cat": "cpu_op", "name": "aten::conv2d", "ts": 1010, "dur": 40},
        {"ph": "X", "cat": "cpu_op", "name": "autograd::engine::evaluate_function: AddBackward0", "ts": 1600, "dur": 9},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "ts": 1700, "dur": 80},
        {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#SGD.step", "ts": 1800, "dur": 10},
        {"ph": "i", "name": "mark", "ts": 1},
    ]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 1}, "traceEvents": events}))
    found = read_kineto(path)
    assert [span.phase for span in found] == ["forward", "backward", "aggregate", "update"]
    assert [span.step for span in found] == [0, 1, 1, 1]
    assert {span.rank for span in found} == {1}
    assert [span.start_s for span in found] == pytest.approx([10e-6, 600e-6, 700e-6, 800e-6])
    assert [span.seconds for span in found] == pytest.approx([40e-6, 9e-6, 80e-6, 10e-6])
    assert phase_of("nccl:all_reduce") == "aggregate"


def chakra_node_class():
    """Chakra's Node as Google's own library reads it, with the fields of et_def.proto that are written here."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    attribute = file.message_type.add(name="AttributeProto")
    for name, number, type_ in (
        ("name", 1, kind.TYPE_STRING),
        ("double_val", 3, kind.TYPE_DOUBLE),
        ("int64_val", 9, kind.TYPE_INT64),
        ("bool_val", 27, kind.TYPE_BOOL),
        ("string_val", 29, kind.TYPE_STRING),
    ):
        attribute.field.add(name=name, number=number, type=type_, label=kind.LABEL_OPTIONAL)
    node = file.message_type.add(name="Node")
    for name, number, type_, label in (
        ("id", 1, kind.TYPE_UINT64, kind.LABEL_OPTIONAL),
        ("name", 2, kind.TYPE_STRING, kind.LABEL_OPTIONAL),
        ("type", 3, kind.TYPE_INT32, kind.LABEL_OPTIONAL),
        ("ctrl_deps", 4, kind.TYPE_UINT64, kind.LABEL_REPEATED),
        ("start_time_micros", 6, kind.TYPE_UINT64, kind.LABEL_OPTIONAL),
        ("duration_micros", 7, kind.TYPE_UINT64, kind.LABEL_OPTIONAL),
    ):
        node.field.add(name=name, number=number, type=type_, label=label)
    node.field.add(
        name="attr", number=10, type=kind.TYPE_MESSAGE, label=kind.LABEL_REPEATED, type_name=".et.AttributeProto"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("et.Node"))


def test_protobufs_own_reader_understands_chakra_nodes():
    from paceline.measurements.trace.wire import read_varint

    data = to_chakra(
        [Span(0, 0, "forward", "conv1", 0.001, 0.002), Span(0, 0, "aggregate", "bucket", 0.004, 0.003, 4096)], rank=0
    )
    nodes, at = [], 0
    while at < len(data):
        size, at = read_varint(data, at)
        nodes.append(chakra_node_class().FromString(data[at : at + size]))
        at += size
    assert [(node.name, node.type) for node in nodes[1:]] == [("conv1", 4), ("bucket", 7)]
    assert nodes[2].start_time_micros == 4000
    attributes = {item.name: item for item in nodes[2].attr}
    assert attributes["comm_size"].int64_val == 4096
    assert attributes["seconds"].double_val == 0.003


@pytest.mark.parametrize("reader", [read_chrome, read_kineto, read_horovod, read_chakra])
def test_what_is_no_trace_is_one_clear_error(tmp_path, reader):
    path = tmp_path / "broken"
    path.write_bytes(b"\xff\xffnot a trace")
    with pytest.raises(InputError, match="broken"):
        reader(path)
    with pytest.raises(InputError, match="nowhere"):
        reader(tmp_path / "nowhere")
