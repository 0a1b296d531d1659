"""Tables of operations: columns, spans of steps one after the other, what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.errors import InputError
from paceline.measurements.foreign.operations import looks_like_operations, phase_of_kind, read_operations

HEAD = "dp_rank,stage,rank,step,optype,start_ts,duration"
ROW = {"dp_rank": "0", "stage": "0", "rank": "0", "step": "0", "optype": "forward-compute", "start_ts": "1.0",
       "duration": "0.5"}  # fmt: skip


def table(path: Path, *rows: str, head: str = HEAD) -> Path:
    path.write_text("\n".join((head, *rows)) + "\n")
    return path


def one(path: Path, **changes: str) -> Path:
    return table(path, ",".join({**ROW, **changes}.values()), head=",".join({**ROW, **changes}))


def test_steps_follow_each_other_and_ranks_are_counted(tmp_path: Path) -> None:
    """Step 7 lasts from 10 to 12.5 on ranks 4 and 9; step 8 begins a thousandth of that behind its end."""
    path = table(tmp_path / "o.csv", "0,0,4,7,forward-compute,10,2", "0,1,9,7,backward-compute,11.5,1",
                 "0,1,9,8,optimizer,20,3", "0,0,4,8,params-all-gather,21,0.5")  # fmt: skip
    found = read_operations(path)
    assert found.step_seconds() == {7: 2.5, 8: 3.0}
    spans = list(found.spans())
    assert [(span.rank, span.step, span.phase, span.name) for span in spans] == [
        (0, 0, "forward", "forward-compute stage 0"), (1, 0, "backward", "backward-compute stage 1"),
        (1, 1, "update", "optimizer stage 1"), (0, 1, "aggregate", "params-all-gather stage 0"),
    ]  # fmt: skip
    assert [span.start_s for span in spans] == pytest.approx([0.0, 1.5, 2.5025, 3.5025])
    assert [span.seconds for span in spans] == [2.0, 1.0, 3.0, 0.5]
    assert {span.source for span in spans} == {"operations"}
    for column in (found.sequence, found.micro_batch, found.chunk):
        assert column.tolist() == [-1] * 4


def test_micro_batches_and_chunks_are_named_from_zero_on(tmp_path: Path) -> None:
    path = table(tmp_path / "o.csv", "0,2,0,0,forward-compute,0,1,0,0,-1", "0,2,0,0,forward-compute,0,1,5,-1,0",
                 head=HEAD + ",seq_id,mb_id,gmc")  # fmt: skip
    found = read_operations(path)
    assert [span.name for span in found.spans()] == [
        "forward-compute stage 2 micro-batch 0", "forward-compute stage 2 chunk 0"]  # fmt: skip
    assert found.sequence.tolist() == [0, 5]


def test_a_send_and_a_receive_in_one_are_two(tmp_path: Path) -> None:
    path = table(tmp_path / "o.csv", "0,0,0,0,forward-send-backward-recv,1,2", "0,0,1,0,forward-compute,0,1",
                 "0,0,2,0,backward-send-forward-recv,3,4")  # fmt: skip
    found = read_operations(path)
    assert found.kind.tolist() == ["forward-send", "forward-compute", "backward-send", "backward-recv", "forward-recv"]
    assert found.rank.tolist() == [0, 1, 2, 0, 2]
    assert found.end.tolist() == [3.0, 1.0, 7.0, 3.0, 7.0]


def test_what_is_no_pass_and_no_exchange_belongs_to_the_update() -> None:
    assert phase_of_kind("whatever") == "update"
    assert phase_of_kind("Forward-Compute") == "forward"


def test_a_table_is_known_by_its_first_line_or_as_parquet(tmp_path: Path) -> None:
    path = one(tmp_path / "o.csv")
    assert looks_like_operations(path)
    for content in (b"optype\n1\n", b"step,rank\noptype,1\n", b"PAR", b""):
        path.write_bytes(content)
        assert not looks_like_operations(path)
    path.write_bytes(b"PAR1rest")
    assert looks_like_operations(path)


@pytest.mark.parametrize(("changes", "says"), [
    ({"rank": "-1"}, "rank: got -1 to -1, expected 0 or more"), ({"step": str(2**31)}, "step: got 2147483648"),
    ({"stage": "0.5"}, "stage: got double"), ({"stage": ""}, "1 missing"), ({"duration": "-1"}, "row 0 lasts -1 s"),
    ({"start_ts": "inf"}, "start_ts: a value is not finite"), ({"start_ts": "-1.5e12"}, "not finite"),
    ({"mb_id": "-2"}, "expected -1 or more"), ({"start_ts": "soon"}, "start_ts: got string"),
])  # fmt: skip
def test_impossible_numbers_are_refused(tmp_path: Path, changes: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_operations(one(tmp_path / "o.csv", **changes))


def test_the_largest_numbers_are_read(tmp_path: Path) -> None:
    found = read_operations(one(tmp_path / "o.csv", step=str(2**31 - 1), start_ts="1e12", duration="0", mb_id="-1"))
    assert (found.step[0], found.start[0], found.seconds[0]) == (2**31 - 1, 1e12, 0.0)


def test_missing_columns_and_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lacks the columns rank, duration"):
        read_operations(table(tmp_path / "a.csv", "0,0,0,x,1", head="dp_rank,stage,step,optype,start_ts"))
    with pytest.raises(InputError, match="has 0 operations"):
        read_operations(table(tmp_path / "b.csv"))


def test_chunks_that_were_counted_within_a_stage_are_counted_through_the_model(tmp_path: Path) -> None:
    """Two chunks on each of three stages: the second begins where the first has left the last stage."""
    rows = [(stage, stage, 0, "forward-compute", 0.1 * chunk, 0.01, chunk) for stage in range(3) for chunk in range(2)]
    names = ("stage", "rank", "dp_rank", "optype", "start_ts", "duration", "gmc")
    lines = [",".join([*names, "step", "mb_id"]), *(",".join(map(str, (*row, 0, 0))) for row in rows)]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    found = read_operations(tmp_path / "t.csv")
    assert list(zip(found.stage.tolist(), found.chunk.tolist(), strict=True)) == [
        (0, 0), (0, 3), (1, 1), (1, 4), (2, 2), (2, 5)
    ]  # fmt: skip


@pytest.mark.parametrize(("start", "sound"), [(1e4, True), (1e5, False)])
def test_begins_in_single_precision_are_near_enough_or_refused(tmp_path: Path, start: float, sound: bool) -> None:
    """At 100,000 s they are rounded to 8 ms, of computations of 50 ms; at 10,000 s to 1 ms."""
    columns = {"dp_rank": [0], "stage": [0], "rank": [0], "step": [0], "optype": ["forward-compute"]}
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({**columns, "duration": [0.05], "start_ts": pa.array([start], pa.float32())}), path)
    if sound:
        assert read_operations(path).start.tolist() == [start]
    else:
        with pytest.raises(InputError, match=r"single precision rounds to 0\.0078 s"):
            read_operations(path)
