"""SQL reads all runs and changes none."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from paceline.errors import InputError
from paceline.measurements import sql
from paceline.measurements.results import load_launches
from paceline.measurements.run import RunData, Span, Step
from paceline.measurements.sql import ask, open_views, result_rows
from paceline.measurements.store import Store
from paceline.measurements.tablefiles import SPANS, STEPS
from paceline.measurements.tables import (
    clean_steps,
    launch_table,
    pass_times,
    rank_passes,
    read_spans,
    throughputs_where,
)
from tests.unit.test_store import make_run, make_steps


@pytest.fixture
def store(tmp_path: Path) -> Store:
    place = Store(tmp_path / "it's here")
    spans = (Span(0, 0, "forward", "conv1", 0.0, 0.1, 12),)
    place.write(RunData(make_run("demo-1-abc-000"), make_steps(0.1), spans))
    place.write(RunData(make_run("demo-1-abc-001", launch=1), make_steps(0.2)))
    place.write(RunData(make_run("demo-1-abc-002", launch=2, outcome="failed"), ()))
    return place


def test_throughput_is_all_samples_over_all_time_of_the_slowest_rank(store: Store) -> None:
    rows = ask(store, "SELECT launch, timed_steps, step_s, samples_per_s FROM launches ORDER BY launch").to_pylist()
    assert [row["timed_steps"] for row in rows] == [5, 5]
    assert rows[0]["step_s"] == pytest.approx(0.11)
    assert rows[0]["samples_per_s"] == pytest.approx(16 / 0.11)
    assert rows[1]["samples_per_s"] == pytest.approx(16 / 0.22)


def test_the_time_of_a_launch_is_that_of_its_slowest_rank_although_ranks_take_turns(tmp_path: Path) -> None:
    seconds = {0: (0.1, 0.2, 0.1, 0.2), 1: (0.2, 0.1, 0.2, 0.15)}
    steps = [Step("clean", rank, k, False, 0.0, s) for rank, times in seconds.items() for k, s in enumerate(times)]
    steps.append(Step("clean", 1, 0, True, 0.0, 9.0))
    place = Store(tmp_path)
    place.write(RunData(make_run(), tuple(steps)))
    (row,) = ask(place, "SELECT timed_steps, step_s, total_s, samples_per_s FROM launches JOIN passes "
                        "USING (timed_steps, step_s, samples_per_s)").to_pylist()  # fmt: skip
    assert row["total_s"] == pytest.approx(0.65)  # the sum of the slowest steps is 0.8
    assert row["samples_per_s"] == pytest.approx(4 * 2 * 8 / 0.65)
    assert (row["timed_steps"], row["step_s"]) == (4, pytest.approx(0.2))


def test_steps_and_spans_begin_with_their_run_and_keep_the_columns_of_their_files(store: Store) -> None:
    steps, spans = (ask(store, f"SELECT * FROM {name}") for name in ("steps", "spans"))
    assert steps.column_names == ["run", *STEPS.names]
    assert spans.column_names == ["run", *SPANS.names]
    assert set(steps["run"].to_pylist()) == {"demo-1-abc-000", "demo-1-abc-001"}
    assert spans["run"].to_pylist() == ["demo-1-abc-000"]


def test_every_reader_of_throughput_says_the_same(store: Store) -> None:
    by_view = ask(store, "SELECT samples_per_s FROM launches ORDER BY id")["samples_per_s"].to_pylist()
    ids = [run.id for run in store.read_all()]
    table = launch_table(store.root)
    assert [row["samples_per_s"] for row in table.to_pylist() if row["outcome"] == "ok"] == by_view
    assert [item.samples_per_s for item in pass_times(store, ids)] == by_view
    assert throughputs_where(store, "study=demo").samples_per_s == by_view
    assert list(load_launches(store, "demo-1")[0].throughputs) == by_view


def test_a_framework_without_its_mode_means_the_default_mode(store: Store) -> None:
    named = throughputs_where(store, "framework=pytorch/ddp")
    assert named.samples_per_s
    assert throughputs_where(store, "framework=pytorch") == named
    assert throughputs_where(store, "framework=no-such").samples_per_s == []


def test_runs_that_are_named_are_read_alone(store: Store) -> None:
    assert [item.run for item in pass_times(store, ["demo-1-abc-001"])] == ["demo-1-abc-001"]
    assert pass_times(store, []) == []


def test_runs_steps_and_spans_join(store: Store) -> None:
    answer = ask(store, "SELECT count(*) AS n FROM steps JOIN runs ON run = id WHERE launch = 1").to_pylist()
    assert answer == [{"n": 10}]
    assert ask(store, "SELECT run, name FROM spans").to_pylist() == [{"run": "demo-1-abc-000", "name": "conv1"}]


def test_an_empty_store_has_all_views(tmp_path: Path) -> None:
    for view in ("runs", "launches", "steps", "spans"):
        assert ask(Store(tmp_path / "none"), f"SELECT count(*) AS n FROM {view}").to_pylist() == [{"n": 0}]


@pytest.mark.parametrize(
    "query",
    [
        "DROP VIEW runs",
        "COPY (SELECT 1) TO 'out.csv'",
        "SELECT 1; SELECT 2",
        "ATTACH 'x.db'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO 'out.csv'",
        "EXPLAIN ANALYZE INSERT INTO steps SELECT * FROM steps",
        "EXPLAIN ANALYZE CREATE TABLE x AS SELECT 1",
        "EXPORT DATABASE 'out.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "PRAGMA database_list",
        "PRAGMA enable_profiling = 'json'",
        "CALL enable_logging()",
        "SELECT * FROM enable_logging()",
        "SELECT * FROM read_csv('secret.txt')",
        "SELECT * FROM read_text('secret.txt')",
        "SELECT * FROM 'secret.txt'",
        "SELECT * FROM glob('*')",
        "SELECT * FROM sniff_csv('secret.txt')",
        "SELECT * FROM parquet_metadata('secret.txt')",
        "SELECT getenv('HOME')",
        "SELECT * FROM query('COPY (SELECT 1) TO ''out.csv'' ')",
        "SELECT * FROM rows",
        "SELECT error('no')",
        "SELECT * FROM range(1000000000000)",
        "SELECT nothing FROM runs",
        "SELEC 1",
        "SELECT '\udcff'",
        "",
    ],
)
def test_only_one_select_is_answered(store: Store, query: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.txt").write_text("a,b\n1,2\n")
    before = sorted(tmp_path.rglob("*"))
    rows = pa.table({"a": [1]})
    assert rows.num_rows == 1  # a variable of the caller is no table either
    with pytest.raises(InputError):
        ask(store, query)
    assert sorted(tmp_path.rglob("*")) == before


def test_settings_of_the_connection_are_final(store: Store) -> None:
    query = "SELECT name, value FROM duckdb_settings() WHERE name IN ('enable_external_access', 'lock_configuration')"
    found = {row["name"]: row["value"] for row in ask(store, query).to_pylist()}
    assert found == {"enable_external_access": "false", "lock_configuration": "true"}


def test_a_query_without_an_end_takes_a_bounded_part_of_the_memory(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "MAX_MEMORY", 64 << 20)
    assert ask(store, "SELECT current_setting('memory_limit') AS most").to_pylist() == [{"most": "64.0 MiB"}]
    endless = "WITH RECURSIVE r AS (SELECT 1 AS a UNION ALL SELECT b FROM r, range(1000) t(b)) SELECT max(a) FROM r"
    with pytest.raises(InputError, match="the query failed: Out of Memory"):
        ask(store, endless)


@pytest.mark.parametrize("query", ["DESCRIBE runs", "FROM launches", "WITH a AS (SELECT 1) FROM a", "SUMMARIZE steps"])
def test_whatever_only_reads_is_answered(store: Store, query: str) -> None:
    assert ask(store, query).num_rows > 0


@pytest.mark.parametrize("moment", ["'infinity'::DATE", "'-infinity'::TIMESTAMP", "'0044-03-15 (BC)'::DATE",
    "'294246-01-01'::TIMESTAMPTZ", "[{'a': 'infinity'::DATE}]"])  # fmt: skip
def test_a_moment_that_python_does_not_know_is_refused(store: Store, moment: str) -> None:
    with pytest.raises(InputError, match="years 1 to 9999"):
        result_rows(ask(store, f"SELECT {moment} AS x"))


def test_an_answer_of_too_many_bytes_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "MAX_BYTES", 1 << 20)
    assert ask(store, "SELECT repeat('x', 1000000) AS x").num_rows == 1
    with pytest.raises(InputError, match="1 MiB"):
        ask(store, "SELECT repeat('x', 2000000) AS x")


def test_select_chooses_by_conditions(store: Store) -> None:
    assert len(throughputs_where(store, "study=demo, ranks=2").samples_per_s) == 2
    assert throughputs_where(store, "study=demo, ranks=2").rounds == [("demo-1", 0), ("demo-1", 1)]
    assert throughputs_where(store, "study=demo,ranks=3").samples_per_s == []
    with pytest.raises(InputError, match="rank"):
        throughputs_where(store, "rnks=2")
    assert len(throughputs_where(store, "demo, ranks=2").samples_per_s) == 2, "a word alone is a study or a campaign"
    assert throughputs_where(store, "ranks").samples_per_s == []
    for nothing in ("ranks=", " , "):
        with pytest.raises(InputError, match="condition"):
            throughputs_where(store, nothing)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Query interrupted"),
        duckdb.InterruptException("Interrupted!"),
        duckdb.InvalidInputException(
            "reading the schema of the object registered as 'spans' failed: KeyboardInterrupt"
        ),
    ],
)
def test_what_duckdb_makes_of_ctrl_c_is_an_interrupt_again(store: Store, error: Exception) -> None:
    with pytest.raises(KeyboardInterrupt), open_views(store):
        raise error


def test_another_error_beside_views_stays_itself(store: Store) -> None:
    with pytest.raises(RuntimeError, match="another"), open_views(store):
        raise RuntimeError("another")


def test_passes_of_every_rank_without_their_warm_up(tmp_path: Path) -> None:
    steps = [
        *(Step("clean", 1, k, k < 2, 0.0, seconds) for k, seconds in enumerate((9.0, 8.0, 0.5, 0.3, 0.1, 0.7))),
        *(Step("clean", 0, k, False, 0.0, seconds) for k, seconds in enumerate((0.4, 0.2))),
        Step("forward", 0, 0, False, 0.0, 0.05),
    ]
    spans = (
        Span(1, 0, "io", "d", 0.0, 0.1), Span(0, 1, "io", "c", 0.0, 0.1), Span(0, 0, "io", "b", 0.2, 0.1, 7, "x"),
        Span(0, 0, "io", "a", 0.1, 0.1),
    )  # fmt: skip
    place = Store(tmp_path)
    place.write(RunData(make_run(), tuple(steps), spans))
    place.write(RunData(make_run("demo-1-abc-001", launch=1), make_steps()))
    found = rank_passes(place, ["demo-1-abc-000"], steps_of=("clean",))
    assert [(one.pass_name, one.rank, one.median_s, one.steps) for one in found] == [
        ("clean", 0, pytest.approx(0.3), [0.4, 0.2]),
        ("clean", 1, pytest.approx(0.4), [0.5, 0.3, 0.1, 0.7]),
        ("forward", 0, 0.05, []),
    ]
    assert {one.run for one in rank_passes(place, ["demo-1-abc-000", "demo-1-abc-001"])} == {
        "demo-1-abc-000", "demo-1-abc-001",
    }  # fmt: skip
    assert all(one.steps == [] for one in rank_passes(place, ["demo-1-abc-001"]))
    in_order = [spans[3], spans[2], spans[1], spans[0]]
    assert read_spans(place, ["demo-1-abc-000"]) == {"demo-1-abc-000": tuple(in_order)}


def test_phases_of_a_launch_are_in_the_table_only_where_its_passes_were_timed(tmp_path: Path) -> None:
    place = Store(tmp_path)
    passes = [Step(name, 0, 0, False, 0.0, seconds) for name, seconds in (("clean", 4.0), ("forward", 1.0))]
    place.write(RunData(make_run(ranks=1), (*passes, Step("compute", 0, 0, False, 0.0, 4.0))))
    place.write(RunData(make_run("demo-1-abc-001", launch=1, ranks=1), (passes[0],)))
    first, second = launch_table(tmp_path).to_pylist()
    assert (first["forward_s"], first["backward_s"], first["other_s"]) == (1.0, 3.0, 0.0)
    assert (second["forward_s"], second["step_s"], second["other_s"]) == (None, 4.0, None)
    assert launch_table(tmp_path, study="other").num_rows == 0
    assert launch_table(tmp_path, campaign="demo-1").num_rows == 2


@pytest.mark.parametrize(
    ("text", "says"), [("", "no condition"), (" , ", "no condition"), ("ranks=", "not a condition")]
)
def test_conditions_that_say_nothing_are_refused(store: Store, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        throughputs_where(store, text)


def test_conditions_hold_together_and_a_word_is_a_study_or_a_campaign(store: Store) -> None:
    assert len(throughputs_where(store, "demo").runs) == len(throughputs_where(store, "demo-1").runs) == 2
    assert throughputs_where(store, "demo,ranks=3").runs == []
    assert throughputs_where(store, "other").runs == []


def test_moments_are_in_utc_wherever_a_run_was_measured(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(RunData(make_run(started_at="2026-01-01T01:30:00.000+02:00"), make_steps()))
    (moment,) = ask(store, "SELECT started_at FROM runs")["started_at"].to_pylist()
    assert moment == datetime(2025, 12, 31, 23, 30)


def test_steps_to_compare_are_timed_ones_of_the_clean_pass_as_long_as_their_slowest_rank(tmp_path: Path) -> None:
    store = Store(tmp_path)
    timed = [(0, 1, 1.0), (1, 1, 2.0), (0, 2, 3.0), (1, 2, 1.0)]
    steps = [Step("clean", rank, step, False, 0.0, seconds) for rank, step, seconds in timed]
    beside = (Step("clean", 0, 0, True, 0.0, 9.0), Step("forward", 0, 3, False, 0.0, 7.0))
    run = make_run()
    store.write(RunData(run, (*steps, *beside)))
    assert clean_steps(store, [run.id]) == {run.id: [2.0, 3.0]}
