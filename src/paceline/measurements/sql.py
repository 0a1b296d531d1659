"""SQL over stored runs: DuckDB views `runs`, `passes`, `launches`, `steps`, `spans`; reading only.

Only `passes` defines the duration of a step of several ranks, that of its slowest rank, and the throughput of a launch:
all its samples divided by the elapsed time of its slowest rank. Ranks take turns in being the slowest of a step, so the
sum of the slowest steps would be longer than the launch.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from paceline.errors import InputError
from paceline.files import printable
from paceline.measurements.run import Run, with_drift
from paceline.measurements.store import Store, StoredRun
from paceline.measurements.tablefiles import SPANS, STEPS

__all__ = ["SLOWEST", "VIEWS", "ask", "open_views", "require_text", "result_rows"]

VIEWS = {
    "runs": "one row per launch: parameters, outcome, machine, drift",
    "passes": "one row per pass of a launch: steps as long as their slowest rank, samples per second",
    "launches": "one row per successful launch: steps, median step time, samples per second of the clean pass",
    "steps": "every step of every rank and pass, with the run's id",
    "spans": "named intervals inside steps, with the run's id",
}

_FAILURE = pa.struct(
    [
        ("phase", pa.string()),
        ("reason", pa.string()),
        ("message", pa.string()),
        ("rank", pa.int32()),
        ("exit_code", pa.int32()),
        ("log_tail", pa.string()),
    ]
)
_HEADERS = pa.schema(
    [
        *((name, pa.string()) for name in ("id", "campaign", "study", "case_id", "network", "framework", "strategy")),
        *((name, pa.string()) for name in ("cluster", "launcher")),
        ("ranks", pa.int32()),
        ("batch", pa.int32()),
        ("scaling", pa.string()),
        ("input", pa.string()),
        ("launch", pa.int32()),
        ("started_at", pa.timestamp("us")),
        ("seconds", pa.float64()),
        ("outcome", pa.string()),
        ("failure", _FAILURE),
        ("warmup", pa.map_(pa.string(), pa.int32())),
        ("timers", pa.map_(pa.string(), pa.float64())),
        ("probe_s", pa.float64()),
        ("drift", pa.float64()),
        ("drift_limit", pa.float64()),
        ("pilot", pa.int32()),
        ("dilation", pa.float64()),
        ("labels", pa.list_(pa.string())),
        ("case", pa.string()),
        ("machine", pa.string()),
        ("facts", pa.string()),
        ("drifted", pa.bool_()),
    ]
)
_JSON = ("case", "machine", "facts")

_RUNS = f"""
CREATE VIEW runs AS
SELECT * REPLACE ({", ".join(f'"{name}"::JSON AS "{name}"' for name in _JSON)}) FROM stored_runs
"""

SLOWEST = """
    SELECT run, pass_name, step, max(seconds) AS seconds FROM steps WHERE NOT warmup GROUP BY run, pass_name, step
"""
"""Every timed step of a pass, as long as its slowest rank."""

_PASSES = f"""
CREATE VIEW passes AS
WITH slowest AS ({SLOWEST}), typical AS (
    SELECT run, pass_name, count(*) AS timed_steps, median(seconds) AS step_s FROM slowest GROUP BY run, pass_name
), elapsed AS (
    SELECT run, pass_name, sum(seconds) AS seconds FROM steps WHERE NOT warmup GROUP BY run, pass_name, rank
), total AS (
    SELECT run, pass_name, max(seconds) AS total_s FROM elapsed GROUP BY run, pass_name
)
SELECT run, pass_name, timed_steps, step_s, total_s, ranks * batch * timed_steps / total_s AS samples_per_s
FROM typical JOIN total USING (run, pass_name) JOIN runs ON runs.id = typical.run
"""

_LAUNCHES = """
CREATE VIEW launches AS
SELECT runs.*, timed_steps, step_s, samples_per_s
FROM runs JOIN passes ON runs.id = passes.run WHERE outcome = 'ok' AND pass_name = 'clean'
"""


@contextlib.contextmanager
def open_views(store: Store, runs: Sequence[str] | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory connection with the views of all sound runs of the store, or of those given.

    The connection sees these tables and nothing else: no files, no network, no settings.
    """
    stored = store.load_sound(list(runs) if runs is not None else store.names())
    with duckdb.connect(":memory:") as connection:
        try:
            _fill(connection, stored)
            yield connection
        except (duckdb.Error, RuntimeError) as error:
            # While DuckDB computes, it takes Ctrl-C for itself; while it reads our tables, it wraps what Python raised.
            text = str(error)
            if (
                isinstance(error, duckdb.InterruptException)
                or text == "Query interrupted"
                or "KeyboardInterrupt" in text
            ):
                raise KeyboardInterrupt from error
            raise


