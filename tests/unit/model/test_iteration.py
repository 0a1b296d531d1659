import numpy as np
import pytest

from paceline.model.iteration import recurrence
from paceline.model.iteration.fusion import (
    bucket_bytes,
    buckets_of_size,
    cycle_buckets,
    finish_of,
    mgwfbp_buckets,
    optimal_buckets,
)


def fifo(ready, comm):
    end = 0.0
    for at, seconds in zip(ready, comm, strict=True):
        end = max(end, at) + seconds
    return end


def test_the_closed_form_is_the_loop():
    rng = np.random.default_rng(0)
    ready = np.cumsum(rng.random((50, 30)), axis=1)
    comm = rng.random((50, 30)) * 2
    wanted = np.array([fifo(*row) - row[0][-1] for row in zip(ready, comm, strict=True)])
    assert recurrence.exposed_fifo(ready, comm) == pytest.approx(wanted)
    assert recurrence.finish_fifo(ready, comm)[:, -1] - ready[:, -1] == pytest.approx(wanted)


def test_a_bucket_is_ready_with_its_last_gradient():
    ready = recurrence.bucket_ready(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 3]))
    assert ready.tolist() == [3.0, 10.0]


def test_without_overlap_everything_is_exposed():
    assert recurrence.exposed_none(np.array([[1.0, 2.0]])).tolist() == [3.0]


def test_priority_hides_behind_the_next_forward():
    ready, comm = np.array([1.0, 2.0, 3.0]), np.array([5.0, 0.1, 0.1])
    forward = np.array([3.0, 3.0, 3.0])
    assert recurrence.exposed_fifo(ready, comm) == pytest.approx(3.2)
    assert recurrence.exposed_priority(ready, comm, forward) == pytest.approx(0.1)


def test_sharded_training_exposes_the_first_gather():
    one = np.array([0.1, 0.1])
    ahead, behind = recurrence.exposed_sharded(np.ones(2), np.array([2.0, 4.0]), gather=one, scatter=one, overlap=True)
    assert ahead == pytest.approx(0.1)
    assert behind == pytest.approx(0.2)
    both = recurrence.exposed_sharded(np.ones(2), np.array([2.0, 4.0]), gather=one, scatter=one, overlap=False)
    assert [float(part) for part in both] == pytest.approx([0.2, 0.4])


def test_buckets_close_when_they_are_full():
    sizes = np.array([1.0, 1, 1, 5, 1, 1])
    assert buckets_of_size(sizes, 2).tolist() == [1, 3, 5]
    assert buckets_of_size(sizes, 0).tolist() == [0, 1, 2, 3, 4, 5]
    assert buckets_of_size(sizes, 100).tolist() == [5]
    assert buckets_of_size(sizes, 6, first=1).tolist() == [0, 3, 5]
    assert bucket_bytes(sizes, np.array([1, 3, 5])).tolist() == [2.0, 6.0, 2.0]


def test_the_optimum_is_never_beaten():
    rng = np.random.default_rng(1)
    for _ in range(30):
        count = int(rng.integers(2, 9))
        ready, sizes = np.cumsum(rng.random(count)), rng.random(count) * 3

        def cost(size):
            return 0.4 + size * 0.3

        best = finish_of(ready, sizes, optimal_buckets(ready, sizes, cost), cost)
        every = []
        for mask in range(2 ** (count - 1)):
            last = np.array([k for k in range(count - 1) if mask >> k & 1] + [count - 1])
            every.append(finish_of(ready, sizes, last, cost))
        assert best == pytest.approx(min(every))
        greedy = finish_of(ready, sizes, mgwfbp_buckets(ready, sizes, startup=0.4, per_byte=0.3), cost)
        assert best <= greedy + 1e-12


def test_a_cycle_sends_what_is_ready():
    ready, sizes = np.array([1.0, 1.1, 1.2, 5.0]), np.ones(4)

    def cost(size):
        return 1.0 + 0 * size

    assert cycle_buckets(ready, sizes, 10.0, cycle=0.01, cost=cost).tolist() == [0, 2, 3]
    assert cycle_buckets(ready, sizes, 1.0, cycle=0.01, cost=cost).tolist() == [0, 1, 2, 3]
    assert cycle_buckets(ready, sizes, 10.0, cycle=2.0, cost=cost).tolist() == [2, 3]
