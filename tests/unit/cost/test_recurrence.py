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


def priority_by_hand(ready, comm, forward):
    """The newest gradient is always served first, and after backward in the order of use."""
    waiting = []
    for index, seconds in enumerate(comm):
        waiting.append(seconds)
        free = ready[index + 1] - ready[index] if index + 1 < len(comm) else 0.0
        for newest in range(index, -1, -1):
            served = min(waiting[newest], free)
            waiting[newest] -= served
            free -= served
    arrived = computed = 0.0
    for seconds, use in zip(reversed(waiting), reversed(forward), strict=True):
        arrived += seconds
        computed = max(computed, arrived) + use
    return computed - sum(forward)


def sharded_by_hand(forward, ready, gather, scatter):
    """Forward waits for the gathers in its own order; backward for scatters, and for gathers longer than it."""
    gathered = computed = 0.0
    for seconds, use in zip(reversed(gather), reversed(forward), strict=True):
        gathered += seconds
        computed = max(computed, gathered) + use
    behind = fifo(ready, scatter) - ready[-1] + max(0.0, sum(gather) - ready[-1]) + gather[0]
    return computed - sum(forward), behind


@pytest.mark.parametrize("buckets", [1, 2, 3, 6])
@pytest.mark.parametrize("busy", [0.3, 1.0, 3.0])
def test_every_order_of_exchange_is_what_its_loop_says(buckets, busy):
    rng = np.random.default_rng(buckets)
    ready = np.cumsum(rng.random((20, buckets)), axis=1)
    comm, scatter, forward = (rng.random((20, buckets)) * most for most in (busy, busy, 1.0))
    rows = list(zip(ready.tolist(), comm.tolist(), scatter.tolist(), forward.tolist(), strict=True))
    wanted = [priority_by_hand(at, sent, use) for at, sent, _, use in rows]
    assert recurrence.exposed_priority(ready, comm, forward) == pytest.approx(np.array(wanted))
    both = [sharded_by_hand(use, at, sent, back) for at, sent, back, use in rows]
    found = recurrence.exposed_sharded(forward, ready, gather=comm, scatter=scatter, overlap=True)
    assert pytest.approx(np.array(both)) == np.array(found).T
    whole = recurrence.exposed_sharded(forward, ready, gather=comm, scatter=scatter, overlap=False)
    assert np.array(whole) == pytest.approx(np.array([comm.sum(1), (comm + scatter).sum(1)]))
    last = list(range(buckets - 1, buckets))
    assert recurrence.bucket_ready(ready, last) == pytest.approx(np.array([[sum(row[0])] for row in rows]))
