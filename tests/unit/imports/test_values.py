"""Values of foreign records at their bounds: the last that is read, and the first that is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.errors import InputError
from paceline.measurements.foreign import nccl_tests, nsight, operations, recorder
from paceline.measurements.run import Span
from paceline.measurements.trace import chakra, chrome, formats, kineto, profiled, wire
from tests.unit.imports.generated import event

EVENT: dict[str, Any] = {"ph": "X", "name": "a", "ts": 1.0, "dur": 1.0}
MOST = 1e18


def wrong(**changes: Any) -> list[tuple[str, ...]]:
    """Places of what is wrong with an event; a None leaves a field out."""
    given = {name: value for name, value in {**EVENT, **changes}.items() if value is not None}
    return [place for place, _, _ in chrome._wrong(given, ranks=True)]


@pytest.mark.parametrize(
    ("name", "sound", "refused"),
    [
        ("ts", (0, -MOST, MOST, 0.5), (2 * MOST, -2 * MOST, True, "1", math.nan, math.inf)),
        ("dur", (0, 0.0, MOST), (-1e-9, 2 * MOST, False, math.nan)),
        ("pid", (0, 2**31 - 1), (-1, 2**31, 0.0, True, "0")),
    ],
)
def test_fields_of_an_event(name: str, sound: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    assert [wrong(**{name: value}) for value in sound] == [[]] * len(sound)
    assert [wrong(**{name: value}) for value in refused] == [[(name,)]] * len(refused)


@pytest.mark.parametrize("prefix", ["", "paceline_"])
@pytest.mark.parametrize(
    ("name", "sound", "refused"),
    [
        ("step", (0, 2**31 - 1), (-1, 2**31, 1.0, True)),
        ("start_s", (-5, MOST), (2 * MOST, "x")),
        ("seconds", (0, MOST), (-1e-9, 2 * MOST)),
    ],
)
def test_exact_fields_of_an_event(prefix: str, name: str, sound: tuple[Any, ...], refused: tuple[Any, ...]) -> None:
    key = prefix + name
    assert [wrong(args={key: value}) for value in sound] == [[]] * len(sound)
    assert [wrong(args={key: value}) for value in refused] == [[("args", key)]] * len(refused)


def test_sizes_of_an_event() -> None:
    assert wrong(args={"size_bytes": 0}) == wrong(args={"size_bytes": None}) == wrong(args={"In msg nelems": "x"}) == []
    assert wrong(args={"size_bytes": -1}) == [("args", "size_bytes")]
    assert wrong(args={"size_bytes": "1"}) == [("args", "size_bytes")]
    assert wrong(args={"In msg nelems": -1}) == [("args", "In msg nelems")]
    assert wrong(args=[1]) == [("args",)]


@pytest.mark.parametrize(
    ("changes", "places"),
    [
        ({"ts": None}, [("ts",)]),
        ({"name": None}, [("name",)]),
        ({"ph": "B", "name": None}, [("name",)]),
        ({"ph": "E", "name": None}, []),
        ({"ph": "E", "ts": None}, [("ts",)]),
        ({"ph": "i", "ts": None, "name": None}, []),
        ({"ph": "M", "ts": None, "name": "other"}, []),
        ({"ph": "M", "ts": None, "name": "process_name"}, [("args", "name")]),
        ({"ph": "M", "name": "process_name", "args": {"name": "x"}, "dur": -1}, []),
    ],
)
def test_fields_that_an_event_needs(changes: dict[str, Any], places: list[tuple[str, ...]]) -> None:
    assert wrong(**changes) == places


@pytest.mark.parametrize(("name", "least"), [("rank", 0), ("world_size", 1)])
def test_rank_and_number_of_ranks_of_a_profile(name: str, least: int) -> None:
    def info(value: Any) -> dict[str, int]:
        stream: Any = SimpleNamespace(path="p", head={"distributedInfo": {name: value}})
        return kineto.info_of(stream)

    assert info(least) == {name: least}
    assert info(2**31 - 1) == {name: 2**31 - 1}
    for value in (least - 1, 2**31, True, 1.0, "1", None):
        with pytest.raises(InputError, match=f"distributedInfo.{name}"):
            info(value)
    nothing: Any = SimpleNamespace(path="p", head={"distributedInfo": "x"})
    assert kineto.info_of(nothing) == {}


def kernel(number: Any, begin: float, end: float) -> dict[str, Any]:
    return event("k", begin, end, "kernel", correlation=number)


def test_kernels_of_a_profile_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = profiled.PhaseScan(Path("p"))
    for limit, refused in ((2, False), (1, True)):
        monkeypatch.setattr(profiled, "MOST_KERNELS", limit)
        scan.kernels = profiled._Kernels()
        scan.kernels.ran(kernel(1, 0, 1), 0.0, 1.0)
        if refused:
            with pytest.raises(InputError, match="more than 1 kernels"):
                scan._kernel("kernel", "k", 0.0, 1.0, kernel(2, 0, 1))
        else:
            scan._kernel("kernel", "k", 0.0, 1.0, kernel(2, 0, 1))


def test_exchanges_of_a_profile_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiled, "MOST_EXCHANGES", 2)
    scan = profiled.PhaseScan(Path("p"))
    for number in range(4):
        scan._exchange("host", "x" * 100, float(number), number + 0.5, {})
    assert [(span.start_s, span.seconds, len(span.name)) for span in scan.exchanges["host"]] == [
        (0.0, 0.5, 80), (1.0, 0.5, 80)]  # fmt: skip


def test_kernels_find_their_launches_whatever_the_order() -> None:
    kernels = profiled._Kernels()
    for number, at in ((7, 0.7), (3, 0.3), (0, 9.0), (5, 0.5)):
        kernels.launched(kernel(number, 0, 0), at)
    for number in (3, 4, 5, 7, 8, 0, -1, 2**62):
        kernels.ran(kernel(number, 0, 0), float(number > 4), 2.0)
    launched, begins, ends = kernels.times()
    assert np.nan_to_num(launched, nan=-1.0).tolist() == [0.3, -1, 0.5, 0.7, -1, -1, -1, -1], "0 is no number"
    assert begins.tolist() == [0, 0, 1, 1, 1, 0, 0, 1]
    assert ends.tolist() == [2.0] * 8
    nobody = profiled._Kernels()
    nobody.ran(kernel(3, 0, 0), 0.0, 1.0)
    assert np.isnan(nobody.times()[0]).all()


@pytest.mark.parametrize(
    ("value", "content"),
    [(0, b"\0"), (127, b"\x7f"), (128, b"\x80\x01"), (300, b"\xac\x02"), (2**64 - 1, b"\xff" * 9 + b"\x01")],
)
def test_numbers_in_groups_of_seven_bits(value: int, content: bytes) -> None:
    assert wire.varint(value) == content
    assert wire.read_varint(b"x" + content + b"y", 1) == (value, 1 + len(content))


def test_fields_of_a_message() -> None:
    assert wire.varint(-1) == wire.varint(2**64 - 1)
    with pytest.raises(ValueError, match="more than 64 bits"):
        wire.read_varint(b"\x80" * 10 + b"\x01", 0)
    content = wire.number(1, 5) + wire.number(9, 0) + wire.double(2, 0.5) + wire.float32(3, 0.25)
    content += wire.text(4, "ab") + wire.text(5, "") + wire.message(6, b"")
    assert list(wire.fields(content)) == [(1, 5), (2, 0.5), (3, 0.25), (4, b"ab"), (6, b"")]
    with pytest.raises(ValueError, match="wire type 3"):
        list(wire.fields(wire.varint(1 << 3 | 3)))


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ((8, "2.5", "3", "0"), (8, 2.5e-6, 3e9, 0)),
        ((0, 0, 0, None), (0, 0.0, 0.0, 0)),
        ((2**63 - 1, 1, 1, "N/A"), (2**63 - 1, 1e-6, 1e9, 0)),
        ((8, 1, 1, "2.0"), (8, 1e-6, 1e9, 2)),
        ((2**63, 1, 1, 0), None),
        ((-1, 1, 1, 0), None),
        ((True, 1, 1, 0), None),
        ((8, -1, 1, 0), None),
        ((8, math.inf, 1, 0), None),
        ((8, 1, -1, 0), None),
        ((8, 1, math.nan, 0), None),
        ((8, 1, 1, -1), None),
    ],
)
def test_a_row_of_a_test_of_collectives(row: tuple[Any, ...], found: tuple[Any, ...] | None) -> None:
    if found is None:
        with pytest.raises(ValueError, match="bus bandwidth"):
            nccl_tests._row(*row)
    else:
        one = nccl_tests._row(*row)
        assert (one.size_bytes, one.seconds, one.bus_bandwidth, one.wrong) == pytest.approx(found)


@pytest.mark.parametrize(
    ("ranks", "factor", "name"),
    [
        (4, 1.5, "all_reduce"), (4, 0.75, "reduce_scatter"), (4, 1.5 * 1.049, "all_reduce"), (4, 1.5 * 1.051, None),
        (4, 0.75 * 0.951, "reduce_scatter"), (4, 0.75 * 0.949, None), (2, 1.0, "all_reduce"), (4, 0.0, None),
    ],
)  # fmt: skip
def test_the_ratio_of_two_bandwidths_tells_the_collective(ranks: int, factor: float, name: str | None) -> None:
    assert nccl_tests._implied(ranks, [factor, factor, 99.0]) == name
    assert nccl_tests._implied(ranks, []) is None


@pytest.mark.parametrize(("begin", "end", "sound"), [(0, 0, True), (5, 4, False), (-1, 4, False), (0, 2**63, False),
                                                     (0, 2**63 - 1, True)])  # fmt: skip
def test_an_event_of_nsight_is_in_microseconds(begin: int, end: int, sound: bool) -> None:
    if sound:
        found = nsight._event("kernel", "k", begin, end, correlation=3)
        assert (found["ts"], found["dur"], found["args"]) == (begin / 1e3, (end - begin) / 1e3, {"correlation": 3})
    else:
        with pytest.raises(ValueError, match="lasts from"):
            nsight._event("kernel", "k", begin, end)


@pytest.mark.parametrize(
    ("change", "sound"),
    [
        ({}, True), ({"seconds": -1e-9}, False), ({"seconds": math.inf}, False), ({"start_s": -5.0}, True),
        ({"start_s": math.inf}, False), ({"start_s": math.nan}, False), ({"rank": -1}, False), ({"step": -1}, False),
        ({"size_bytes": 0}, True), ({"size_bytes": -1}, False),
    ],
)  # fmt: skip
def test_spans_that_can_be(change: dict[str, Any], sound: bool) -> None:
    span = replace(Span(0, 0, "io", "read", 0.0, 0.0, None, "made"), **change)
    assert formats._sound(span) is sound


def test_marks_of_steps_are_numbers_of_nine_digits_and_once_on_the_host() -> None:
    scan = profiled.PhaseScan(Path("p"))
    scan._mark("user_annotation", "ProfilerStep#999999999", 1.0, 2.0)
    for name in ("ProfilerStep#1000000000", "ProfilerStep#", "ProfilerStep#x", "ProfilerStep#-1"):
        with pytest.raises(InputError, match="no mark of a step"):
            scan._mark("user_annotation", name, 1.0, 2.0)
    with pytest.raises(InputError, match="step 999999999 is marked twice"):
        scan._mark("user_annotation", "ProfilerStep#999999999", 2.0, 3.0)
    for begin, end in ((4.0, 5.0), (3.0, 4.5), (4.2, 6.0)):
        scan._mark("gpu_user_annotation", "ProfilerStep#7", begin, end)
    assert scan.marks == {"host": {999999999: (1.0, 2.0)}, "device": {7: (3.0, 6.0)}}, "a stream each"


@pytest.mark.parametrize(
    ("looks", "name", "content", "known"),
    [
        (nccl_tests.looks_like_nccl_tests, "a.txt", b"# size time algbw busbw", True),
        (nccl_tests.looks_like_nccl_tests, "a.txt", b"# size time algbw", False),
        (nccl_tests.looks_like_nccl_tests, "a.txt", b"# size time busbw", False),
        (nccl_tests.looks_like_nccl_tests, "a.json", b' {"bus_bw": 1}', True),
        (nccl_tests.looks_like_nccl_tests, "a.json", b'{"algbw": 1, "busbw": 2}', False),
        (chakra.looks_like_chakra, "a.et", b"anything", True),
        (chakra.looks_like_chakra, "a.bin", b"\x05\x0a\x03abc", True),
        (chakra.looks_like_chakra, "a.bin", b"\x85\x01\x12\x82\x01" + bytes(130), True),
        (chakra.looks_like_chakra, "a.bin", b"\x05\x0a\x09abc", False),
        (chakra.looks_like_chakra, "a.bin", b"\n\n[titan] step: 1  loss: 2.0", False),
        (chakra.looks_like_chakra, "a.bin", b" \n\nstep: 1  loss: 2.0  tps: 100", False),
        (chakra.looks_like_chakra, "a.bin", b"\x05\x0b\x03", False),
        (chakra.looks_like_chakra, "a.bin", b"", False),
        (operations.looks_like_operations, "a.csv", b"step,optype\n1,x", True),
        (operations.looks_like_operations, "a.csv", b"step,kind\n1,optype", False),
        (operations.looks_like_operations, "a.csv", b"optype", False),
        (operations.looks_like_operations, "a", b"PAR1", True),
        (nsight.looks_like_nsight, "a", b"SQLite format 3\0more", True),
        (nsight.looks_like_nsight, "a", b"SQLite format 4\0more", False),
    ],
)
def test_files_are_known_by_how_they_begin(
    tmp_path: Path, looks: Callable[[Path], bool], name: str, content: bytes, known: bool
) -> None:
    (tmp_path / name).write_bytes(content)
    assert looks(tmp_path / name) is known


def test_texts_of_a_collective_are_short() -> None:
    entry = {
        "collective_seq_id": 3,
        "profiling_name": "n" * 100,
        "state": "s" * 100,
        "input_sizes": [[n] for n in range(9)],
    }
    found = recorder._collective({**entry, "process_group": ["g" * 100]}, Path("p"), 0)
    assert (len(found.name), len(found.state), len(found.group), found.sizes) == (
        80,
        40,
        80,
        ("[0]", "[1]", "[2]", "[3]"),
    )
    retired = recorder._collective({**entry, "retired": True, "is_p2p": True}, Path("p"), 0)
    assert (retired.state, retired.number) == (recorder.COMPLETED, -1)


@pytest.mark.parametrize(
    ("columns", "wrong"), [(["0", "N/A"], 0), (["2", "3"], 5), ([None, "4"], 4), (["-1", "7"], -1), ([], 0)]
)
def test_wrong_elements_are_those_of_both_columns(columns: list[str | None], wrong: int) -> None:
    """A negative number is what a test prints that could not count."""
    assert nccl_tests._wrong_of(columns) == wrong
