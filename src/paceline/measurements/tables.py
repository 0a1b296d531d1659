"""Steps and spans of chosen runs, read in bulk: what explanations and exports need beyond the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import duckdb

from paceline.measurements.run import Span
from paceline.measurements.sql import hide_progress
from paceline.measurements.store import Store

__all__ = ["PassTime", "RankPass", "pass_times", "rank_passes", "read_spans"]

_SPAN_COLUMNS = "rank, step, phase, name, start_s, seconds, size_bytes, source"


@dataclass(frozen=True, slots=True)
class RankPass:
    """One pass of one rank of one launch."""

    run: str
    pass_name: str
    rank: int
    median_s: float
    steps: list[float]
    """Seconds of its timed steps in order, where they were asked for."""


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass of one launch: its timed steps, each as long as its slowest rank."""

    run: str
    pass_name: str
    num_steps: int
    median_s: float
    total_s: float


def pass_times(store: Store, runs: Sequence[str]) -> list[PassTime]:
    """Every pass of these runs."""
    rows = _ask(
        store,
        runs,
        table="steps",
        query="""WITH slowest AS (
                     SELECT parse_path(filename)[-2] AS run, pass_name, step, max(seconds) AS seconds
                     FROM read_parquet($files, filename = true) WHERE NOT warmup GROUP BY ALL)
                 SELECT run, pass_name, count(*), median(seconds), sum(seconds)
                 FROM slowest GROUP BY ALL ORDER BY ALL""",
    )
    return [PassTime(*row) for row in rows]


def rank_passes(store: Store, runs: Sequence[str], *, steps_of: Sequence[str] = ()) -> list[RankPass]:
    """Every pass of every rank of these runs, with the single steps of some passes."""
    rows = _ask(
        store,
        runs,
        table="steps",
        query="""SELECT parse_path(filename)[-2] AS run, pass_name, rank, median(seconds),
               CASE WHEN list_contains($steps_of, pass_name) THEN list(seconds ORDER BY step) ELSE [] END
           FROM read_parquet($files, filename = true) WHERE NOT warmup GROUP BY run, pass_name, rank
           ORDER BY run, pass_name, rank""",
        steps_of=list(steps_of),
    )
    return [RankPass(*row) for row in rows]


def read_spans(store: Store, runs: Sequence[str]) -> dict[str, tuple[Span, ...]]:
    """Spans of these runs, in order of rank, step and start."""
    rows = _ask(
        store,
        runs,
        table="spans",
        query=f"""SELECT parse_path(filename)[-2] AS run, {_SPAN_COLUMNS}
            FROM read_parquet($files, filename = true) ORDER BY run, rank, step, start_s""",
    )
    found: dict[str, list[Span]] = defaultdict(list)
    for run, *fields in rows:
        found[run].append(Span(*fields))
    return {run: tuple(spans) for run, spans in found.items()}


def _ask(store: Store, runs: Sequence[str], *, table: str, query: str, **given: object) -> list[Any]:
    files = [str(store.runs.absolute() / run / f"{table}.parquet") for run in runs]
    if not files:
        return []
    with duckdb.connect(":memory:") as connection:
        hide_progress(connection)
        rows: list[Any] = connection.execute(query, {"files": files, **given}).fetchall()
    return rows
