import numpy as np
import pytest

from paceline.errors import InputError
from paceline.model.simulate.training import (
    AsyncRun,
    FairLink,
    Job,
    Simulation,
    SyncRun,
    simulate_async,
    simulate_jobs,
    simulate_sync,
)


def test_events_run_in_time_and_ties_in_order():
    seen = []
    simulation = Simulation()
    for time, name in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        simulation.at(time, seen.append, name)
    simulation.run()
    assert seen == ["a", "b", "c"]
    assert simulation.num_events == 3
    with pytest.raises(ValueError, match="before"):
        simulation.at(1.0, seen.append)


def test_flows_share_a_link_fairly():
    ends = simulate_jobs([Job(0.0, 100.0, 1), Job(0.0, 100.0, 1)], 100.0)
    assert ends == pytest.approx([2.0, 2.0])
    ends = simulate_jobs([Job(0.0, 100.0, 1), Job(0.5, 100.0, 1)], 100.0)
    assert ends == pytest.approx([1.5, 2.0])
    with pytest.raises(InputError, match="bandwidth"):
        FairLink(Simulation(), -1.0)


def test_equal_asynchronous_workers_reach_the_closed_form():
    run = AsyncRun(np.full(4, 0.1), exchange=0.02, service=1e-6, iterations=200)
    assert simulate_async(run).updates_per_s == pytest.approx(4 / 0.12, rel=0.01)
    full = AsyncRun(np.full(64, 0.1), exchange=0.02, service=0.01, iterations=50)
    result = simulate_async(full)
    assert result.updates_per_s == pytest.approx(1 / 0.01, rel=0.02)
    assert result.server_busy > 0.95
    assert result.staleness == pytest.approx(63, rel=0.1)


def test_a_seed_repeats_and_another_does_not():
    run = AsyncRun(np.linspace(0.1, 0.4, 16), exchange=0.01, service=1e-3, iterations=20, jitter=0.1)
    assert simulate_async(run, seed=3) == simulate_async(run, seed=3)
    assert simulate_async(run, seed=3) != simulate_async(run, seed=4)


def test_workers_join_and_leave():
    leave = np.array([0.55, np.inf])
    run = AsyncRun(np.full(2, 0.1), 0.0, 0.0, iterations=10, join_at=np.array([0.0, 5.0]), leave_at=leave)
    result = simulate_async(run)
    assert result.updates == 15
    assert result.seconds == pytest.approx(6.0)


def test_synchronous_steps_wait_for_the_slowest():
    ends = simulate_sync(SyncRun(np.array([0.1, 0.3]), aggregate=0.05, steps=10))
    assert ends[-1] == pytest.approx(3.5)
    slow = simulate_sync(SyncRun(np.full(8, 0.1), aggregate=0.05, steps=50, straggle=0.05))
    assert slow[-1] > 1.5 * 50 * 0.15


def test_failures_cost_restarts_and_repeated_steps():
    calm = SyncRun(np.full(4, 0.1), aggregate=0.0, steps=100, checkpoint_every=10)
    rough = SyncRun(np.full(4, 0.1), 0.0, 100, failures_per_s=0.05, restart=1.0, checkpoint_every=10)
    assert simulate_sync(rough)[-1] > simulate_sync(calm)[-1] + 1.0
    assert np.all(simulate_sync(rough) > 0)


def test_an_empty_run_is_refused():
    with pytest.raises(InputError):
        simulate_async(AsyncRun(np.array([]), 0.0, 0.0, iterations=1))


def test_jobs_compute_and_send_again_and_again():
    assert simulate_jobs([Job(1.0, 100.0, 3)], 100.0) == pytest.approx([6.0])
    assert simulate_jobs([Job(1.0, 100.0, 2, start=0.5)], 50.0) == pytest.approx([6.5])
    # From 1 to 2 alone, then both share the link: 50 of each are left, sent at half speed until 3.
    assert simulate_jobs([Job(1.0, 100.0, 1), Job(1.5, 100.0, 1)], 100.0) == pytest.approx([2.5, 3.0])


