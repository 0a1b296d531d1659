"""Runs appear whole or not at all, and are never edited."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import StoreError
from paceline.measurements.results import campaign_results, load_launches
from paceline.measurements.run import Failure, Machine, Run, RunData, Span, Step, counted, with_drift
from paceline.measurements.sql import ask
from paceline.measurements.store import Store
from paceline.measurements.summary import median_interval
from paceline.measurements.tables import throughputs_where
from tests.made import cluster


def machine() -> Machine:
    return Machine(
        host="h", cpu="c", cores=2, memory_bytes=1, os="o", kernel="k", python="3.11", paceline="0", versions={"x": "1"}
    )


CLUSTER = cluster(16).model_dump(mode="json")


def make_run(run_id: str = "demo-1-abc-000", **changes: object) -> Run:
    fields = {
        "id": run_id,
        "campaign": "demo-1",
        "study": "demo",
        "case_id": "abc",
        "case": {"network": {"name": "lenet"}, "cluster": CLUSTER, "strategy": {}},
        "network": "lenet",
        "framework": "pytorch/ddp",
        "strategy": "default",
        "cluster": "local",
        "ranks": 2,
        "batch": 8,
        "scaling": "weak",
        "input": "resident",
        "launch": 0,
        "started_at": "2026-01-01T00:00:00.000+00:00",
        "seconds": 1.0,
        "outcome": "ok",
        "machine": machine(),
        **changes,
    }
    return Run.model_validate(fields)


def make_steps(seconds: float = 0.1, ranks: int = 2, count: int = 5) -> tuple[Step, ...]:
    return tuple(
        Step("clean", rank, step, False, step * seconds, seconds * (1 + 0.1 * rank))
        for rank in range(ranks)
        for step in range(count)
    )


def test_a_run_is_on_disk_before_its_name_appears_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, seen = tmp_path / "runs" / "demo-1-abc-000", set[tuple[str, bool]]()
    monkeypatch.setattr(
        "os.fsync", lambda handle: seen.add((Path(f"/proc/self/fd/{handle}").readlink().name, target.exists()))
    )
    Store(tmp_path).write(RunData(make_run(), make_steps()))
    files = {"run.json", "steps.parquet", "spans.parquet", "SHA256SUMS"}
    assert {(name, False) for name in files} <= seen
    assert ("runs", True) in seen


def test_a_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    store = Store(tmp_path)
    failure = Failure(phase="measure", reason="crash", message="m", rank=1, exit_code=3, log_tail="t")
    run = make_run(outcome="failed", failure=failure, drift=0.01, labels=("unsupported combination",))
    store.write(RunData(run, make_steps(), (Span(0, 0, "forward", "conv1", 0.0, 0.1, 12),)))
    assert store.read(run.id) == run
    assert store.read_all(study="demo") == [run]
    assert store.read_all(study="other") == []
    assert store.read_all(campaign="demo-1") == [run]
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(RunData(make_run(seconds=1.0)))
    store.write(RunData(make_run(seconds=2.0)))
    assert store.read("demo-1-abc-000").seconds == 1.0


def test_a_campaign_is_not_a_prefix_of_another(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.write(RunData(make_run("demo-1-abc-000")))
    store.write(RunData(make_run("demo-12-abc-000", campaign="demo-12")))
    assert [run.id for run in store.read_all(campaign="demo-1")] == ["demo-1-abc-000"]


def test_runs_are_read_in_the_order_in_which_they_were_launched(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for name, minute in (("a", 2), ("b", 0), ("c", 1), ("d", 1)):
        started_at = f"2026-01-01T00:0{minute}:00.000+00:00"
        store.write(RunData(make_run(f"demo-1-{name}-000", case_id=name, started_at=started_at)))
    assert [run.case_id for run in store.read_all()] == ["b", "c", "d", "a"]


def test_a_run_has_as_many_ranks_as_its_case_has_devices_and_no_more(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for ranks in (16, 17):
        store.write(RunData(make_run(f"demo-1-abc-{ranks:03d}", ranks=ranks)))
    assert [run.ranks for run in store.read_all()] == [16]
    assert "17 on the 16 devices" in store.damaged["demo-1-abc-017"].reason


def test_the_document_of_another_campaign_is_damage_whatever_its_file_is_called(tmp_path: Path) -> None:
    store = Store(tmp_path)
    document = {"campaign": "demo-1", "study": "demo", "started_at": "2026-01-01T00:00:00.000+00:00"}
    store.write_campaign("demo-1", document)
    (store.campaigns / "demo-2.json").write_text((store.campaigns / "demo-1.json").read_text())
    assert [one["campaign"] for one in store.read_campaigns()] == ["demo-1"]
    assert "document of another campaign" in store.damaged["demo-2"].reason


def test_what_is_newer_is_refused_by_name(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(RunData(make_run())) / "run.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "schema_version": 99, "novelty": 1}))
    with pytest.raises(StoreError, match="newer Paceline"):
        store.read("demo-1-abc-000")


def test_a_newer_run_is_refused_even_if_it_looks_like_one_of_today(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = store.write(RunData(make_run())) / "run.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 4}))
    with pytest.raises(StoreError, match="schema 4, this one reads 3"):
        store.read("demo-1-abc-000")
    assert ask(store, "SELECT count(*) AS n FROM runs").to_pylist() == [{"n": 0}]
    assert "newer Paceline" in store.damaged["demo-1-abc-000"].reason


def test_a_run_of_schema_1_is_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run = make_run(probe_s=0.25, drift=0.03)
    path = store.write(RunData(run)) / "run.json"
    document = json.loads(path.read_text())
    old = {**document, "schema_version": 1, "environment": document.pop("machine")}
    old["calibration_s"] = old.pop("probe_s")
    del old["machine"], old["drift_limit"]
    path.write_text(json.dumps(old))
    (path.parent / "SHA256SUMS").unlink()
    assert store.read(run.id) == run.model_copy(update={"schema_version": 1})
    query = "SELECT machine->>'host' AS host, probe_s, drift_limit, drifted FROM runs"
    assert ask(store, query).to_pylist() == [{"host": "h", "probe_s": 0.25, "drift_limit": 0.02, "drifted": False}]


@pytest.mark.parametrize(("drift", "limit", "drifted"), [
    (None, 0.02, False), (0.021, 0.02, True), (-0.021, 0.02, True), (0.021, 0.05, False), (0.051, 0.05, True),
])  # fmt: skip
def test_the_asked_width_decides_what_drifted_in_python_and_in_sql(
    tmp_path: Path, drift: float | None, limit: float, drifted: bool
) -> None:
    store = Store(tmp_path)
    run = make_run(drift=drift, drift_limit=limit)
    store.write(RunData(run, make_steps()))
    assert run.drifted is drifted
    assert ask(store, "SELECT drifted FROM launches").to_pylist() == [{"drifted": drifted}]
    assert [result.num_drifted for result in campaign_results(store, "demo-1")] == [drifted]


def probed(*probes: float) -> list[Run]:
    return [make_run(f"demo-1-abc-{n:03d}", launch=n, probe_s=probe) for n, probe in enumerate(probes)]


def test_every_launch_has_a_drift_against_the_median_of_its_campaign_the_first_too(tmp_path: Path) -> None:
    store = Store(tmp_path)
    other = make_run("demo-2-abc-000", campaign="demo-2", probe_s=9.0)
    for run in [*probed(1.1, 1.0, 1.0, 0.97), other]:
        store.write(RunData(run, make_steps()))
    expected = pytest.approx([0.1, 0.0, 0.0, -0.03, 0.0])
    assert [run.drift for run in store.read_all()] == expected
    rows = ask(store, "SELECT drift, drifted FROM runs ORDER BY id").to_pylist()
    assert [row["drift"] for row in rows] == expected
    assert [row["drifted"] for row in rows] == [run.drifted for run in store.read_all()]
    assert [run.drifted for run in store.read_all()] == [True, False, False, True, False]


@pytest.mark.parametrize(("probes", "launches"), [
    ((1.1, 1.0, 1.0, 1.0), [1, 2, 3]),         # the first drifted
    ((1.1, 1.0, 1.0), [0, 1, 2]),              # two would remain: too few
    ((1.1, 1.2, 1.3, 1.4, 1.0, 1.0, 1.0), [0, 1, 2, 3, 4, 5, 6]),  # no usual speed
    ((1.1, 0.9, 1.2, 1.0, 1.0, 1.0), [3, 4, 5]),  # half of them
])  # fmt: skip
def test_launches_that_drifted_do_not_count_if_enough_remain(
    tmp_path: Path, probes: tuple[float, ...], launches: list[int]
) -> None:
    store = Store(tmp_path)
    failed = make_run("demo-1-abc-900", launch=900, outcome="failed", probe_s=1.0)
    for run in probed(*probes):
        store.write(RunData(run, make_steps(0.1 + 0.01 * run.launch)))
    runs = with_drift(probed(*probes))
    assert [run.launch for run in counted([*runs, failed])] == launches
    (result,) = campaign_results(store, "demo-1")
    (item,) = load_launches(store, "demo-1")
    assert (result.num_counted, len(item.throughputs), len(item.steps)) == (len(launches),) * 3
    assert list(item.rounds) == launches
    assert throughputs_where(store, "study=demo").samples_per_s == list(item.throughputs)
    assert result.throughput == median_interval(item.throughputs)


def test_a_failed_launch_is_no_drifted_one(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for launch, probe in enumerate((1.0, 1.0, 1.0, 1.0, 2.0)):
        failed = {"outcome": "failed", "failure": Failure(phase="launch", reason="crash", message="gone")}
        run = make_run(f"demo-1-abc-{launch:03d}", launch=launch, probe_s=probe, **(failed if launch == 4 else {}))
        store.write(RunData(run, make_steps()))
    (result,) = campaign_results(store, "demo-1")
    assert (result.num_failed, result.num_drifted, result.num_counted) == (1, 0, 4)


def test_a_missing_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No such file"):
        Store(tmp_path).read("nothing")


def test_what_the_living_write_is_not_cleaned(tmp_path: Path) -> None:
    import os
    import socket

    store = Store(tmp_path)
    store.write(RunData(make_run()))
    mine = tmp_path / "tmp" / f"{socket.gethostname()}-{os.getpid()}-x"
    dead = tmp_path / "tmp" / f"{socket.gethostname()}-{2**22 + 1}-x"
    elsewhere = tmp_path / "tmp" / f"another-host-{2**22 + 1}-x"
    for folder in (mine, dead, elsewhere):
        folder.mkdir()
    document = tmp_path / "campaigns" / f"demo-1.json.tmp-{socket.gethostname()}-{2**22 + 1}-x"
    document.write_text("{")
    assert store.clean() == 2
    assert not document.exists()
    assert sorted(path.name for path in (tmp_path / "tmp").iterdir()) == sorted([mine.name, elsewhere.name])


def test_a_campaign_whose_name_begins_like_another_one_keeps_its_runs_to_itself(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for campaign in ("demo-1", "demo-1-abc"):
        store.write(RunData(make_run(f"{campaign}-abc-000", campaign=campaign), make_steps()))
    assert [run.id for run in store.read_all(campaign="demo-1")] == ["demo-1-abc-000"]
    assert [run.id for run in store.read_all(campaign="demo-1-abc")] == ["demo-1-abc-abc-000"]
    assert len(store.read_all()) == 2
