"""Which rank takes which samples, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InputError
from paceline.runtime.samples import (
    Attempt,
    Position,
    StepRecord,
    advance,
    chunked,
    epoch_order,
    even_part,
    reached_rate,
    share_of,
    step_size,
    total_count,
)


def test_an_epoch_is_a_permutation_of_its_own() -> None:
    first, again, other, next_ = (
        epoch_order(50, seed=seed, epoch=epoch).tolist() for seed, epoch in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert first == again
    assert sorted(first) == sorted(other) == sorted(next_) == list(range(50))
    assert first != other
    assert first != next_
    assert first != list(range(50))
    with pytest.raises(ValueError, match="read-only"):
        epoch_order(50, seed=1, epoch=0)[0] = 7


@pytest.mark.parametrize(("cursor", "size"), [(0, 8), (12, 8), (13, 7), (19, 1)])
def test_the_last_step_of_an_epoch_takes_what_is_left(cursor: int, size: int) -> None:
    position = Position(4, 2, cursor)
    assert step_size(position, num_samples=20, global_batch=8) == size
    after = advance(position, size, num_samples=20)
    assert after == (Position(5, 2, cursor + 8) if cursor == 0 else Position(5, 3, 0))
    assert advance(Position(4, 2, 12), 7, num_samples=20) == Position(5, 2, 19)


@pytest.mark.parametrize(("left", "most", "part"), [(10, 10, 10), (11, 10, 6), (25, 10, 9), (30, 10, 10), (1, 5, 1)])
def test_parts_are_few_and_alike(left: int, most: int, part: int) -> None:
    assert even_part(left, most) == part


def test_shares_are_cut_one_after_the_other_from_the_cursor() -> None:
    order = np.arange(100, 120)
    found = [share_of(order, Position(cursor=5), (3, 0, 2), rank).tolist() for rank in range(3)]
    assert found == [[105, 106, 107], [], [108, 109]]
    share_of(order, Position(), (3,), 0)[0] = -1
    assert order[0] == 100


@pytest.mark.parametrize(("samples", "chunk", "sizes"), [(0, 4, []), (5, None, [5]), (8, 4, [4, 4]), (9, 4, [3, 3, 3])])
def test_samples_are_cut_into_parts_that_fit(samples: int, chunk: int | None, sizes: list[int]) -> None:
    parts = chunked(np.arange(samples), chunk)
    assert [len(part) for part in parts] == sizes
    assert [int(index) for part in parts for index in part] == list(range(samples))


def test_the_rate_reached_is_that_of_the_later_half() -> None:
    one = StepRecord(0, 0, 10, (10,), 0.0, 0.0, 0.0, 0.0, 0.0)
    # The later half ends at 10, 12 and 15 s: 20 and 30 samples in 5 s; the first of them only says when it begins.
    steps = [(10, 1.0), (10, 2.0), (99, 10.0), (20, 12.0), (30, 15.0)]
    records = [replace(one, samples=samples, ended=ended) for samples, ended in steps]
    assert reached_rate(records) == (10.0, 10.0, 10.0, 2)
    assert reached_rate(records[-3:]) == (10.0, 10.0, 10.0, 1)
    assert reached_rate(records[:2]) == reached_rate([]) == (0.0, 0.0, 0.0, 0)
    # Two blocks of two steps, 10 and 20 samples/s: their standard error is 5, times 6.314.
    ends = [0.0, 1.0, 2.0, 3.0, 3.5, 4.0]
    blocks = [replace(one, samples=10, ended=ended) for ended in [-4.0, -3.0, -2.0, -1.0, *ends[1:]]]
    rate, low, high, steps = reached_rate(blocks)
    assert (round(rate, 3), low, round(high - rate, 2), steps) == (13.333, 0.0, 31.57, 4)


def test_a_step_costs_its_compute_or_its_loader_where_that_works_beside() -> None:
    attempt = Attempt(8, (8,), [], 0.0, compute=5.0, waited=2.0, loading=1.0)
    assert attempt.cost == 5.0
    assert replace(attempt, beside=True).cost == 3.0
    assert replace(attempt, beside=True, loading=4.0).cost == 4.0


def test_the_loss_of_a_pass_counts_as_many_samples_as_it_has() -> None:
    """Seven of eight samples here, in passes of three, two and two: their weighted losses add up to the mean of all."""
    passes = [np.arange(0, 3), np.arange(3, 5), np.arange(5, 7)]
    attempt = Attempt(8, (1, 7), passes, 0.0, done=1)
    weights = []
    for number in range(3):
        attempt.done = number + 1
        weights.append(attempt.weights(1, mean=True))
    assert [of_loss for of_loss, _ in weights] == pytest.approx([3 / 7, 2 / 7, 2 / 7])
    assert {of_gradients for _, of_gradients in weights} == {7 / 8}
    assert attempt.weights(1, mean=False) == (1.0, 1.0), "sums add up as they are"
    assert replace(attempt, shares=(8, 0), done=0).weights(1, mean=False) == (1.0, 0.0)


def test_a_pass_without_a_sample_or_a_counted_item_is_empty() -> None:
    attempt = Attempt(4, (4,), [np.arange(4)], 0.0, done=1)
    assert not attempt.empty
    assert replace(attempt, counts=[0.0]).empty
    assert not replace(attempt, counts=[0.0, 2.0]).empty
    assert replace(attempt, chunks=[np.arange(0)]).empty


def test_counts_are_of_ranks_with_samples_and_of_all_of_them() -> None:
    assert total_count((3, 0, 5), (7.0, -1.0, 2.0)) == 9.0, "a rank without samples counts nothing"
    assert total_count((3, 5), (-1.0, -1.0)) == 0.0
    with pytest.raises(InputError, match=r"ranks \[1\] gave no count"):
        total_count((3, 5), (7.0, -1.0))