def test_an_asynchronous_run_by_hand():
    """Two workers of 1 and 2 s, half a second each way, a server of a quarter second."""
    result = simulate_async(AsyncRun(np.array([1.0, 2.0]), exchange=1.0, service=0.25, iterations=2))
    # Pushes arrive at 1.5, 2.5, 1.75 + 0.5 + 1.5 = 3.75 (waits for nobody) and 2.75 + 0.5 + 2.5 = 5.75.
    assert (result.updates, result.num_events) == (4, 4)
    assert result.seconds == pytest.approx(5.75 + 0.25 + 0.5)
    assert result.server_busy == pytest.approx(1.0 / 6.5)
    assert result.staleness == pytest.approx((0 + 1 + 1 + 1) / 4)
    assert result.updates_per_s == pytest.approx(4 / 6.5)


def test_every_step_straggles_where_the_probability_says_so():
    sure = SyncRun(np.array([0.1, 0.2]), aggregate=0.05, steps=4, straggle=1.0)
    assert simulate_sync(sure) == pytest.approx(2.05 * np.arange(1, 5)), "ten times as long unless stated"
    assert simulate_sync(SyncRun(np.array([0.1, 0.2]), 0.05, 4, straggle=1.0, straggle_factor=3.0))[-1] == (
        pytest.approx(4 * 0.65)
    )
    slow = AsyncRun(np.full(1, 0.1), exchange=0.0, service=0.0, iterations=5, straggle=1.0, straggle_factor=4.0)
    assert simulate_async(slow).seconds == pytest.approx(5 * 0.4)
    often = AsyncRun(np.full(1, 1.0), 0.0, 0.0, iterations=20_000, straggle=0.25, straggle_factor=5.0)
    assert simulate_async(often).seconds / 20_000 == pytest.approx(1 + 0.25 * 4, rel=0.02)


def test_jitter_is_a_share_of_compute_and_never_makes_it_negative():
    run = AsyncRun(np.full(1, 2.0), 0.0, 0.0, iterations=20_000, jitter=0.1)
    assert simulate_async(run).seconds / 20_000 == pytest.approx(2.0, rel=0.01)
    wild = simulate_sync(SyncRun(np.full(1, 1.0), 0.0, 2000, jitter=3.0))
    steps = np.diff(wild, prepend=0.0)
    assert steps.min() == pytest.approx(0.05)
    assert steps.mean() == pytest.approx(1.74, rel=0.1), "E max(1 + 3 z, 0.05)"


def test_a_failure_repeats_what_came_after_the_last_checkpoint():
    """The same draws in a plain loop: stragglers, jitter, then the moment of a failure."""
    run = SyncRun(np.array([0.1, 0.3, 0.2]), aggregate=0.1, steps=40, failures_per_s=0.2, restart=1.5,
                  checkpoint_every=4)  # fmt: skip
    rng, now, step, ends, failures = np.random.default_rng(5), 0.0, 0, np.zeros(40), 0
    while step < 40:
        rng.random(3)
        rng.standard_normal(3)
        fails = rng.exponential(1 / 0.6)
        if fails < 0.4:
            failures, now, step = failures + 1, now + fails + 1.5, step // 4 * 4
            continue
        now, step = now + 0.4, step + 1
        ends[step - 1] = now
    assert failures > 2
    assert simulate_sync(run, seed=5) == pytest.approx(ends)


def test_a_simulation_ends_at_its_time_and_a_loop_is_noticed():
    simulation, seen = Simulation(), []
    for time in (1.0, 2.0, 3.0):
        simulation.at(time, seen.append, time)
    simulation.run(until=2.0)
    assert (seen, simulation.now, simulation.num_events) == ([1.0, 2.0], 2.0, 2)

    def again(_):
        simulation.at(simulation.now, again)

    simulation.at(2.5, again)
    with pytest.raises(InputError, match="did not end within 10 events"):
        simulation.run(most=10)
    exact = Simulation()
    for _ in range(10):
        exact.at(1.0, seen.append, 0)
    exact.run(most=10)
    with pytest.raises(InputError, match="moves nothing"):
        FairLink(Simulation(), 0.0)
    with pytest.raises(InputError, match="one iteration"):
        simulate_async(AsyncRun(np.ones(1), 0.0, 0.0, iterations=0))


def test_three_flows_of_unequal_sizes_by_hand():
    # All three until 30 each have passed (0.9 s), two until 60 (1.5 s), the last alone until 90 (1.8 s).
    assert simulate_jobs([Job(0.0, size, 1) for size in (30.0, 60.0, 90.0)], 100.0) == pytest.approx([0.9, 1.5, 1.8])
