"""The tables of a run: their columns, and reading them from bytes with values checked."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["SPANS", "STEPS", "parse_table"]

STEPS = pa.schema(
    [
        ("pass_name", pa.string()),
        ("rank", pa.int32()),
        ("step", pa.int32()),
        ("warmup", pa.bool_()),
        ("start_s", pa.float64()),
        ("seconds", pa.float64()),
    ]
)
SPANS = pa.schema(
    [
        ("rank", pa.int32()),
        ("step", pa.int32()),
        ("phase", pa.string()),
        ("name", pa.string()),
        ("start_s", pa.float64()),
        ("seconds", pa.float64()),
        ("size_bytes", pa.int64()),
        ("source", pa.string()),
    ]
)
MAY_BE_EMPTY = ("size_bytes",)
LEAST = {"rank": 0, "step": 0, "seconds": 0.0, "start_s": -np.inf}
"""The smallest value of each column of numbers."""


def parse_table(content: bytes, schema: pa.Schema, *, ranks: int) -> pa.Table:
    """The table in the content of a Parquet file; raises ValueError with the reason."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False)
        table = file.read(use_threads=False)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise ValueError(f"not a readable table: {str(error).splitlines()[0] if str(error) else error!r}") from None
    if not table.schema.equals(schema):
        raise ValueError("its columns are not those of a run")
    for name in schema.names:
        if table[name].null_count and name not in MAY_BE_EMPTY:
            raise ValueError(f"{name}: a value is missing")
    for name, least in LEAST.items():
        values = table[name].to_numpy()
        if values.size and not (np.isfinite(values).all() and values.min() >= least):
            raise ValueError(f"{name}: a value is below {least:g} or not finite")
    if table.num_rows and table["rank"].to_numpy().max() >= ranks:
        raise ValueError(f"rank: a rank is not below {ranks}")
    return table
