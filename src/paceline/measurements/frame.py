"""All launches of a store as one Arrow table: what was asked, the outcome, throughput, step and phases."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from paceline.measurements.run import PHASES
from paceline.measurements.sql import connect
from paceline.measurements.store import Store, default_store
from paceline.measurements.summary import phases_of

__all__ = ["load_runs"]

_ASKED = "id, campaign, study, case_id, network, framework, strategy, cluster, launcher, ranks, batch, scaling, input"


def load_runs(store: Path | str | None = None, *, study: str | None = None, campaign: str | None = None) -> pa.Table:
    """One row per launch, failed ones too; `.to_pandas()` makes a data frame.

    Columns: what was asked, launch, started_at, outcome, reason (of a failure), timed_steps, step_s, samples_per_s,
    and the exposed seconds of each phase (io_s .. update_s, other_s).
    """
    place = Store(Path(store) if store is not None else default_store())
    given = {"study": study, "campaign": campaign}
    wanted = {name: value for name, value in given.items() if value is not None}
    with connect(place) as connection:
        rows: pa.Table = connection.sql(
            f"""SELECT {_ASKED}, runs.launch, runs.started_at, outcome, failure.reason AS reason, timed_steps, step_s,
                       samples_per_s
                FROM runs
                LEFT JOIN (SELECT id AS run_id, timed_steps, step_s, samples_per_s FROM launches) ON id = run_id
                WHERE {_conditions(wanted)}
                ORDER BY started_at, id""",
            params=list(wanted.values()),
        ).to_arrow_table()
        phases = _phases(connection)
    for name in (*PHASES, "other"):
        column = [phases.get(run, {}).get(name) for run in rows["id"].to_pylist()]
        rows = rows.append_column(f"{name}_s", pa.array(column, pa.float64()))
    return rows


def _conditions(wanted: dict[str, str]) -> str:
    return " AND ".join(f"{name} = ?" for name in wanted) or "true"


def _phases(connection: Any) -> dict[str, dict[str, float]]:
    """Exposed seconds by run, where its step was split."""
    rows = connection.execute(
        """WITH slowest AS (
               SELECT run, pass_name, step, max(seconds) AS seconds FROM steps WHERE NOT warmup GROUP BY ALL)
           SELECT run, pass_name, median(seconds) FROM slowest GROUP BY ALL"""
    ).fetchall()
    passes: dict[str, dict[str, float]] = defaultdict(dict)
    for run, name, seconds in rows:
        passes[run][name] = seconds
    return {run: phases_of(found) for run, found in passes.items() if len(found) > 1 and "clean" in found}
