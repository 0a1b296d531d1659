"""SQL over all stored runs: DuckDB views `runs`, `launches`, `steps`, `spans`, `campaigns`; reading only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from paceline.errors import InputError
from paceline.measurements.store import SPANS, STEPS, Store

__all__ = ["VIEWS", "ask", "connect", "hide_progress", "launch_throughputs"]

VIEWS = {
    "runs": "one row per launch: what was asked, the outcome, the environment",
    "launches": "one row per successful launch: steps, median step time, samples per second of the clean pass",
    "steps": "every step of every rank and pass, with the run's id",
    "spans": "named stretches of time inside steps, with the run's id",
}

_RUN_COLUMNS = {
    "id": "VARCHAR",
    "campaign": "VARCHAR",
    "study": "VARCHAR",
    "case_id": "VARCHAR",
    "network": "VARCHAR",
    "framework": "VARCHAR",
    "strategy": "VARCHAR",
    "cluster": "VARCHAR",
    "launcher": "VARCHAR",
    "ranks": "INTEGER",
    "batch": "INTEGER",
    "scaling": "VARCHAR",
    "input": "VARCHAR",
    "launch": "INTEGER",
    "started_at": "TIMESTAMP",
    "seconds": "DOUBLE",
    "outcome": "VARCHAR",
    "failure": "STRUCT(phase VARCHAR, reason VARCHAR, message VARCHAR, "
    "rank INTEGER, exit_code INTEGER, log_tail VARCHAR)",
    "warmup": "MAP(VARCHAR, INTEGER)",
    "timers": "MAP(VARCHAR, DOUBLE)",
    "calibration_s": "DOUBLE",
    "drift": "DOUBLE",
    "dilation": "DOUBLE",
    "labels": "VARCHAR[]",
    "case": "JSON",
    "environment": "JSON",
    "facts": "JSON",
}

_LAUNCHES = """
CREATE VIEW launches AS
WITH slowest AS (
    SELECT run, step, max(seconds) AS seconds FROM steps
    WHERE pass_name = 'clean' AND NOT warmup GROUP BY run, step
), per_run AS (
    SELECT run, count(*) AS timed_steps, median(seconds) AS step_s, sum(seconds) AS total_s FROM slowest GROUP BY run
)
SELECT runs.*, timed_steps, step_s, ranks * batch * timed_steps / total_s AS samples_per_s
FROM runs JOIN per_run ON runs.id = per_run.run WHERE outcome = 'ok'
"""


def connect(store: Store) -> duckdb.DuckDBPyConnection:
    """A connection in memory whose views read the store's files as they are now."""
    connection = duckdb.connect(":memory:")
    hide_progress(connection)
    connection.execute("SET TimeZone = 'UTC'")
    runs = store.runs.absolute()
    found = any(runs.glob("*/run.json"))
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in _RUN_COLUMNS.items())
    if found:
        pattern = _quoted(runs / "*" / "run.json")
        source = (
            f"read_json({pattern}, columns = {{{columns}}}, format = 'unstructured', maximum_object_size = 67108864)"
        )
    else:
        kinds = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in _RUN_COLUMNS.items())
        source = f"(SELECT {kinds} WHERE false)"
    connection.execute(f"CREATE VIEW runs AS SELECT * FROM {source}")
    for name, schema in (("steps", STEPS), ("spans", SPANS)):
        _parquet_view(connection, runs, name, schema, found=found)
    connection.execute(_LAUNCHES)
    return connection


def hide_progress(connection: duckdb.DuckDBPyConnection) -> None:
    """Show no progress bar; in a notebook without widgets DuckDB has none to show and refuses to be told."""
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")


def _parquet_view(
    connection: duckdb.DuckDBPyConnection, runs: Path, name: str, schema: pa.Schema, *, found: bool
) -> None:
    if found:
        pattern = _quoted(runs / "*" / f"{name}.parquet")
        run = "parse_path(filename)[-2] AS run"
        connection.execute(
            f"CREATE VIEW {name} AS SELECT {run}, * EXCLUDE (filename) FROM read_parquet({pattern}, filename = true)"
        )
    else:
        connection.register(f"empty_{name}", schema.empty_table())
        connection.execute(f"CREATE VIEW {name} AS SELECT NULL::VARCHAR AS run, * FROM empty_{name}")


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def ask(store: Store, query: str) -> pa.Table:
    """The answer to one SELECT over the views; anything else is refused."""
    connection = connect(store)
    try:
        statements = connection.extract_statements(query)
        if len(statements) != 1 or statements[0].type not in _READING:
            raise InputError(
                "expected one SELECT statement", hint="stored runs are never edited; see `paceline query -h`"
            )
        table: pa.Table = connection.sql(query).to_arrow_table()
    except duckdb.Error as error:
        raise InputError(f"the query failed: {_first_lines(str(error))}", hint=_views_hint()) from None
    finally:
        connection.close()
    return table


def launch_throughputs(store: Store, campaign: str) -> dict[str, float]:
    """Samples per second of each successful launch of a campaign, by run."""
    with connect(store) as connection:
        rows = connection.execute("SELECT id, samples_per_s FROM launches WHERE campaign = ?", [campaign]).fetchall()
    return dict(rows)


_READING: tuple[Any, ...] = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


def _first_lines(text: str) -> str:
    return "\n  ".join(line for line in text.strip().splitlines()[:6] if line.strip())


def _views_hint() -> str:
    return "views: " + ", ".join(f"{name} ({what})" for name, what in VIEWS.items())
