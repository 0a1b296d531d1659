"""The arithmetic of the search over strategies by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from paceline.cost.split import Cost
from paceline.model.plan.search import (
    Candidate,
    GroupStep,
    PlannedDevice,
    _simplest_first,
    asynchrony_sentence,
    exchange_seconds_of,
    measured_pricing,
    ranked_candidates,
    throughputs,
)

LINK = (1e8, 1e-3)
BUS = (1e9, 1e-4)


def device(host: str = "a", *, rate: float = 100.0, **changes: Any) -> PlannedDevice:
    made = PlannedDevice(host, "d", Cost(0.0, 1 / rate), rate, BUS, LINK)
    return replace(made, **changes)


def candidate(*shares: int, **changes: Any) -> Candidate:
    groups = tuple((index,) for index in range(len(shares)))
    made = Candidate("local", groups, tuple((n,) for n in shares), 4, 1, 0.0, 0.0, 0.0, 1.0, "made")
    return replace(made, **changes)


def rate_of(one: Candidate, seconds: list[float], exchanges: list[float], devices: list[PlannedDevice]) -> float:
    return float(throughputs(one, devices, np.array(seconds)[:, None], np.array(exchanges)[:, None])[0])


def test_an_exchange_is_shared_by_the_steps_between_two() -> None:
    two = [device(), device("b")]
    # 0.3 + 0.8 / 4 and 0.1 + 0.4 / 4 seconds per step.
    assert rate_of(candidate(30, 10), [0.3, 0.1], [0.8, 0.4], two) == pytest.approx(30 / 0.5 + 10 / 0.2)
    assert rate_of(candidate(30, 10, local_steps=1), [0.3, 0.1], [0.8, 0.4], two) == pytest.approx(30 / 1.1 + 10 / 0.5)


def test_a_quorum_waits_for_its_slowest_group() -> None:
    three = [device(), device("b"), device("c")]
    seconds, exchanges = [0.5, 0.2, 0.1], [0.0, 0.0, 0.0]
    found = [rate_of(candidate(10, 10, 10, quorum=n), seconds, exchanges, three) for n in (1, 2, 3)]
    assert found == pytest.approx([20 + 50 + 100, 20 + 50 + 50, 60])


def test_every_device_of_a_slow_group_has_a_sample() -> None:
    fast, slow = device(rate=1000.0), device("b", rate=1.0)
    found = ranked_candidates([fast, slow, slow, slow], 12, size=1e3)
    shares = [one.shares for one in found if len(one.groups) == 2]
    assert shares
    assert all(sum(of_group) >= 3 for both in shares for of_group in both[1:])


def test_one_group_exchanges_with_nobody() -> None:
    assert rate_of(candidate(30), [0.3], [0.8], [device()]) == pytest.approx(100)


def test_groups_that_all_wait_for_each_other_wait_for_the_unluckiest() -> None:
    shaky = [device(straggle=(0.19, 5.0)), device("b", straggle=(0.19, 5.0))]
    # Mean 1.76; every step waiting for both would be 1 + (1 - 0.81^2) 4 = 2.3756 long.
    once = rate_of(candidate(10, 10, quorum=2, local_steps=1), [1.0, 1.0], [0.0, 0.0], shaky)
    assert once == pytest.approx(20 * 1.76 / 2.3756)
    # Over 16 steps the deviation of the mean is sqrt(0.19 0.81 / 16) 4, times sqrt(2 ln 2).
    often = rate_of(candidate(10, 10, quorum=2, local_steps=16), [1.0, 1.0], [0.0, 0.0], shaky)
    assert often == pytest.approx(20 * 1.76 / (1.76 + 1.17741 * 0.392301), rel=1e-5)
    assert rate_of(candidate(10, 10, quorum=1), [1.0, 1.0], [0.0, 0.0], shaky) == pytest.approx(20)


def test_groups_of_a_host_share_its_link() -> None:
    devices = [device(), device(), device("b", link=(5e7, 2e-3))]
    single = exchange_seconds_of(devices, [(0,), (1,), (2,)], 1e6)
    assert single == pytest.approx([0.044, 0.044, 2e6 / 5e7 + 8e-3])
    assert exchange_seconds_of(devices, [(0, 1), (2,)], 1e6) == pytest.approx([0.024, 0.048])
    assert exchange_seconds_of(devices, [(0, 2), (1,)], 1e6) == pytest.approx([4e6 / 5e7 + 8e-3, 0.044])


def test_groups_of_one_host_exchange_over_its_bus() -> None:
    assert exchange_seconds_of([device(), device()], [(0,), (1,)], 1e6) == pytest.approx([4.4e-3, 4.4e-3])


def test_totals_price_a_step_with_the_best_number_of_buckets() -> None:
    two = [device(), device("b")]
    # An all-reduce of n bytes takes 2 ms + n / 100 MB/s; compute takes 0.1 s, two thirds of it backward.
    small = measured_pricing(two, 1e6)((0, 1), 20, (0, 1))
    assert small.shares == (10, 10)
    assert small.exposed == pytest.approx(2e-3 + 1e-2 / 16)
    assert small.seconds == pytest.approx(0.1 + small.exposed)
    large = measured_pricing(two, 1e8)((0, 1), 20, (0, 1))
    assert large.exposed == pytest.approx(1.0 + 8 * 2e-3 - 7 / 8 * 0.2 / 3)
    assert large.waits == pytest.approx(large.exposed / large.seconds)


def test_stragglers_lengthen_a_priced_step() -> None:
    two = [device(straggle=(0.1, 3.0)), device("b")]
    assert measured_pricing(two, 0.0)((0, 1), 20, (0, 1)).seconds == pytest.approx(0.12 + 2e-3)
    both = [replace(one, straggle=(0.1, 3.0)) for one in two]
    assert measured_pricing(both, 0.0)((0, 1), 20, (0, 1)).seconds == pytest.approx(0.1 * (1 + 0.19 * 2) + 2e-3)


def one_slow_group(group: tuple[int, ...], batch: int, _everyone: tuple[int, ...]) -> GroupStep:
    return GroupStep((batch // len(group),) * len(group), 5.0 if 3 in group else 0.1, 0.0)


def test_staleness_and_local_steps_have_their_price() -> None:
    four = [device(name) for name in "abcd"]
    found = ranked_candidates(four, 40, size=1e6, price=one_slow_group)
    local, hybrid = (next(one for one in found if one.kind == kind) for kind in ("local", "hybrid"))
    assert (local.local_steps, local.quorum) == (4, 2)
    assert local.staleness == pytest.approx(2 / 2 / 4)
    assert local.efficiency == pytest.approx(1 / (1 + 0.23 / 4) / (1 + 0.004 * 7))
    rate = 30 / (0.1 + 0.024 / 4) + 10 / (5.0 + 0.024 / 4)
    assert local.predicted_throughput == pytest.approx(rate)
    assert local.predicted_utilisation == pytest.approx(rate / 400)
    assert local.predicted_step == pytest.approx(40 / rate)
    assert local.score == pytest.approx(rate * local.efficiency)
    assert (hybrid.local_steps, hybrid.quorum) == (1, 2)
    assert hybrid.efficiency == pytest.approx(1 / 1.23 / 1.004)
    assert hybrid.predicted_throughput == pytest.approx(30 / 0.124 + 10 / 5.024)
    assert found.index(local) < found.index(hybrid)


def test_hosts_are_added_from_the_fastest_and_the_best_device_may_train_alone() -> None:
    devices = [device("slow", rate=10), device("fast", rate=100), device("fast", rate=90), device("middle", rate=50)]
    found = ranked_candidates(devices, 64, size=1e6)
    alone = {one.groups for one in found if one.kind == "synchronous"}
    assert alone == {((1,),), ((1, 2),), ((1, 2, 3),), ((0, 1, 2, 3),)}


def test_groups_follow_hosts_links_kinds_and_devices() -> None:
    devices = [device("a"), device("a", name="e"), device("b"), device("c", link=(5e7, 2e-3))]
    found = {one.groups for one in ranked_candidates(devices, 64, size=1e6) if len(one.groups) > 1}
    assert found == {
        ((0, 1), (2,), (3,)),
        ((0, 1, 2), (3,)),
        ((0, 2), (1,), (3,)),
        ((0,), (1,), (2,), (3,)),
    }


def test_a_batch_smaller_than_the_groups_makes_no_such_groups() -> None:
    four = [device(name) for name in "abcd"]
    assert {len(one.groups) for one in ranked_candidates(four, 3, size=1e6)} == {1}
    assert {len(one.groups) for one in ranked_candidates(four, 4, size=1e6)} == {1, 4}


def test_many_hosts_are_tried_in_a_grid_of_sizes() -> None:
    devices = [device(f"h{n}", rate=100 - n) for n in range(48)]
    sizes = {len(one.groups[0]) for one in ranked_candidates(devices, 96, size=1e6) if len(one.groups) == 1}
    assert sizes == {1, *range(2, 49, 2)}
    few = {len(one.groups[0]) for one in ranked_candidates(devices[:24], 96, size=1e6) if len(one.groups) == 1}
    assert few == set(range(1, 25))


@pytest.mark.parametrize(("hosts", "batch"), [(8, 100), (3, 128), (7, 8), (5, 5), (3, 2)])
def test_every_candidate_has_every_sample_of_the_batch(hosts: int, batch: int) -> None:
    devices = [device(str(host)) for host in range(hosts) for _ in range(2)]
    ranked = ranked_candidates(devices, batch, size=1e6)
    assert {sum(map(sum, one.shares)) for one in ranked} == {batch}


def test_asynchrony_pays_where_its_progress_is_faster_than_the_best_that_waits() -> None:
    waiting = candidate(8, predicted_throughput=100.0, efficiency=0.8)
    free = candidate(8, predicted_throughput=120.0, efficiency=0.7, staleness=0.5)
    # 84 against 80 units of progress.
    rates = "(120.0 samples/s against 100.0, a stale sample counted as less)."
    assert asynchrony_sentence([free, waiting]) == f"Asynchrony pays: 5.0% more progress per second {rates}"
    equal = replace(free, efficiency=2 / 3)
    assert asynchrony_sentence([waiting, equal]) == f"Asynchrony does not pay: 0.0% less progress per second {rates}"
    worse = replace(free, efficiency=0.6)
    assert asynchrony_sentence([waiting, worse]).startswith("Asynchrony does not pay: 10.0% less")
    for one in ([waiting], [free], []):
        assert asynchrony_sentence(one).startswith("Asynchrony has nothing to offer")


@pytest.mark.parametrize(("rate", "first"), [(98.1, 0), (97.9, 1), (101.0, 0)])
def test_one_group_comes_before_what_is_hardly_better(rate: float, first: int) -> None:
    plain = candidate(40, kind="synchronous", groups=((0, 1),), shares=((20, 20),), predicted_throughput=rate)
    two = candidate(20, 20, predicted_throughput=100.0)
    third = candidate(10, 30, predicted_throughput=99.0)
    order = sorted([plain, two, third], key=lambda one: -one.score)
    found = _simplest_first(order)
    assert found[0] is (plain, two)[first]
    assert [one for one in found if one is not plain] == [two, third]
    assert _simplest_first([two, third]) == (two, third)