def _fill(connection: duckdb.DuckDBPyConnection, stored: Sequence[StoredRun]) -> None:
    for setting in (*_SETTINGS, f"memory_limit = '{_memory()}B'"):
        with contextlib.suppress(duckdb.InvalidInputException):  # a notebook without widgets has no progress bar
            connection.execute(f"SET {setting}")
    connection.register("stored_runs", _headers(with_drift([item.run for item in stored])))
    connection.register("steps", _joined([(item.run.id, item.steps) for item in stored], STEPS))
    connection.register("spans", _joined([(item.run.id, item.spans) for item in stored], SPANS))
    for view in (_RUNS, _PASSES, _LAUNCHES):
        connection.execute(view)
    for lock in _LOCKS:
        connection.execute(f"SET {lock}")


def _memory() -> int:
    """Bytes that a query may take: a recursion without an end takes all that it is given."""
    return min(MAX_MEMORY, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)


_SETTINGS = ("enable_progress_bar = false", "TimeZone = 'UTC'")
_LOCKS = (
    "temp_directory = ''",
    "python_enable_replacements = false",
    "enable_external_access = false",
    "lock_configuration = true",
)
"""The last one makes the others final."""


def _headers(runs: list[Run]) -> pa.Table:
    rows = []
    for run in runs:
        plain = run.model_dump(mode="json")
        moment = datetime.fromisoformat(run.started_at)
        utc = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
        texts = {name: json.dumps(plain[name]) for name in _JSON}
        pairs = {name: list(plain[name].items()) for name in ("warmup", "timers")}
        rows.append({**plain, **texts, **pairs, "started_at": utc, "drifted": run.drifted})
    return pa.Table.from_pylist(rows, schema=_HEADERS)


def _joined(parts: list[tuple[str, pa.Table]], schema: pa.Schema) -> pa.Table:
    """The tables of several runs as one, with the run's id as first column."""
    whole = pa.concat_tables([schema.empty_table(), *(table for _, table in parts)])
    numbers = np.repeat(np.arange(len(parts), dtype=np.int32), [table.num_rows for _, table in parts])
    names = pa.array([name for name, _ in parts], pa.string())
    runs = pa.DictionaryArray.from_arrays(pa.array(numbers), names).cast(pa.string())
    return whole.add_column(0, "run", runs)


def require_text(text: str) -> str:
    """The text; an InputError if some of its bytes were no text, which DuckDB takes for a defect of the caller."""
    if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
        raise InputError(f"{printable(text)[:200]!r} holds bytes that are no text", hint="write it in UTF-8")
    return text


def ask(store: Store, query: str) -> pa.Table:
    """The result of one SELECT over the views; other statements are refused."""
    require_text(query)
    with open_views(store) as connection:
        try:
            statements = connection.extract_statements(query)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise InputError(
                    "expected one SELECT statement", hint="stored runs are never edited; see `paceline query -h`"
                )
            table = _computed(connection, query)
        except duckdb.InterruptException:
            raise
        except duckdb.Error as error:
            raise InputError(f"the query failed: {_first_lines(str(error))}", hint=_views_hint()) from None
    if table.num_rows > MAX_ROWS or table.nbytes > MAX_BYTES:
        bound = f"{MAX_ROWS:,} rows or {MAX_BYTES >> 20:,} MiB"
        raise InputError(f"the answer has more than {bound}", hint="add LIMIT, or aggregate")
    return table


def result_rows(answer: pa.Table) -> list[dict[str, Any]]:
    """The rows of an answer as Python values, whose dates begin with the year 1."""
    try:
        rows: list[dict[str, Any]] = answer.to_pylist()
    except (OverflowError, ValueError) as error:
        what = "the answer holds a date or time that is infinite, or not of the years 1 to 9999"
        raise InputError(what, hint="cast the column to VARCHAR") from error
    return rows


def _computed(connection: duckdb.DuckDBPyConnection, query: str) -> pa.Table:
    """The answer, computed in a separate thread: Ctrl-C reaches the main thread only, and not while DuckDB runs."""
    with ThreadPoolExecutor(max_workers=1) as beside:
        answer = beside.submit(lambda: connection.sql(query).limit(MAX_ROWS + 1).to_arrow_table())
        try:
            return answer.result()
        except KeyboardInterrupt:
            connection.interrupt()
            raise


MAX_ROWS = 1_000_000
"""Rows of an answer, above which it is refused."""
MAX_MEMORY = 4 << 30
"""Bytes for the intermediate results of a query, above which it is refused."""
MAX_BYTES = 1 << 29
"""Bytes of an answer, above which it is refused: its rows take several times as much."""


def _first_lines(text: str) -> str:
    return "\n  ".join(line for line in text.strip().splitlines()[:6] if line.strip())


def _views_hint() -> str:
    return "views: " + ", ".join(f"{name} ({what})" for name, what in VIEWS.items())
