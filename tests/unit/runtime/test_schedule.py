"""The partition into buckets against all partitions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.runtime.group.schedule import LinkCost, buckets_up_to, exchange_end, fit_link, schedule_buckets

gradients = st.lists(st.tuples(st.integers(1, 1000), st.floats(0, 0.1)), min_size=1, max_size=7)


def partitions(count: int) -> list[list[list[int]]]:
    found = []
    for cuts in itertools.product([False, True], repeat=count - 1):
        buckets = [[0]]
        for index, cut in enumerate(cuts, start=1):
            if cut:
                buckets.append([])
            buckets[-1].append(index)
        found.append(buckets)
    return found


@given(gradients, st.floats(1e-6, 0.05), st.floats(1e-7, 1e-3), st.floats(0, 0.05))
@settings(max_examples=150, deadline=None)
def test_no_partition_ends_earlier(items: list[tuple[int, float]], alpha: float, beta: float, effort: float) -> None:
    sizes = [size for size, _ in items]
    ready = list(itertools.accumulate(seconds for _, seconds in items))
    link = LinkCost(alpha, beta, effort)
    best = min(exchange_end(buckets, sizes, ready, link) for buckets in partitions(len(items)))
    found = schedule_buckets(sizes, ready, link)
    assert [index for bucket in found for index in bucket] == list(range(len(items)))
    assert exchange_end(found, sizes, ready, link) == pytest.approx(best)


def test_an_expensive_message_makes_one_bucket() -> None:
    assert schedule_buckets([10] * 5, [0.1 * i for i in range(5)], LinkCost(10.0, 1e-9)) == [[0, 1, 2, 3, 4]]


def test_a_free_message_makes_more_buckets_than_one_that_stops_the_computation() -> None:
    ready = [0.1 * i for i in range(5)]
    assert len(schedule_buckets([10] * 5, ready, LinkCost(1e-6, 0.005))) > 2
    assert schedule_buckets([10] * 5, ready, LinkCost(1e-6, 0.005, effort=0.5)) == [[0, 1, 2, 3, 4]]


def test_many_gradients_are_scheduled_quickly() -> None:
    found = schedule_buckets([100] * 2000, [0.001 * i for i in range(2000)], LinkCost(1e-4, 1e-6))
    assert sum(len(bucket) for bucket in found) == 2000


def test_a_large_gradient_is_alone() -> None:
    assert buckets_up_to([5, 50, 5, 5], 10) == [[0], [1], [2, 3]]


def test_noise_never_makes_bytes_free() -> None:
    assert fit_link((1000, 0.01), (100_000, 0.009)).beta > 0
