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


@pytest.mark.parametrize("chunk", [None, 1, 2, 3])
@pytest.mark.parametrize(("a", "b"), [(0.0, 0.7), (0.0, 0.3), (0.25, 0.5), (0.1, 0.003)])
def test_a_device_finishes_what_it_is_given_in_the_time_that_takes(a: float, b: float, chunk: int | None) -> None:
    cost = Cost(a, b, chunk)
    assert cost.seconds(0) == cost.seconds(-1) == 0.0
    for n in range(1, 40):
        chunks = 1 if chunk is None else (n + chunk - 1) // chunk
        assert cost.seconds(n) == pytest.approx(chunks * a + n * b)
        assert split_batch([cost], n).samples == (n,), "rounding loses no sample"
        assert cost.samples_within(cost.seconds(n) * (1 + 1e-9)) == n
        assert cost.samples_within(cost.seconds(n) - 0.4 * min(a + b, b)) == n - 1
    assert Cost(a, b, chunk, least=2).samples_within(0.0) == 2
    assert cost.samples_within(0.0) == 0


def test_leasts_that_fill_the_batch_are_the_split() -> None:
    assert split_batch([Cost(0.0, 1.0, least=2), Cost(5.0, 1.0, least=1)], 3).samples == (2, 1)
    with pytest.raises(InputError, match="at least 3 samples"):
        split_batch([Cost(0.0, 1.0, least=2), Cost(5.0, 1.0, least=1)], 2)
    slow_but_needed = split_batch([Cost(0.0, 1.0), Cost(9.0, 1.0, least=1)], 4)
    assert (slow_but_needed.samples, slow_but_needed.seconds) == ((3, 1), 10.0)


@pytest.mark.parametrize(
    ("weights", "total", "least", "shares"),
    [
        ([1.0, 1.0, 1.0], 4, (), (2, 1, 1)),
        ([5.0, 3.0, 2.0], 10, (), (5, 3, 2)),
        ([2.6, 2.3, 1.1], 6, (), (3, 2, 1)),  # remainders .6 .3 .1: the first gets what is left
        ([2.4, 2.3, 1.3], 6, (), (3, 2, 1)),
        ([2.1, 2.2, 1.7], 6, (), (2, 2, 2)),
        ([26.0, 23.0, 11.0], 6, (), (3, 2, 1)),  # in proportion, not by the weights themselves
        ([21.0, 22.0, 17.0], 6, (), (2, 2, 2)),
        ([9.0, 1.0], 5, (1, 2), (3, 2)),
        ([90.0, 9.0, 1.0], 10, (1, 1, 1), (8, 1, 1)),
        ([0.0, 0.0], 0, (), (0, 0)),
        ([1.0, 1.0], 3, (1, 2), (1, 2)),
        ([1.0, 1.0, 1.0], 5, (1, 2, 2), (1, 2, 2)),  # what the last is raised by, the second lacks then
    ],
)
def test_whole_shares_by_hand(
    weights: list[float], total: int, least: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    assert proportional_split(weights, total, least=least) == shares


def test_shares_that_cannot_all_have_their_least_are_refused() -> None:
    with pytest.raises(InputError, match="too few"):
        proportional_split([1.0, 1.0], 2, least=[1, 2])
