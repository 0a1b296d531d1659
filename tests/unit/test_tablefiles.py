"""The tables of a run, read from bytes: which values are refused, at their bounds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paceline.measurements.tablefiles import SPANS, STEPS, parse_table

STEP = {"pass_name": "clean", "rank": 1, "step": 0, "warmup": False, "start_s": -2.5, "seconds": 0.0}
SPAN = {"rank": 0, "step": 0, "phase": "io", "name": "read", "start_s": 0.0, "seconds": 1.0, "size_bytes": None,
        "source": "made"}  # fmt: skip


def content(schema: pa.Schema, *rows: dict[str, Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), sink)
    return sink.getvalue().to_pybytes()


def test_rows_at_the_bounds_are_read() -> None:
    assert parse_table(content(STEPS, STEP), STEPS, ranks=2).to_pylist() == [STEP]
    assert parse_table(content(SPANS, SPAN, {**SPAN, "size_bytes": 7}), SPANS, ranks=1).num_rows == 2
    assert parse_table(content(STEPS), STEPS, ranks=1).num_rows == 0


@pytest.mark.parametrize(("change", "says"), [
    ({"rank": -1}, "rank: a value is below 0"), ({"step": -1}, "step: a value is below 0"),
    ({"seconds": -0.1}, "seconds: a value is below 0"), ({"seconds": float("inf")}, "seconds: .*not finite"),
    ({"start_s": float("nan")}, "start_s: .*not finite"), ({"rank": 2}, "rank: a rank is not below 2"),
    ({"warmup": None}, "warmup: a value is missing"), ({"pass_name": None}, "pass_name: a value is missing"),
])  # fmt: skip
def test_values_beyond_them_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_table(content(STEPS, STEP, {**STEP, **change}), STEPS, ranks=2)


def test_other_columns_and_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="its columns are not those of a run"):
        parse_table(content(SPANS, SPAN), STEPS, ranks=1)
    for damaged in (b"", b"PAR1", content(STEPS, STEP)[:-9]):
        with pytest.raises(ValueError, match="not a readable table"):
            parse_table(damaged, STEPS, ranks=1)


def test_names_that_are_no_text_are_refused() -> None:
    name = pa.StringArray.from_buffers(1, pa.py_buffer(bytes(4) + (2).to_bytes(4, "little")), pa.py_buffer(b"\xff\xfe"))
    table = pa.Table.from_pylist([STEP], schema=STEPS).set_column(0, STEPS.field(0), name)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    with pytest.raises(ValueError, match=r"not a readable table: .*UTF8"):
        parse_table(sink.getvalue().to_pybytes(), STEPS, ranks=2)
