"""SQL over stored runs: DuckDB views `runs`, `passes`, `launches`, `steps`, `spans`; reading only.

Only `passes` defines the duration of a step of several ranks, that of its slowest rank, and the throughput of a launch:
all its samples divided by the elapsed time of its slowest rank. Ranks take turns in being the slowest of a step, so the
sum of the slowest steps would be longer than the launch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from paceline.errors import InputError, StoreError
from paceline.measurements.run import DRIFT_LIMIT, RENAMED, SCHEMA_VERSION
from paceline.measurements.store import SPANS, STEPS, Store

__all__ = ["VIEWS", "ask", "open_views"]

VIEWS = {
    "runs": "one row per launch: parameters, outcome, machine, drift",
    "passes": "one row per pass of a launch: steps as long as their slowest rank, samples per second",
    "launches": "one row per successful launch: steps, median step time, samples per second of the clean pass",
    "steps": "every step of every rank and pass, with the run's id",
    "spans": "named intervals inside steps, with the run's id",
}

_RUN_COLUMNS = {
    "schema_version": "INTEGER",
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
    "probe_s": "DOUBLE",
    "drift": "DOUBLE",
    "drift_limit": "DOUBLE",
    "pilot": "INTEGER",
    "dilation": "DOUBLE",
    "labels": "VARCHAR[]",
    "case": "JSON",
    "machine": "JSON",
    "facts": "JSON",
}
_OLD_COLUMNS = {old: _RUN_COLUMNS[new] for old, new in RENAMED.items()}

_PROBE = f"coalesce(probe_s, {next(old for old, new in RENAMED.items() if new == 'probe_s')})"
_DRIFT = f"coalesce({_PROBE} / median({_PROBE}) OVER (PARTITION BY campaign) - 1, drift)"
"""As `run.with_drift`: the probe against the median of all probes of its campaign."""
_RUNS = f"""
CREATE VIEW runs AS
SELECT * EXCLUDE (schema_version, {", ".join(RENAMED)})
       REPLACE ({", ".join(f"coalesce({new}, {old}) AS {new}" for old, new in RENAMED.items())},
                coalesce(drift_limit, {DRIFT_LIMIT}) AS drift_limit, {_DRIFT} AS drift),
       coalesce(abs({_DRIFT}) > coalesce(drift_limit, {DRIFT_LIMIT}), false) AS drifted
FROM stored_runs
"""

_PASSES = """
CREATE VIEW passes AS
WITH slowest AS (
    SELECT run, pass_name, step, max(seconds) AS seconds FROM steps WHERE NOT warmup GROUP BY run, pass_name, step
), typical AS (
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


def open_views(store: Store, runs: Sequence[str] | None = None) -> duckdb.DuckDBPyConnection:
    """An in-memory connection whose views read the current files of the store, of all runs or of the given runs."""
    connection = duckdb.connect(":memory:")
    _hide_progress(connection)
    connection.execute("SET TimeZone = 'UTC'")
    folder = store.runs.absolute()
    stored = bool(runs) if runs is not None else any(folder.glob("*/run.json"))
    names = (list(runs or ()) if runs is not None else ["*"]) if stored else []
    _json_view(connection, [folder / name / "run.json" for name in names])
    connection.execute(_RUNS)
    for name, schema in (("steps", STEPS), ("spans", SPANS)):
        _parquet_view(connection, [folder / each / f"{name}.parquet" for each in names], name, schema)
    connection.execute(_PASSES)
    connection.execute(_LAUNCHES)
    return connection


def _hide_progress(connection: duckdb.DuckDBPyConnection) -> None:
    """Disable the progress bar; in a notebook without widgets DuckDB has no progress bar and refuses the setting."""
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")


def _json_view(connection: duckdb.DuckDBPyConnection, files: list[Path]) -> None:
    columns = {**_RUN_COLUMNS, **_OLD_COLUMNS}
    if files:
        kinds = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
        options = f"columns = {{{kinds}}}, format = 'unstructured', maximum_object_size = 67108864"
        source = f"read_json({_quoted(files)}, {options})"
    else:
        source = f"(SELECT {', '.join(f'NULL::{kind} AS {name!r}' for name, kind in columns.items())} WHERE false)"
    connection.execute(f"CREATE VIEW stored_runs AS SELECT * FROM {source}")
    newer = "SELECT id, schema_version FROM stored_runs WHERE schema_version > ? LIMIT 1"
    for run, version in connection.execute(newer, [SCHEMA_VERSION]).fetchall():
        reason = f"written by a newer Paceline (schema {version}, this one reads {SCHEMA_VERSION})"
        raise StoreError(f"{run}: {reason}", hint="upgrade Paceline")


def _parquet_view(connection: duckdb.DuckDBPyConnection, files: list[Path], name: str, schema: pa.Schema) -> None:
    if files:
        run = "parse_path(filename)[-2] AS run"
        source = f"read_parquet({_quoted(files)}, filename = true)"
        connection.execute(f"CREATE VIEW {name} AS SELECT {run}, * EXCLUDE (filename) FROM {source}")
    else:
        connection.register(f"empty_{name}", schema.empty_table())
        connection.execute(f"CREATE VIEW {name} AS SELECT NULL::VARCHAR AS run, * FROM empty_{name}")


def _quoted(paths: list[Path]) -> str:
    return "[" + ", ".join("'" + str(path).replace("'", "''") + "'" for path in paths) + "]"


def ask(store: Store, query: str) -> pa.Table:
    """The result of one SELECT over the views; other statements are refused."""
    connection = open_views(store)
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


_READING: tuple[Any, ...] = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


def _first_lines(text: str) -> str:
    return "\n  ".join(line for line in text.strip().splitlines()[:6] if line.strip())


def _views_hint() -> str:
    return "views: " + ", ".join(f"{name} ({what})" for name, what in VIEWS.items())
