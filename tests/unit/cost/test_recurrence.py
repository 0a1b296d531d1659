import numpy as np
import pytest

from paceline.cost import recurrence


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


def test_priority_serves_the_newest_and_resumes_the_oldest_after_backward():
    ready, comm = np.array([1.0, 2.0, 4.0]), np.array([3.0, 2.0, 1.0])
    # Left at the end of backward: 2 of the first, none of the second, 1 of the third, sent third first.
    assert recurrence.exposed_priority(ready, comm, np.ones(3)) == pytest.approx(1.0)
    assert recurrence.exposed_priority(ready, comm, np.array([1.0, 0.5, 0.5])) == pytest.approx(2.0)


def test_what_waits_for_priority_is_served_once():
    ready, comm = np.array([0.0, 1.0, 3.5]), np.array([2.0, 2.0, 0.0])
    # 1 s serves half of the first, 2.5 s all of the second and half a second of the first: half a second is left.
    assert recurrence.exposed_priority(ready, comm, np.zeros(3)) == pytest.approx(0.5)


def test_uneven_modules_of_sharded_training():
    forward, ready = np.array([1.0, 2.0]), np.array([1.0, 3.0])
    gather, scatter = np.array([2.0, 3.0]), np.array([4.0, 1.0])
    ahead, behind = recurrence.exposed_sharded(forward, ready, gather=gather, scatter=scatter, overlap=True)
    # Forward: gathered at 3 and 5, computed until 6, not 3. Backward: scattered at 5 and 6, gathers exceed it by 2.
    assert ahead == pytest.approx(3.0)
    assert behind == pytest.approx((6.0 + 2.0) - 3.0 + 2.0)
    ahead, behind = recurrence.exposed_sharded(forward, ready, gather=gather, scatter=scatter, overlap=False)
    assert (ahead, behind) == pytest.approx((5.0, 10.0))


def test_every_bucket_has_its_own_end():
    ends = recurrence.finish_fifo(np.array([1.0, 2.0, 9.0]), np.array([3.0, 1.0, 1.0]))
    assert ends.tolist() == [4.0, 5.0, 10.0]
