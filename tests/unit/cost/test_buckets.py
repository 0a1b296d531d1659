"""The partition into buckets against all partitions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import catalog
from paceline.cost.buckets import (
    MAX_ATOMS,
    LinkCost,
    bucket_bytes,
    bucket_members,
    cycle_buckets,
    fill_buckets,
    fit_link,
    mgwfbp_buckets,
    optimal_buckets,
    policy_buckets,
    schedule_buckets,
)

gradients = st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 0.1)), min_size=1, max_size=7)


def partitions(count: int) -> list[list[int]]:
    """Every way to cut gradients into buckets, by the last gradient of each."""
    cuts = itertools.product([False, True], repeat=count - 1)
    return [[index for index, cut in enumerate((*one, True)) if cut] for one in cuts]


def exchange_end(last: list[int], sizes: list[float], ready: list[float], link: LinkCost) -> float:
    """When the last bucket has arrived."""
    end = 0.0
    for sent, (index, size) in enumerate(zip(last, bucket_bytes(sizes, last), strict=True)):
        end = max(end, ready[index] + sent * link.effort) + link.seconds(size)
    return end


def schedule(sizes: list[float], ready: list[float], link: LinkCost) -> list[list[int]]:
    last = schedule_buckets(sizes, ready, lambda many: map(link.seconds, many), effort=link.effort)
    return bucket_members(last)


@given(gradients, st.floats(1e-6, 0.05), st.floats(1e-7, 1e-3), st.sampled_from([0.0]) | st.floats(0, 0.05))
@settings(max_examples=150, deadline=None)
def test_no_partition_ends_earlier(items: list[tuple[int, float]], alpha: float, beta: float, effort: float) -> None:
    sizes = [float(size) for size, _ in items]
    ready = list(itertools.accumulate(seconds for _, seconds in items))
    link = LinkCost(alpha, beta, effort)
    best = min(exchange_end(last, sizes, ready, link) for last in partitions(len(items)))
    buckets = schedule(sizes, ready, link)
    assert [index for bucket in buckets for index in bucket] == list(range(len(items)))
    assert exchange_end([bucket[-1] for bucket in buckets], sizes, ready, link) == pytest.approx(best)
    greedy = mgwfbp_buckets(sizes, ready, startup=alpha, per_byte=beta)
    assert exchange_end(greedy, sizes, ready, link) >= best - 1e-12


@pytest.mark.parametrize(("startup", "last"), [(0.4, [0, 1]), (0.6, [1])])
def test_mgwfbp_merges_where_waiting_costs_less_than_a_start(startup: float, last: list[int]) -> None:
    assert mgwfbp_buckets([1, 1], [0.0, 0.5], startup=startup, per_byte=0.2) == last
    assert mgwfbp_buckets([1, 1], [0.0, 0.9], startup=startup, per_byte=0.2) == [0, 1], "this one would have ended"


def test_an_expensive_message_makes_one_bucket() -> None:
    assert schedule([10] * 5, [0.1 * i for i in range(5)], LinkCost(10.0, 1e-9)) == [[0, 1, 2, 3, 4]]


def test_a_free_message_makes_more_buckets_than_one_that_stops_the_computation() -> None:
    ready = [0.1 * i for i in range(5)]
    assert len(schedule([10] * 5, ready, LinkCost(1e-6, 0.005))) > 2
    assert schedule([10] * 5, ready, LinkCost(1e-6, 0.005, effort=0.5)) == [[0, 1, 2, 3, 4]]


def test_many_gradients_are_scheduled_quickly() -> None:
    buckets = schedule([100] * 2000, [0.001 * i for i in range(2000)], LinkCost(1e-4, 1e-6, effort=1e-6))
    assert [index for bucket in buckets for index in bucket] == list(range(2000))


def test_noise_never_makes_bytes_free() -> None:
    assert fit_link((1000, 0.01), (100_000, 0.009)).beta == 1e-12
    assert fit_link((1000, 0.001), (3000, 0.005)).alpha == 1e-6


def test_a_link_is_the_line_through_two_sizes() -> None:
    link = fit_link((1000, 0.002), (3000, 0.004), effort=0.5)
    assert (link.alpha, link.beta, link.effort) == (pytest.approx(1e-3), pytest.approx(1e-6), 0.5)
    assert link.seconds(2000) == pytest.approx(3e-3)


def test_buckets_close_when_they_are_full() -> None:
    sizes = [1, 1, 1, 5, 1, 1]
    assert fill_buckets(sizes, [2]) == [1, 3, 5]
    assert fill_buckets(sizes, [0]) == [0, 1, 2, 3, 4, 5]
    assert fill_buckets(sizes, [100]) == [5]
    assert fill_buckets(sizes, [1, 6]) == [0, 3, 5]
    assert bucket_bytes(sizes, [1, 3, 5]) == [2.0, 6.0, 2.0]
    assert bucket_members([1, 3, 5]) == [[0, 1], [2, 3], [4, 5]]


def test_a_cycle_sends_what_is_ready() -> None:
    ready, sizes = [1.0, 1.1, 1.2, 5.0], [1.0] * 4

    def cost(many: list[float]) -> list[float]:
        return [1.0 for _ in many]

    assert cycle_buckets(sizes, ready, 10.0, cycle=0.01, cost=cost) == [0, 2, 3]
    assert cycle_buckets(sizes, ready, 1.0, cycle=0.01, cost=cost) == [0, 1, 2, 3]
    assert cycle_buckets(sizes, ready, 10.0, cycle=2.0, cost=cost) == [2, 3]


@pytest.mark.parametrize("name", catalog.framework_names())
def test_every_policy_sends_every_gradient_once(name: str) -> None:
    sizes, ready, layers = [4e6, 1e3, 9e6, 1e3, 3e7], [0.1, 0.1, 0.2, 0.2, 0.3], [0, 0, 1, 1, 2]
    link, policy = LinkCost(1e-4, 1e-9), catalog.policy(name)
    last = policy_buckets(policy, sizes, ready, lambda many: map(link.seconds, many), layers=layers)
    assert sum(bucket_bytes(sizes, last)) == pytest.approx(sum(sizes))
    best = optimal_buckets(sizes, ready, lambda many: map(link.seconds, many))
    assert exchange_end(best, sizes, ready, link) <= exchange_end(last, sizes, ready, link) + 1e-12


SIZES, READY, LAYERS = [4.0, 1.0, 9.0, 1.0, 30.0, 2.0], [0.1, 0.1, 0.2, 0.2, 0.3, 0.5], [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("given", "last"),
    [
        ({"fusion": "tensor"}, [0, 1, 2, 3, 4, 5]),
        ({"fusion": "layer"}, [1, 3, 5]),
        ({"fusion": "module"}, [1, 3, 5]),
        ({"fusion": "all"}, [5]),
        ({"fusion": "bytes", "bucket": 10.0}, [2, 4, 5]),
        ({"fusion": "bytes", "bucket": 10.0, "first_bucket": 4.0}, [0, 2, 4, 5]),
        ({"fusion": "bytes", "bucket": 10.0, "first_bucket": 0.0}, [0, 2, 4, 5]),
        ({"fusion": "bytes", "bucket": 10.0, "first_bucket": 4.0, "overlap": False}, [2, 4, 5]),
        ({"fusion": "bytes", "bucket": 0.0}, [0, 1, 2, 3, 4, 5]),
        ({"fusion": "bytes", "bucket": None}, [0, 1, 2, 3, 4, 5]),
        ({"fusion": "bytes", "bucket": 100.0, "cycle": 0.1}, [1, 5]),
        ({"fusion": "bytes", "bucket": 0.0, "cycle": 0.1}, [0, 1, 2, 3, 4, 5]),
        ({"fusion": "bytes", "bucket": 100.0, "cycle": 0.1, "overlap": False}, [5]),
    ],
)
def test_what_a_policy_sends_together(given: dict[str, object], last: list[int]) -> None:
    usual = {"overlap": True, "first_bucket": None, "cycle": None}
    policy = catalog.policy("pytorch/ddp").model_copy(update={**usual, **given})
    link = LinkCost(1.0, 0.0)
    assert policy_buckets(policy, SIZES, READY, lambda many: map(link.seconds, many), layers=LAYERS) == last


def test_layers_that_nobody_names_are_tensors_and_the_optimum_is_the_optimum() -> None:
    link = LinkCost(0.1, 0.01)

    def cost(many: list[float]) -> list[float]:
        return [link.seconds(size) for size in many]

    layer, optimal = (
        catalog.policy("pytorch/ddp").model_copy(update={"fusion": name}) for name in ("layer", "optimal")
    )
    assert policy_buckets(layer, SIZES, READY, cost) == [0, 1, 2, 3, 4, 5]
    found = policy_buckets(optimal, SIZES, READY, cost, layers=LAYERS)
    best = min(exchange_end(last, SIZES, READY, link) for last in partitions(6))
    assert exchange_end(found, SIZES, READY, link) == pytest.approx(best)


def test_a_cycle_by_hand() -> None:
    def cost(many: list[float]) -> list[float]:
        return [0.25 * size for size in many]

    ready, sizes = [0.5, 1.0, 1.5, 2.0, 2.25, 5.0], [1.0, 2.0, 1.0, 1.0, 4.0, 1.0]
    # It looks at 1, 2 and 3: the first two are ready then, the next two, the fifth; each time the link is free.
    assert cycle_buckets(sizes, ready, 100.0, cycle=1.0, cost=cost) == [1, 3, 4, 5]
    assert cycle_buckets(sizes, ready, 3.0, cycle=1.0, cost=cost) == [1, 3, 4, 5]
    assert cycle_buckets(sizes, ready, 2.9, cycle=1.0, cost=cost) == [0, 1, 3, 4, 5]
    assert cycle_buckets(sizes, ready, 100.0, cycle=3.0, cost=cost) == [4, 5]
    assert cycle_buckets([1.0, 1.0], [1.0, 1.0], 100.0, cycle=1.0, cost=cost) == [1], "ready when it looks"


def test_a_cycle_waits_until_all_that_it_sent_has_arrived() -> None:
    def cost(many: list[float]) -> list[float]:
        return [1.5 * size for size in many]

    # The first two leave at 1 and arrive at 4, when the others are ready both.
    assert cycle_buckets([1.0] * 4, [1.0, 1.0, 2.0, 3.0], 10.0, cycle=1.0, cost=cost) == [1, 3]


@pytest.mark.parametrize(
    ("ready", "last"),
    [
        ([0.0, 0.3, 0.6], [2]),  # each waits 0.3 s, less than a start
        ([0.0, 0.5, 0.6], [0, 2]),  # waiting 0.5 s costs as much as a start
        ([0.0, 0.7, 0.8], [0, 2]),  # the first would have ended at 0.7
        ([0.0, 2.0, 4.0], [0, 1, 2]),
    ],
)
def test_mgwfbp_by_hand(ready: list[float], last: list[int]) -> None:
    assert mgwfbp_buckets([2.0, 2.0, 2.0], ready, startup=0.5, per_byte=0.1) == last


def test_mgwfbp_merges_what_waits_for_the_link_anyway() -> None:
    # The first ends at 2; the second has not started when the third is ready, however long that takes.
    assert mgwfbp_buckets([15.0, 1.0, 1.0], [0.0, 0.6, 1.9], startup=0.5, per_byte=0.1) == [0, 2]
    assert mgwfbp_buckets([15.0, 1.0, 1.0], [0.0, 0.6, 2.4], startup=0.3, per_byte=0.1) == [0, 1, 2]


def test_more_gradients_than_the_search_takes_are_merged_evenly_first() -> None:
    few, many, link = MAX_ATOMS, 2 * MAX_ATOMS, LinkCost(1e-9, 1e-9)
    assert len(schedule([10.0] * few, [1.0 * i for i in range(few)], link)) == few == 160
    merged = schedule([10.0] * many, [1.0 * i for i in range(many)], link)
    assert [len(bucket) for bucket in merged] == [2] * few
    assert len(schedule([10.0] * many, [1.0 * i for i in range(many)], LinkCost(1e-9, 1e-9, effort=1e-3))) == 1
