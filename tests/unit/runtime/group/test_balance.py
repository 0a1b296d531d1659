"""What the estimate of a rank's cost learns and ignores."""

from __future__ import annotations

import random

import pytest

from paceline.cost.split import Cost
from paceline.runtime.group.balance import Balance, CostEstimate, UnitBalance, _still_good


def test_constant_and_slope_are_found_from_two_sizes() -> None:
    estimate = CostEstimate()
    for size in (32, 64, 32, 64, 32, 64):
        estimate.observe(size, 0.05 + 0.002 * size)
    assert estimate.plain() == pytest.approx([0.05, 0.002])


def test_a_single_straggling_step_changes_nothing() -> None:
    estimate = CostEstimate()
    for _ in range(8):
        estimate.observe(32, 0.1)
    before = estimate.plain()
    estimate.observe(32, 1.0)
    assert estimate.plain() == pytest.approx(before)


def test_a_lasting_slowdown_is_known_after_three_steps() -> None:
    estimate = CostEstimate()
    for _ in range(16):
        estimate.observe(32, 0.1)
    for _ in range(3):
        estimate.observe(32, 0.3)
    assert estimate.cost().seconds(32) == pytest.approx(0.3)


def test_noise_does_not_invent_a_constant() -> None:
    generator = random.Random(1)
    estimate = CostEstimate()
    for _ in range(40):
        size = generator.choice([30, 31, 32])
        estimate.observe(size, 0.003 * size * generator.gauss(1, 0.02))
    assert estimate.plain()[0] == 0.0
    assert estimate.plain()[1] == pytest.approx(0.003, rel=0.03)


def test_shares_follow_a_threefold_slowdown_within_ten_steps() -> None:
    balance = Balance(["x", "y"], chunks=[None, None])
    speeds = [0.001, 0.001]
    for step in range(40):
        if step == 20:
            speeds[1] = 0.003
        shares = balance.decide(128)
        balance.learn(shares, [n * cost for n, cost in zip(shares, speeds, strict=True)])
        if step == 29:
            assert balance.shares(128) == (96, 32)


def test_to_ask_for_shares_does_not_decide_them() -> None:
    # Only one rank explains itself, or prints its shares: the next step must have the same ones on all.
    asked, other = (Balance(["x", "y"], chunks=[None, None]) for _ in range(2))
    generator = random.Random(3)
    for total in (12, 12, 12, 2, 12, 2) * 10:
        asked.shares(12 - total + 2)
        shares = other.decide(total)
        assert asked.decide(total) == shares
        seconds = [n * generator.uniform(0.001, 0.004) for n in shares]
        for balance in (asked, other):
            balance.learn(shares, seconds)


def test_a_last_step_with_fewer_samples_than_ranks_leaves_some_without() -> None:
    balance = Balance(["x", "y", "z"], chunks=[None] * 3, least=1)
    for _ in range(2):
        assert sorted(balance.decide(2)) == [0, 1, 1]
        assert min(balance.decide(12)) >= 1
        balance.learn([4, 4, 4], [0.001, 0.001, 0.004])


def test_a_new_rank_is_taken_for_an_average_one() -> None:
    balance = Balance(["x", "y", "late"], chunks=[None] * 3)
    balance.assume({"x": [0.0, 0.001], "y": [0.0, 0.003]})
    assert balance.shares(100)[2] == pytest.approx(27, abs=1)


def test_a_rank_without_samples_is_tried_again_and_comes_back() -> None:
    balance = Balance(["x", "y"], chunks=[None, None])
    seconds = [0.001, 50.0]
    shared = []
    for step in range(200):
        if step == 60:
            seconds[1] = 0.001
        shares = balance.decide(64)
        shared.append(shares)
        balance.learn(shares, [n * cost for n, cost in zip(shares, seconds, strict=True)])
    assert shared[40] == (64, 0)
    assert shared[-1] == (32, 32)


def test_a_constant_part_is_not_made_from_one_straggling_step() -> None:
    estimate = CostEstimate()
    for size, seconds in ((200, 0.4), (200, 0.55), (100, 0.2), (100, 0.2), (100, 0.2)):
        estimate.observe(size, seconds)
    assert estimate.plain() == pytest.approx([0.0, 0.002])


