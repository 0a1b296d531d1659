"""The batch split against brute force, and its laws."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cost.split import Cost, _give_back, proportional_split, split_batch
from paceline.errors import InputError

costs = st.builds(
    Cost,
    a=st.floats(0, 0.1),
    b=st.floats(0.001, 0.1),
    chunk=st.none() | st.integers(1, 8),
    least=st.integers(0, 1),
)


def brute_force(given_costs: list[Cost], total: int) -> float:
    ranges = [range(cost.least, total + 1) for cost in given_costs]
    return min(
        max(cost.seconds(n) for cost, n in zip(given_costs, split, strict=True))
        for split in itertools.product(*ranges)
        if sum(split) == total
    )


@given(st.lists(costs, min_size=1, max_size=3), st.integers(3, 14))
@settings(max_examples=150, deadline=None)
def test_no_split_finishes_earlier(given_costs: list[Cost], total: int) -> None:
    found = split_batch(given_costs, total)
    assert sum(found.samples) == total
    assert all(n >= cost.least for n, cost in zip(found.samples, given_costs, strict=True))
    assert found.seconds == pytest.approx(brute_force(given_costs, total), rel=1e-9)


def test_equal_devices_share_equally() -> None:
    assert split_batch([Cost(0.01, 0.002)] * 4, 64).samples == (16, 16, 16, 16)


def test_finish_times_are_equalised_not_proportions() -> None:
    samples = split_batch([Cost(0.0, 0.001), Cost(0.05, 0.001)], 150).samples
    assert samples == (100, 50)


def test_a_device_that_cannot_help_gets_nothing() -> None:
    assert split_batch([Cost(0.0, 0.001), Cost(5.0, 0.001)], 100).samples == (100, 0)


def test_a_batch_that_is_too_small_is_an_input_error() -> None:
    with pytest.raises(InputError, match="too small for 3 devices"):
        split_batch([Cost(0, 1, least=1)] * 3, 2)


def test_a_thousand_devices_are_split_at_once() -> None:
    found = split_batch([Cost(0.001 * (i % 7), 0.001 * (1 + i % 5)) for i in range(1000)], 100_000)
    assert sum(found.samples) == 100_000


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=20), st.integers(0, 1000))
def test_proportional_shares_sum_to_the_total(weights: list[float], total: int) -> None:
    assert sum(proportional_split(weights, total)) == total


@pytest.mark.parametrize(
    ("least", "surplus", "left"), [(0, 0, [9, 3]), (0, 1, [8, 3]), (0, 2, [8, 2]), (0, 3, [7, 2]), (3, 3, [6, 3])]
)
def test_what_is_too_much_is_taken_from_whoever_finishes_last(least: int, surplus: int, left: list[int]) -> None:
    samples = [9, 3]  # 9 s each; without one sample the first takes 8 s, the second 6 s
    _give_back(samples, [Cost(0.0, 1.0), Cost(0.0, 3.0, least=least)], surplus)
    assert samples == left
