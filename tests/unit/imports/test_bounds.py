"""Numbers of foreign files at their bounds: flight recorders, nccl-tests, the Inspector, logs of trainings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InputError
from paceline.measurements.foreign.inspector import looks_like_inspector, read_inspector
from paceline.measurements.foreign.logs import read_log
from paceline.measurements.foreign.nccl_tests import read_nccl_tests
from paceline.measurements.foreign.recorder import looks_like_dump, read_dump
from paceline.measurements.run import Span
from paceline.measurements.trace.chakra import read_chakra, to_chakra
from paceline.measurements.trace.stream import EventStream, begin_of
from tests.unit.imports.generated import dump, entry


def read(path: Path, document: Any) -> Any:
    path.write_text(json.dumps(document))
    return read_dump(path)


def test_the_rank_of_a_dump_is_in_it_or_ends_its_name(tmp_path: Path) -> None:
    document = {"entries": []}
    assert read(tmp_path / "trace_rank_12", document).rank == 12
    assert read(tmp_path / "trace_3.json", document).rank == 3
    assert read(tmp_path / "trace_3.json", {**document, "rank": 0}).rank == 0
    (tmp_path / "trace").write_text(json.dumps(document))
    assert (read_dump(tmp_path / "trace").rank, read_dump(tmp_path / "trace", fallback_rank=5).rank) == (0, 5)
    assert read(tmp_path / "trace", {**document, "rank": 2**31 - 1}).rank == 2**31 - 1
    for wrong in (True, -1, 2**31, "0"):
        with pytest.raises(InputError, match="expected the number of a rank"):
            read(tmp_path / "trace", {**document, "rank": wrong})


def test_parts_of_an_entry_are_kept_within_bounds(tmp_path: Path) -> None:
    given = {"input_sizes": [[1], [2, 3], [], [4], [5]], "profiling_name": "n" * 99}
    (found,) = read(tmp_path / "t0", dump([{**entry(4), **given}])).collectives
    assert (found.number, found.sizes) == (4, ("[1]", "[2, 3]", "[]", "[4]"))
    assert len(found.name) == 80
    for wrong in ({"input_sizes": [[1] * 10]}, {"input_sizes": [[1], [-1]]}, {"input_sizes": 7}, {"input_sizes": [7]}):
        (found,) = read(tmp_path / "t0", dump([{**entry(4), **wrong}])).collectives
        assert found.sizes == ()
    (found,) = read(tmp_path / "t0", dump([{**entry(4), "input_sizes": [[1] * 9, 7, 7, 7][:1]}])).collectives
    assert found.sizes == (str([1] * 9),)
    (found,) = read(tmp_path / "t0", dump([{**entry(4, state="started"), "retired": True, "is_p2p": True}])).collectives
    assert (found.state, found.number) == ("completed", -1)


@pytest.mark.parametrize(("group", "name"), [
    (["3", "tensor"], "tensor"), (["3", "undefined"], "3"), (["3", ""], "3"), (["3"], "3"), ([], "0"), ("7", "7"),
    (7, "7"), (["3", "data", "more"], "data"),
])  # fmt: skip
def test_a_group_has_the_name_that_people_gave_it(tmp_path: Path, group: Any, name: str) -> None:
    (found,) = read(tmp_path / "t0", dump([{**entry(1), "process_group": group}])).collectives
    assert found.group == name


def test_a_dump_is_known_by_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for content in (b'  {"entries": []}', b"\x80\x02", b"\x80\x05."):
        path.write_bytes(content)
        assert looks_like_dump(path), content
    for content in (b'{"entries": [], "traceEvents": []}', b"\x80\x06", b'{"other": 1}', b'["entries"]', b""):
        path.write_bytes(content)
        assert not looks_like_dump(path), content


def test_processes_that_each_measured_alone_are_told_how_to_join(tmp_path: Path) -> None:
    place = "#  Rank  0 Group  0 Pid   {pid} on  node{pid} device  0 [0x07] NVIDIA A100\n"
    rows = ("#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
            "     1048576        262144     float     sum      -1    100.0   10.49   10.49      0\n")  # fmt: skip
    path = tmp_path / "all_reduce_perf.txt"
    for places, hint in (("", "keep the lines"), (place.format(pid=1), "all_reduce_perf"),
                         (place.format(pid=1) + place.format(pid=2), "each process measured alone")):  # fmt: skip
        path.write_text(places + rows)
        with pytest.raises(InputError, match="a collective needs two") as refused:
            read_nccl_tests(path)
        assert (hint in str(refused.value.hint)) or places == place.format(pid=1)
    assert "alone" in str(refused.value.hint)


def line(rank: int, number: int, micros: float, **changes: Any) -> str:
    head = {"id": changes.get("id", "g"), "rank": rank, "n_ranks": changes.get("ranks", 3)}
    done = {"coll": changes.get("coll", "AllReduce"), "coll_sn": number, "coll_exec_time_us": micros,
            "coll_msg_size_bytes": changes.get("size", 1000), "coll_busbw_gbs": changes.get("bus", 2.0)}  # fmt: skip
    return json.dumps({"header": head, "metadata": {"hostname": f"n{rank}"}, "coll_perf": done}) + "\n"


def inspect(path: Path, *lines: str) -> Any:
    path.write_text("".join(lines))
    return read_inspector([path])


def test_a_collective_lasts_as_long_as_its_last_rank_stays(tmp_path: Path) -> None:
    """Own times 10, 30 and 20 us of 1,000 bytes: their median; a call without bytes or of one rank is no test."""
    calls = [line(rank, number, own + 5 * rank) for number, own in enumerate((10, 30, 20)) for rank in range(3)]
    calls += [line(0, 9, 70, size=4000, bus=3.0), line(0, 10, 0, size=8000), line(0, 11, 50, size=0)]
    calls += [line(0, 1, 40, ranks=1, id="alone"), line(0, 12, 5, coll="AllToAll")]
    found = inspect(tmp_path / "i.log", *calls)
    (test,) = found.tests
    assert [(row.size_bytes, row.seconds, row.bus_bandwidth) for row in test.sizes] == [
        (1000, pytest.approx(20e-6), 2e9), (4000, pytest.approx(70e-6), 3e9)]  # fmt: skip
    assert (test.ranks, test.hosts, found.calls, found.skipped) == (3, ("n0", "n1", "n2"), 13, ("AllToAll",))
    assert found.late is None, "three collectives are too few"
    pair = inspect(tmp_path / "i.log", line(0, 1, 40, ranks=2), line(1, 1, 50, ranks=2))
    assert [(test.ranks, test.sizes[0].seconds) for test in pair.tests] == [(2, pytest.approx(40e-6))]


@pytest.mark.parametrize(
    ("times", "count", "named"), [(10, 10, 2), (9, 9, None), (6, 11, 2), (6, 12, None), (7, 12, 2)]
)
def test_a_rank_is_late_if_it_enters_last_more_often_than_not(
    tmp_path: Path, times: int, count: int, named: int | None
) -> None:
    """Of ten collectives or more; otherwise ranks 0 and 1 enter last in turn."""
    last = [2 if number < times else number % 2 for number in range(count)]
    calls = [line(rank, number, 100 if rank == last[number] else 400 + 20 * rank)
             for number in range(count) for rank in range(3)]  # fmt: skip
    late = inspect(tmp_path / "i.log", *calls).late
    assert (late.rank if late else None) == named
    if late:
        assert (late.group, late.host, late.share, late.collectives) == ("g", "n2", times / count, count)
        assert late.wait_s == pytest.approx((400 + 420) / 2e6 - 100e-6)


def test_of_two_groups_the_one_that_loses_more_time_is_named_and_incomplete_collectives_say_nothing(
    tmp_path: Path,
) -> None:
    calls = [
        line(rank, number, 100 if rank == 1 else wait, id=group, ranks=2)
        for group, wait, count in (("a", 300, 10), ("b", 150, 20))
        for number in range(count)
        for rank in range(2)
    ]
    calls += [line(0, number, 10, id="c", ranks=2) for number in range(40)]
    late = inspect(tmp_path / "i.log", *calls).late  # 10 x 200 us is more than 20 x 50 us
    assert (late.group, late.rank, late.wait_s) == ("a", 1, pytest.approx(200e-6))


@pytest.mark.parametrize("changes", [{"size": -1}, {"bus": -1.0}, {"bus": float("inf")}, {"ranks": 1}])
def test_impossible_calls_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="line 1"):
        inspect(tmp_path / "i.log", line(1, 0, 5, **changes))
    with pytest.raises(InputError, match="line 1"):
        inspect(tmp_path / "i.log", line(1, 0, float("inf")))


def test_the_largest_call_is_read_and_a_larger_one_refused(tmp_path: Path) -> None:
    (test,) = inspect(tmp_path / "i.log", line(0, 0, 5, size=2**63 - 1), line(2, 0, 5, size=2**63 - 1)).tests
    assert [row.size_bytes for row in test.sizes] == [2**63 - 1]
    with pytest.raises(InputError, match="line 1"):
        inspect(tmp_path / "i.log", line(0, 0, 5, size=2**63))


@pytest.mark.parametrize(
    "text", ['[{"a":1},{"b":2}]', '[ {"a":1} ,\n{"b":2} ]\n', '[{"a":1},{"b":2}', '[{"a":1},{"b":2},']
)
def test_events_are_read_however_they_are_spaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    assert list(EventStream(path)) == [{"a": 1}, {"b": 2}]
    path.write_text(f'{{"x":1,"traceEvents":{text.rstrip().rstrip(",").removesuffix("]")}],"y":[2]}}')
    stream = EventStream(path)
    assert list(stream) == [{"a": 1}, {"b": 2}]
    assert stream.head == {"x": 1, "y": [2]}


@pytest.mark.parametrize("text", [
    '[{"a":1}{"b":2}]', "[1]2", '{"traceEvents":[1] "y":2}', '{"traceEvents" [1]}', "{1:2}", '{"y":1}', "7", '[{"a":}]',
    '{"traceEvents":[1',
])  # fmt: skip
def test_what_is_no_list_of_events_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"t\.json"):
        list(EventStream(path))


def test_a_chakra_trace_that_is_cut_anywhere_in_its_last_node_is_refused(tmp_path: Path) -> None:
    spans = [
        Span(0, 0, "forward", "a", 0.5, 0.25, None, "chakra"),
        Span(0, 1, "aggregate", "b", 1.5, 0.125, 80, "chakra"),
    ]
    whole = to_chakra(spans, rank=0)
    path = tmp_path / "t.et"
    path.write_bytes(whole)
    assert read_chakra(path) == tuple(spans)
    for cut in range(1, 20):
        path.write_bytes(whole[:-cut])
        with pytest.raises(InputError, match="truncated inside a node"):
            read_chakra(path)


def test_a_log_of_the_inspector_is_known_and_its_unfinished_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "i.log"
    found = inspect(path, "\n", line(0, 1, 5), line(1, 1, 6), '{"header":')
    assert found.calls == 2
    assert looks_like_inspector(path)
    with pytest.raises(InputError, match="line 1"):
        inspect(path, '{"header":')
    with pytest.raises(InputError, match="line 2"):
        inspect(path, line(0, 1, 5), "{}\n")
    for text in ('["coll_perf"]', "{}", ""):
        path.write_text(text)
        assert not looks_like_inspector(path)


def titan(*steps: tuple[int, int, str], facts: str = "") -> str:
    """Lines of a rank at a time, with tokens per second."""
    lines = (f"[rank{rank}]:2024-05-23 12:{at} - root - INFO - step: {step}  loss: 1.0  {facts}\n"
             for rank, step, at in steps)  # fmt: skip
    return "".join(lines)


def test_ranks_are_told_apart_in_the_times_between_their_lines(tmp_path: Path) -> None:
    """Rank 1's lines are 10 s apart, rank 0's 4 s over two steps; the first line of a rank has no time."""
    path = tmp_path / "train.log"
    path.write_text(titan((1, 1, "00:00"), (0, 1, "00:30"), (1, 2, "00:10"), (0, 3, "00:34"), facts="mfu: 50%"))
    log = read_log(path)
    assert [(step.rank, step.step, step.seconds, step.mfu) for step in log.steps] == [
        (0, 3, 2.0, 0.5),
        (1, 2, 10.0, 0.5),
    ]
    assert (log.ranks, log.sequence) == (2, None)


@pytest.mark.parametrize(("facts", "seconds"), [
    ("local batch size 4, sequence length 1000", 2.0), ("global batch size 8, world size 4, sequence length 1000", 1.0),
    ("global batch size 8, sequence length 1000", None),
])  # fmt: skip
def test_seconds_from_the_tokens_of_a_device(tmp_path: Path, facts: str, seconds: float | None) -> None:
    path = tmp_path / "train.log"
    lines = "".join(f"step: {step}  loss: 1.0  tps: 2,000\n" for step in (1, 2))
    path.write_text(f"{facts}\n{lines}")
    if seconds is None:
        with pytest.raises(InputError, match="0 timed step"):
            read_log(path)
        return
    log = read_log(path)
    assert [step.seconds for step in log.steps] == [seconds] * 2
    assert log.ranks == (4 if "world" in facts else 1)


def test_steps_of_impossible_length_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    form = " iteration {n}/ 100 | elapsed time per iteration (ms): {ms} |\n"
    path.write_text("".join(form.format(n=n, ms=ms) for n, ms in ((1, "1000.0"), (2, "1000000000"), (3, "999999999"),
                                                                   (4, "0.0"))))  # fmt: skip
    log = read_log(path)
    assert [step.step for step in log.steps] == [1, 3]
    assert [step.seconds for step in log.steps] == pytest.approx([1.0, 999999.999], rel=1e-12)


def test_of_a_step_that_is_written_twice_the_last_line_counts(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    form = "\r  1%|1         | {n}/100 [00:12<20:40,  {s:.2f}s/it]"
    path.write_text("".join(form.format(n=n, s=s) for n, s in ((2, 3.0), (1, 1.0), (2, 2.0))))
    assert [(step.step, step.seconds) for step in read_log(path).steps] == [(1, 1.0), (2, 2.0)]


def test_a_long_line_is_read_at_its_beginning_and_the_lines_behind_it_as_well(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    form = " iteration {n}/ 100 | elapsed time per iteration (ms): 1500.0 |{rest}\n"
    path.write_text(form.format(n=1, rest="x" * 40_000) + form.format(n=2, rest="") + "y" * 70_000 + "\n"
                    + form.format(n=3, rest="").rstrip())  # fmt: skip
    assert [(step.step, step.seconds) for step in read_log(path).steps] == [(1, 1.5), (2, 1.5), (3, 1.5)]


@pytest.mark.parametrize("other", [
    {"metadata": {"inspector_output_format_version": "v4.1"}, "dump_stats": {"dropped": 3}},
    {"header": {"id": "1", "rank": 0, "n_ranks": 2}, "metadata": {"inspector_output_format_version": "v4.2"},
     "p2p_perf": {"p2p": "Send", "p2p_sn": 1}},
])  # fmt: skip
def test_records_of_sends_and_of_the_dump_stand_between_collectives(tmp_path: Path, other: dict[str, Any]) -> None:
    path = tmp_path / "a.log"
    path.write_text(f"{json.dumps(other)}\n{line(0, 1, 9)}{json.dumps(other)}\n{line(1, 1, 9)}")
    assert looks_like_inspector(path)
    assert read_inspector([path]).calls == 2


def test_names_with_control_characters_are_read_and_unescaped_quotes_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": [{"ph": "X", "name": "S\x01(1): <module>", "ts": 1}]}')
    assert [event["name"] for event in EventStream(path)] == ["S\x01(1): <module>"]
    path.write_text('{"traceEvents": [{"ph": "X", "name": "{"device": "cpu"}(12): run", "ts": 1}]}')
    with pytest.raises(InputError, match="with_stack=False"):
        list(EventStream(path))


def test_a_file_that_is_not_there_is_not_called_a_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_nccl_tests(tmp_path / "nope")
    assert "nope: No such file" in str(caught.value)
    assert "trace" not in str(caught.value.hint)


def test_a_file_that_the_disk_does_not_give_back_is_one_error_that_names_it() -> None:
    with pytest.raises(InputError, match="/proc/self/mem is truncated or damaged"):
        begin_of(Path("/proc/self/mem"), 10)