def efficiency(costs: list[float], batch: int, *, seed: int, noise: float) -> float:
    """What the shares reach of the best split, while steps scatter, straggle, and the host is busy now and then."""
    generator = random.Random(seed)
    balance = Balance([str(cost) + str(index) for index, cost in enumerate(costs)], chunks=[None] * len(costs))
    busy, taken, best = 1.0, 0.0, 0.0
    for step in range(100):
        shares = balance.decide(batch)
        busy = min(2.0, max(0.5, busy * generator.lognormvariate(0, noise)))
        late = [generator.uniform(1.5, 3) if generator.random() < 0.05 else 1.0 for _ in costs]
        rows = zip(shares, costs, late, strict=True)
        balance.learn(shares, [n * cost * busy * more * generator.lognormvariate(0, noise) for n, cost, more in rows])
        if step >= 20:
            taken += max(n * cost for n, cost in zip(shares, costs, strict=True))
            best += batch / sum(1 / cost for cost in costs)
    return best / taken


@pytest.mark.parametrize("costs", [[0.001, 0.001], [0.0005, 0.002], [0.0005, 0.001, 0.002, 0.002]])
def test_noise_is_not_chased(costs: list[float]) -> None:
    found = [efficiency(costs, 400, seed=seed, noise=0.05) for seed in range(10)]
    assert sum(found) / len(found) > 0.97


def learnt(*ratios: float) -> list[tuple[float, float]]:
    """What is known of rank y after steps of these multiples of its usual 0.1 s; rank x is always on time."""
    balance = Balance(["x", "y"], chunks=[None, None])
    balance.assume({"x": [0.0, 0.001], "y": [0.0, 0.001]})
    for ratio in ratios:
        balance.learn((100, 100), (0.1, 0.1 * ratio))
    return balance.straggling()


@pytest.mark.parametrize(("ratio", "share"), [(1.95, 0.0), (2.05, 0.2)])
def test_a_step_straggles_from_twice_its_usual_time(ratio: float, share: float) -> None:
    quiet, shaky = learnt(*([1.0, 1.0, 1.0, 1.0, ratio] * 5))
    assert quiet == (0.0, 1.0)
    assert shaky == (pytest.approx(share), pytest.approx(ratio if share else 1.0))


def test_no_share_of_stragglers_before_twenty_steps() -> None:
    steps = [1.0, 1.0, 1.0, 3.0] * 5
    assert learnt(*steps[:19])[1] == (0.0, 1.0)
    assert learnt(*steps)[1] == (pytest.approx(0.25), pytest.approx(3.0))


def test_a_lasting_change_is_no_straggling() -> None:
    assert learnt(*([1.0] * 20 + [3.0] * 10))[1] == (0.0, 1.0)


@pytest.mark.parametrize(("ratio", "seconds"), [(1.14, 0.1), (1.16, 0.116), (0.88, 0.1), (0.86, 0.086)])
def test_fifteen_percent_that_last_three_steps_are_a_change(ratio: float, seconds: float) -> None:
    estimate = CostEstimate()
    for _ in range(16):
        estimate.observe(32, 0.1)
    changed = [estimate.observe(32, 0.1 * ratio) for _ in range(3)]
    assert changed == [False, False, seconds != 0.1]
    assert estimate.cost().seconds(32) == pytest.approx(seconds)


def test_what_slows_all_ranks_alike_is_no_change_of_one() -> None:
    estimate = CostEstimate()
    for _ in range(16):
        estimate.observe(32, 0.1)
    assert not any(estimate.observe(32, 0.3, shared=3.0) for _ in range(3))
    assert estimate.cost().seconds(32) == pytest.approx(0.1)


def test_a_step_without_samples_or_time_teaches_nothing() -> None:
    estimate = CostEstimate()
    assert not estimate.observe(0, 0.1)
    assert not estimate.observe(32, 0.0)
    assert not estimate.known


def test_the_first_step_of_all_is_forgotten() -> None:
    estimate = CostEstimate()
    for seconds in (5.0, 0.1):
        estimate.observe(32, seconds)
    assert estimate.plain() == pytest.approx([0.0, 0.1 / 32])


