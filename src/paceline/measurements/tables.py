"""Bulk reads of stored runs through the views of `sql`: launches, passes, spans, throughputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from paceline.catalog import framework
from paceline.errors import InputError, UnknownName
from paceline.measurements.run import PHASES, Run, Span, counted
from paceline.measurements.sql import SLOWEST, open_views, require_text
from paceline.measurements.store import Store, default_store
from paceline.measurements.summary import phases_of

__all__ = [
    "CONDITION_FIELDS",
    "LaunchRates",
    "PassTime",
    "RankPass",
    "clean_steps",
    "launch_table",
    "pass_times",
    "rank_passes",
    "read_spans",
    "throughputs_where",
]

CONDITION_FIELDS = (
    "study",
    "campaign",
    "network",
    "framework",
    "strategy",
    "cluster",
    "launcher",
    "ranks",
    "batch",
    "input",
    "scaling",
    "case_id",
)
"""The fields of conditions of `throughputs_where`."""

_CASE = "id, campaign, study, case_id, network, framework, strategy, cluster, launcher, ranks, batch, scaling, input"
_SPAN_COLUMNS = "rank, step, phase, name, start_s, seconds, size_bytes, source"


@dataclass(frozen=True, slots=True)
class RankPass:
    """One pass of one rank of one launch."""

    run: str
    pass_name: str
    rank: int
    median_s: float
    steps: list[float]
    """Seconds of its timed steps in order, if requested."""


@dataclass(frozen=True, slots=True)
class PassTime:
    """One pass of one launch: its timed steps, each as long as its slowest rank."""

    run: str
    pass_name: str
    num_steps: int
    median_s: float
    samples_per_s: float
    """All samples divided by the elapsed time of the slowest rank."""


@dataclass(frozen=True)
class LaunchRates:
    """Samples per second of some launches, and the round in which each was started."""

    samples_per_s: list[float]
    rounds: list[tuple[str, int]]
    """Campaign and number of the launch: a round launches every case once."""
    runs: list[Run]


def pass_times(store: Store, runs: Sequence[str]) -> list[PassTime]:
    """All passes of these runs."""
    query = "SELECT run, pass_name, timed_steps, step_s, samples_per_s FROM passes ORDER BY run, pass_name"
    with open_views(store, runs) as connection:
        return [PassTime(*row) for row in connection.execute(query).fetchall()]


def rank_passes(store: Store, runs: Sequence[str], *, steps_of: Sequence[str] = ()) -> list[RankPass]:
    """All passes of every rank of these runs, with the individual steps of some passes."""
    query = """SELECT run, pass_name, rank, median(seconds),
                   CASE WHEN list_contains($steps_of, pass_name) THEN list(seconds ORDER BY step) ELSE [] END
               FROM steps WHERE NOT warmup GROUP BY run, pass_name, rank ORDER BY run, pass_name, rank"""
    with open_views(store, runs) as connection:
        return [RankPass(*row) for row in connection.execute(query, {"steps_of": list(steps_of)}).fetchall()]


def clean_steps(store: Store, runs: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of the timed steps of these runs in order, each as long as its slowest rank."""
    query = f"SELECT run, list(seconds ORDER BY step) FROM ({SLOWEST}) WHERE pass_name = 'clean' GROUP BY run"
    with open_views(store, runs) as connection:
        return dict(connection.execute(query).fetchall())


def read_spans(store: Store, runs: Sequence[str]) -> dict[str, tuple[Span, ...]]:
    """Spans of these runs, in order of rank, step and start."""
    spans: dict[str, list[Span]] = defaultdict(list)
    with open_views(store, runs) as connection:
        query = f"SELECT run, {_SPAN_COLUMNS} FROM spans ORDER BY run, rank, step, start_s"
        for run, *fields in connection.execute(query).fetchall():
            spans[run].append(Span(*fields))
    return {run: tuple(items) for run, items in spans.items()}


def throughputs_where(store: Store, conditions: str) -> LaunchRates:
    """Samples per second of every launch that counts and meets conditions such as `study=demo,ranks=2`.

    A word without `=` is the name of a study or the id of a campaign.
    """
    pairs = [_condition(text) for text in require_text(conditions).split(",") if text.strip()]
    if not pairs:
        raise InputError("no condition given", hint="write field=value, for instance study=demo,ranks=2")
    where = " AND ".join(f"CAST({field} AS VARCHAR) = ?" if field else "? IN (study, campaign)" for field, _ in pairs)
    query = f"SELECT id, samples_per_s FROM launches WHERE {where}"
    with open_views(store) as connection:
        rates = dict(connection.execute(query, [value for _, value in pairs]).fetchall())
    cases: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in store.read_all():
        if run.id in rates:
            cases[run.campaign, run.case_id].append(run)
    chosen = [run for runs in cases.values() for run in counted(runs)]
    return LaunchRates([rates[run.id] for run in chosen], [(run.campaign, run.launch) for run in chosen], chosen)


def _condition(text: str) -> tuple[str, str]:
    field, equals, value = text.partition("=")
    if not equals:
        return "", text.strip()
    if not value.strip():
        raise InputError(f"{text!r} is not a condition", hint="write field=value")
    if field.strip() not in CONDITION_FIELDS:
        raise UnknownName("field", field.strip(), CONDITION_FIELDS)
    return field.strip(), _full_framework(value.strip()) if field.strip() == "framework" else value.strip()


def _full_framework(name: str) -> str:
    """The framework with its default mode, as in a study; a name that the catalog lacks is unchanged."""
    try:
        return framework(name)
    except UnknownName:
        return name


def launch_table(store: Path | str | None = None, *, study: str | None = None, campaign: str | None = None) -> pa.Table:
    """One row per launch, including failed launches.

    Columns: parameters of the case, launch, started_at, outcome, reason (of a failure), drifted, timed_steps, step_s,
    samples_per_s, and the exposed seconds of each phase (io_s .. update_s, other_s).
    """
    given = {"study": study, "campaign": campaign}
    wanted = {name: value for name, value in given.items() if value is not None}
    with open_views(Store(Path(store) if store is not None else default_store())) as connection:
        rows: pa.Table = connection.sql(
            f"""SELECT {_CASE}, launch, started_at, outcome, failure.reason AS reason, drifted, timed_steps, step_s,
                       samples_per_s
                FROM runs
                LEFT JOIN (SELECT id AS run_id, timed_steps, step_s, samples_per_s FROM launches) ON id = run_id
                WHERE {" AND ".join(f"{name} = ?" for name in wanted) or "true"}
                ORDER BY started_at, id""",
            params=list(wanted.values()),
        ).to_arrow_table()
        passes = connection.execute("SELECT run, pass_name, step_s FROM passes").fetchall()
    return _with_phases(rows, passes)


def _with_phases(rows: pa.Table, passes: Sequence[tuple[str, str, float]]) -> pa.Table:
    """The table and a column for the exposed seconds of each phase, empty without instrumented passes."""
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    for run, name, step_s in passes:
        seconds[run][name] = step_s
    phases = {run: phases_of(item) for run, item in seconds.items() if len(item) > 1 and "clean" in item}
    for name in (*PHASES, "other"):
        column = [phases.get(run, {}).get(name) for run in rows["id"].to_pylist()]
        rows = rows.append_column(f"{name}_s", pa.array(column, pa.float64()))
    return rows
