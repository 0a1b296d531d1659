"""Results of a case from its launches, by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import InputError, UnknownName
from paceline.measurements.results import (
    Launches,
    find_campaign,
    median_phases,
    results_of,
    usage_of,
    usage_of_group,
)
from paceline.measurements.run import Failure, Run, counted
from paceline.measurements.store import Store
from paceline.measurements.summary import Interval
from paceline.measurements.tables import LaunchRates
from tests.unit.test_store import make_run

STOPPED = Failure(phase="measure", reason="crash", message="made")


def run(launch: int, **changes: object) -> Run:
    ranks = changes.get("ranks", 1)
    return make_run(f"demo-1-{ranks}-{launch:03}", case_id=f"case {ranks}", launch=launch, **{"ranks": 1, **changes})


def case(ranks: int, rates: tuple[float, ...], *more: Run) -> Launches:
    runs = tuple(run(n, ranks=ranks, timers={"kernel": 1.0 + n}) for n in range(len(rates)))
    return Launches((*more, *runs), runs, rates, tuple(1 / rate for rate in rates), (), 5 * len(rates))


def test_speed_ups_are_of_the_fewest_ranks_that_have_a_result() -> None:
    failed = run(7, ranks=1, outcome="failed", failure=STOPPED)
    nothing = Launches((failed,), (), (), (), (), 0)
    two, eight = case(2, (100.0, 110.0, 90.0)), case(8, (300.0, 330.0, 270.0))
    results = results_of([eight, nothing, two])
    assert [result.run.ranks for result in results] == [1, 2, 8]
    none, base, far = results
    assert (none.throughput, none.speedup, none.efficiency, none.num_failed, none.base_ranks) == (
        None,
        None,
        None,
        1,
        2,
    )
    assert (base.speedup.value, base.speedup.low, base.efficiency) == (1.0, 1.0, 1.0)  # type: ignore[union-attr]
    assert far.throughput is not None
    assert far.speedup is not None
    assert (far.throughput.value, far.speedup.value, far.base_ranks, far.efficiency) == (300.0, 3.0, 2, 0.75)
    assert far.speedup.low == pytest.approx(3.0), "every round has the same ratio"
    assert (far.num_launches, far.num_counted, far.num_steps, far.native) == (3, 3, 15, {"kernel": 2.0})
    other = [replace(item, runs=tuple(one.model_copy(update={"batch": 16}) for one in item.runs)) for item in (eight,)]
    assert results_of([two, *other])[1].base_ranks == 8, "another batch is another series"


@pytest.mark.parametrize(
    ("drifts", "places"),
    [
        ((0.0, 0.2, 0.0, 0.0), [0, 2, 3]), ((0.0, -0.2, 0.0, 0.0), [0, 2, 3]), ((0.0, 0.2, 0.2, 0.0), [0, 1, 2, 3]),
        ((0.2,) * 4 + (0.0,) * 3, list(range(7))), ((0.2,) * 3 + (0.0,) * 3, [3, 4, 5]), ((0.05,) * 4, [0, 1, 2, 3]),
    ],
)  # fmt: skip
def test_drifted_launches_count_only_where_the_others_are_too_few(drifts: tuple[float, ...], places: list[int]) -> None:
    runs = [run(n, drift=drift, drift_limit=0.05) for n, drift in enumerate(drifts)]
    assert [one.launch for one in counted(runs)] == places
    assert counted([run(9, outcome="failed", failure=STOPPED), *runs])[0].launch == places[0]


def test_phases_are_median_shares_of_the_median_step_and_the_last_pass_shows_the_instrument() -> None:
    passes = (
        {"forward": 1.0, "compute": 3.0, "resident": 4.4, "clean": 4.0},
        {"forward": 4.0, "compute": 6.0, "resident": 8.8, "clean": 8.0},
        {"forward": 1.0, "compute": 1.5, "resident": 2.1, "clean": 2.0},
    )
    phases = median_phases(passes)
    # A step of 4; forward takes 0.25, 0.5 and 0.5 of it, compute 0.75 of each.
    assert (phases["forward"], phases["backward"], phases["update"]) == (2.0, 1.0, 1.0)
    assert sum(phases.values()) == 4.0
    item = replace(case(1, (1.0, 1.0, 1.0)), passes=passes)
    (result,) = results_of([item])
    assert result.instrument_overhead == pytest.approx(0.1)
    assert result.shares["forward"] == 0.5
    copied = tuple({**one, "copied": 1.5 * one["clean"]} for one in passes)
    assert results_of([replace(item, passes=copied)])[0].instrument_overhead == 0.5
    assert results_of([replace(item, passes=())])[0].instrument_overhead is None


def test_a_network_that_changed_since_is_counted_in_samples() -> None:
    usage = usage_of(run(0, network="lenet"), 100.0)
    assert (usage.unit, usage.per_s, usage.mfu) == ("samples", 100.0, None)
    group = LaunchRates([100.0, 300.0], [], [run(0), run(1)])
    found = usage_of_group(group)
    assert found is not None
    assert found.per_s == 200.0
    assert usage_of_group(LaunchRates([100.0, 300.0], [], [run(0), run(1, ranks=2)])) is None


def test_the_newest_campaign_is_meant_unless_one_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(InputError, match="no runs in"):
        find_campaign(store, None)
    for day, (name, study) in enumerate((("b-1", "b"), ("a-1", "a"), ("b-2", "b"), ("b-3", "b"), ("a-2", "a"))):
        started = f"2026-01-0{day + 1}T00:00:00+00:00"
        store.write_campaign(name, {"campaign": name, "study": study, "started_at": started})
    assert [find_campaign(store, asked) for asked in (None, "a", "b", "b-2", "a-1")] == [
        "a-2", "a-2", "b-3", "b-2", "a-1",
    ]  # fmt: skip
    with pytest.raises(UnknownName, match="study or campaign"):
        find_campaign(store, "c")


def test_the_base_of_a_series_is_once_as_fast_as_itself() -> None:
    (base,) = results_of([case(2, (100.0, 110.0, 90.0))])
    assert base.speedup == Interval(1.0, 1.0, 1.0)


def test_a_split_closes_where_its_remainder_is_small_or_was_measured() -> None:
    far = {"forward": 1.0, "compute": 9.0, "resident": 3.0, "clean": 3.0}  # compute took longer than the step
    loose = replace(case(1, (1.0, 1.0, 1.0)), passes=(far,))
    (result,) = results_of([loose])
    assert result.phases["other"] < -1
    assert not result.closes
    (alike,) = results_of([replace(loose, passes=({**far, "compute": 2.0},))])
    assert alike.closes
    observed = replace(result, run=result.run.model_copy(update={"launcher": "watch"}))
    assert observed.closes


def test_labels_of_a_series_name_what_is_not_usual() -> None:
    assert run(0).series_label == "lenet pytorch/ddp, batch 8, resident input"
    far = run(0, cluster="rack", strategy="large buckets")
    assert far.series_label == "lenet pytorch/ddp large buckets, batch 8, resident input, rack"
    assert run(0, ranks=4).series == run(0, ranks=2).series
    assert run(0, ranks=4, batch=2, scaling="strong").series == run(0, ranks=2, batch=4, scaling="strong").series
    assert run(0, ranks=4, scaling="strong").series != run(0, ranks=2, scaling="strong").series


@pytest.mark.parametrize(
    ("facts", "launcher", "unit", "rate", "mfu"),
    [
        ({"tokens_per_s": 50.0, "mfu": 0.4, "devices": 8}, "import", "tokens", 400.0, 0.4),
        ({"tokens_per_s": 50.0}, "import", "tokens", 100.0, None),  # of each of two ranks
        ({"mfu": 0.4}, "import", "samples", 7.0, 0.4),
        ({}, "import", "samples", 7.0, None),
        ({"tokens_per_s": 50.0, "mfu": 0.4}, "local", "samples", 7.0, None),
    ],
)
def test_what_an_imported_log_says_of_its_devices_counts_for_all(
    facts: dict[str, float], launcher: str, unit: str, rate: float, mfu: float | None
) -> None:
    usage = usage_of(run(0, network="own", ranks=2, facts=facts, launcher=launcher), 7.0)
    assert (usage.unit, usage.per_s, usage.mfu) == (unit, rate, mfu)