def test_doubt_falls_with_the_number_of_steps() -> None:
    estimate = CostEstimate()
    estimate.assume([0.0, 0.1 / 32])
    doubts = []
    for seconds in (0.09, 0.1, 0.11, 0.1, 0.09, 0.11, 0.1, 0.1, 0.1):
        estimate.observe(32, seconds)
        doubts.append(estimate.doubt)
    assert doubts[3] == pytest.approx(0.1 / 2), "assumed while fewer than six steps were seen"
    assert doubts[5] == pytest.approx(1.4826 * 0.1 / 6**0.5)
    assert doubts[8] == 0.0


def test_equal_ranks_get_equal_shares_and_a_fixed_split_stays_equal() -> None:
    known = {"x": [0.0, 0.001], "y": [0.0, 0.003]}
    free, fixed = (Balance(["x", "y"], chunks=[None, None], fixed=fixed) for fixed in (False, True))
    assert free.shares(40) == (20, 20), "nothing is known yet"
    for balance in (free, fixed):
        balance.assume(known)
    assert free.shares(40) == (30, 10)
    assert fixed.shares(40) == (20, 20)
    assert free.plain() == {"x": [0.0, 0.001], "y": [0.0, 0.003]}


def test_limits_of_a_rank_are_kept() -> None:
    balance = Balance(["x", "y"], chunks=[None, 4], least=2)
    balance.assume({"x": [0.0, 0.001], "y": [0.02, 0.001]})
    assert [(cost.chunk, cost.least) for cost in balance.costs()] == [(None, 2), (4, 2)]
    assert balance.shares(20) == (18, 2)


def test_a_split_of_a_plan_holds_until_costs_are_known() -> None:
    balance = Balance(["x", "y"], chunks=[None, None], split=[30, 10])
    assert balance.shares(80) == (60, 20)
    balance.learn((60, 20), (0.6, 0.2))
    assert balance.shares(80) == (40, 40), "both take as long for a sample"
    assert Balance(["x", "y"], chunks=[None, None], split=[30, 10], fixed=True).shares(4) == (3, 1)
    assert Balance(["x", "y", "z"], chunks=[None] * 3, split=[30, 10]).shares(9) == (3, 3, 3), "of other ranks"
    assert Balance(["x", "y"], chunks=[None, None], split=[30, 0], least=1).shares(8) == (7, 1)


def test_units_share_by_their_speed_and_inside_them_all_take_alike() -> None:
    """Ranks 0 and 3 wait for each other, so each step costs both what it costs the slower."""
    balance = UnitBalance([[0, 3], [1], [2]], list("abcd"), fixed=False, split=())
    assert balance.shares(80) == (20, 20, 20, 20)
    for _ in range(12):
        shares = balance.shares(90)
        each = [0.01 * shares[0], 0.04 * shares[1], 0.02 * shares[2], 0.01 * shares[3]]
        unit = max(each[0], each[3])
        balance.learn(shares, [unit, each[1], each[2], unit / 2])
    assert balance.shares(110) == (40, 10, 20, 40)
    assert balance.shares(111)[0] - balance.shares(111)[3] in (0, 1)
    assert [cost.seconds(4) for cost in balance.costs()] == pytest.approx([0.04, 0.16, 0.08, 0.04])


def test_a_plan_starts_units_with_the_samples_of_their_ranks() -> None:
    balance = UnitBalance([[0, 1], [2]], list("abc"), fixed=True, split=(30, 10, 20))
    assert balance.shares(60) == (20, 20, 20)
    assert balance.shares(7) == (3, 2, 2)


def test_units_keep_what_was_learnt_before() -> None:
    first = UnitBalance([[0, 1], [2]], list("abc"), fixed=False, split=())
    for _ in range(6):
        first.learn((10, 10, 10), (0.1, 0.1, 0.4))
    second = UnitBalance([[0, 1], [2]], list("abc"), fixed=False, split=())
    second.assume(first.plain())
    assert second.shares(90) == first.shares(90) == (40, 40, 10)


def test_shares_that_leave_a_rank_out_are_not_excused_by_its_constant() -> None:
    costs = [Cost(0.0, 1.0), Cost(0.0, 1.0), Cost(100.0, 1.0)]
    assert not _still_good(costs, (10, 0, 0), 10, 0.01)  # two could halve it
    assert _still_good(costs, (5, 5, 0), 10, 0.01)
