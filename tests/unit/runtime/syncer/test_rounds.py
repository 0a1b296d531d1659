"""How late progress counts, when a round is complete, and what is on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import InputError
from paceline.runtime.syncer.journal import FileDisk, Journal
from paceline.runtime.syncer.rounds import (
    Arrival,
    OuterOptimizer,
    OuterState,
    RoundPolicy,
    ShardState,
    StalenessRule,
    outer_step,
    weigh,
)


def weighed(name: str, stale: int, **more: float) -> np.ndarray | None:
    rule = StalenessRule(name, **more)  # type: ignore[arg-type]
    now, base = np.array([1.0, 1.0]), np.array([0.0, 0.0])
    return weigh(np.array([1.0, -2.0]), now=now, base=base, stale=stale, rule=rule, mean_step=1.0)


def test_fresh_progress_counts_fully_under_every_rule() -> None:
    for name in ("keep", "divide", "gap", "compensate", "discard"):
        assert weighed(name, 0) == pytest.approx([1.0, -2.0])


def test_each_rule_treats_stale_progress_its_way() -> None:
    assert weighed("divide", 3) == pytest.approx([0.25, -0.5])
    assert weighed("gap", 3) == pytest.approx(np.array([1.0, -2.0]) / (1 + 2**0.5))
    assert weighed("compensate", 3, compensation=0.5) == pytest.approx([1.5, 0.0])
    assert weighed("discard", 9) is None
    assert weighed("discard", 3) == pytest.approx([1.0, -2.0])


def test_an_unknown_rule_is_an_input_error() -> None:
    with pytest.raises(InputError, match="expected one of"):
        StalenessRule("average")  # type: ignore[arg-type]


def test_delayed_momentum_changes_only_every_n_updates() -> None:
    outer, state = OuterOptimizer(rate=1.0, momentum=0.9, delay=2), OuterState(np.zeros(1), np.zeros(1))
    theta = outer_step(np.zeros(1), np.ones(1), state, outer)
    assert theta == pytest.approx([-1.0])
    theta = outer_step(theta, np.ones(1), state, outer)
    assert theta == pytest.approx([-1.0 - 1.9])


def test_all_groups_together_move_by_the_weighted_mean() -> None:
    shard = ShardState(RoundPolicy(groups=2, quorum=2))
    shard.start(np.zeros(1, dtype=np.float32))
    shard.arrive(Arrival("a", 1, 0, 30, np.ones(1, dtype=np.float32)), 0.0)
    assert not shard.advance(0.0)
    shard.arrive(Arrival("b", 1, 0, 10, np.full(1, 5.0, dtype=np.float32)), 0.0)
    assert shard.advance(0.0)
    assert shard.theta == pytest.approx([-(0.75 * 1 + 0.25 * 5)])


def test_a_quorum_waits_for_its_grace_and_no_longer() -> None:
    shard = ShardState(RoundPolicy(groups=3, quorum=2, grace=1.0))
    shard.start(np.zeros(1, dtype=np.float32))
    for name in ("a", "b"):
        shard.arrive(Arrival(name, 1, 0, 10, np.ones(1, dtype=np.float32)), 5.0)
    assert not shard.advance(5.5)
    assert shard.advance(6.0)
    assert shard.version == 1


def written_and_read(state: ShardState, fresh: ShardState, folder: Path) -> ShardState:
    Journal(FileDisk(folder / "journal")).append(state.facts(), state.arrays())
    journal = Journal(FileDisk(folder / "journal"))
    fresh.restore(journal.facts, journal.arrays)
    return fresh


def test_what_was_committed_survives_and_is_not_counted_twice(tmp_path: Path) -> None:
    shard = ShardState(RoundPolicy(groups=1))
    shard.start(np.zeros(2, dtype=np.float32))
    arrival = Arrival("a", 1, 0, 10, np.ones(2, dtype=np.float32))
    shard.arrive(arrival, 0.0)
    shard.advance(0.0)
    again = written_and_read(shard, ShardState(RoundPolicy(groups=1)), tmp_path)
    assert again.version == 1
    assert again.theta == pytest.approx([-1.0, -1.0])
    again.arrive(arrival, 0.0)
    assert again.settled("a", 1)
    assert not again.advance(0.0)


def test_the_first_group_decides_the_rules_and_a_restart_keeps_them(tmp_path: Path) -> None:
    shard = ShardState(RoundPolicy(groups=2))
    shard.start(np.zeros(1, dtype=np.float32), StalenessRule("discard", limit=0), OuterOptimizer(rate=0.5))
    shard.start(np.zeros(1, dtype=np.float32), StalenessRule("keep"), OuterOptimizer(rate=2.0))
    again = written_and_read(shard, ShardState(RoundPolicy(groups=2)), tmp_path)
    for state in (shard, again):
        state.arrive(Arrival("a", 1, 0, 10, np.ones(1, dtype=np.float32)), 0.0)
        state.advance(0.0)
        assert state.theta == pytest.approx([-0.5])
        state.arrive(Arrival("b", 1, 0, 10, np.ones(1, dtype=np.float32)), 0.0)
        state.advance(0.0)
        assert state.dropped == 1


def shard_with(*names: str, theta: float = 0.0, **policy: Any) -> ShardState:
    """A shard to which each of these groups has handed in ones once, one round each."""
    shard = ShardState(RoundPolicy(**{"groups": 3, **policy}))
    shard.start(np.full(2, theta, dtype=np.float32))
    for place, name in enumerate(names):
        shard.arrive(arrival(name, base=place), 0.0)
        assert shard.advance(0.0)
    return shard


def arrival(group: str, *, sequence: int = 1, base: int = 0, samples: int = 10, value: float = 1.0) -> Arrival:
    return Arrival(group, sequence, base, samples, np.full(2, value, dtype=np.float32))


def test_staleness_is_the_number_of_versions_since_the_start_of_the_progress() -> None:
    shard = shard_with("a", "b")
    assert shard.theta == pytest.approx([-1.5, -1.5])  # 1, then half of 1
    shard.arrive(arrival("c", base=0), 0.0)
    shard.advance(0.0)
    assert shard.staleness == [0, 0, 2]
    assert shard.theta == pytest.approx([-1.5 - 1 / 3 / 3] * 2)  # a third of the samples, divided by 1 + 2
    assert (shard.version, shard.dropped) == (3, 0)


def test_a_start_that_is_not_remembered_any_more_is_divided() -> None:
    shard = shard_with(rule=StalenessRule("gap"))
    for sequence in range(1, 10):
        shard.arrive(arrival("a", sequence=sequence, base=sequence - 1), 0.0)
        shard.advance(0.0)
    shard.arrive(arrival("b", base=0), 0.0)
    shard.advance(0.0)
    assert shard.theta == pytest.approx([-9 - 0.5 / (1 + 9)] * 2)


def test_gap_measures_the_distance_in_mean_steps() -> None:
    shard = shard_with("a", "b", rule=StalenessRule("gap"))
    # Steps of 1 and 0.5 along the diagonal: mean 0.75 sqrt 2; the distance since version 0 is 1.5 sqrt 2.
    shard.arrive(arrival("c", base=0), 0.0)
    shard.advance(0.0)
    assert shard.theta == pytest.approx([-1.5 - 1 / 3 / 3] * 2)
    near = shard_with("a", "b", rule=StalenessRule("gap"))
    near.arrive(arrival("c", base=1), 0.0)
    near.advance(0.0)
    assert near.theta == pytest.approx([-1.5 - 1 / 3 / (1 + 0.5 / 0.75)] * 2)


def test_discard_keeps_what_is_as_late_as_its_limit() -> None:
    for limit, dropped in ((1, 1), (2, 0)):
        shard = shard_with("a", "b", rule=StalenessRule("discard", limit=limit))
        shard.arrive(arrival("c", base=0), 0.0)
        shard.advance(0.0)
        assert shard.dropped == dropped
        assert shard.theta == pytest.approx([-1.5 - (0 if dropped else 1 / 3)] * 2)


def test_a_group_weighs_as_many_samples_as_it_said_last() -> None:
    shard = shard_with("a", "b")
    shard.arrive(arrival("a", sequence=2, base=2, samples=30, value=4.0), 0.0)
    shard.advance(0.0)
    assert shard.theta == pytest.approx([-1.5 - 4.0 * 30 / 40] * 2)


def test_momentum_looks_ahead_and_the_rate_scales() -> None:
    outer, state = OuterOptimizer(rate=0.5, momentum=0.9), OuterState(np.zeros(1), np.zeros(1))
    theta = outer_step(np.zeros(1), np.ones(1), state, outer)
    assert theta == pytest.approx([-0.5 * (1 + 0.9)])
    theta = outer_step(theta, np.ones(1), state, outer)
    assert state.velocity == pytest.approx([1.9])
    assert theta == pytest.approx([-0.95 - 0.5 * (1 + 0.9 * 1.9)])
    assert state.pending == pytest.approx([0.0])
    assert state.count == 2


def test_what_arrived_is_known_before_its_round_is_over() -> None:
    shard = ShardState(RoundPolicy(groups=2, quorum=2))
    shard.start(np.zeros(2, dtype=np.float32))
    shard.arrive(arrival("a"), 0.0)
    assert shard.has("a", 1)
    assert not shard.has("a", 2)
    assert not shard.has("b", 1)
    assert not shard.settled("a", 1)
    assert not shard.advance(100.0)
    shard.count(1)
    assert shard.advance(0.0), "the other one takes part no more"
    assert shard.settled("a", 1)


def test_a_round_is_over_at_once_when_all_have_arrived() -> None:
    shard = ShardState(RoundPolicy(groups=2, quorum=1, grace=60.0))
    shard.start(np.zeros(2, dtype=np.float32))
    shard.arrive(arrival("a"), 0.0)
    assert not shard.advance(59.0)
    shard.arrive(arrival("b"), 59.0)
    assert shard.advance(59.0)


def test_a_group_that_begins_anew_counts_from_one_and_its_unfinished_progress_is_dropped() -> None:
    shard = ShardState(RoundPolicy(groups=2, quorum=2))
    shard.start(np.zeros(2, dtype=np.float32))
    shard.arrive(arrival("a"), 0.0)
    shard.forget("a")
    assert not shard.has("a", 1)
    shard.arrive(arrival("b", value=3.0), 0.0)
    assert not shard.advance(0.0), "what was dropped completes no round"
    shard.arrive(arrival("a", value=1.0), 0.0)
    assert shard.advance(0.0)
    assert shard.theta == pytest.approx([-2.0, -2.0])
    shard.forget("a")
    assert not shard.settled("a", 1)
    assert shard.settled("b", 1)


def test_another_quorum_holds_from_now_on(tmp_path: Path) -> None:
    shard = ShardState(RoundPolicy(groups=3, quorum=3))
    shard.start(np.zeros(2, dtype=np.float32))
    shard.arrive(arrival("a"), 0.0)
    assert not shard.advance(0.0)
    shard.retune(1)
    assert shard.advance(0.0)
    again = written_and_read(shard, ShardState(RoundPolicy(groups=3, quorum=3)), tmp_path)
    again.arrive(arrival("b"), 0.0)
    assert again.advance(0.0)


def test_momentum_survives_a_restart(tmp_path: Path) -> None:
    outer = OuterOptimizer(momentum=0.9, delay=2)
    states = [ShardState(RoundPolicy(outer=outer))]
    states[0].start(np.zeros(2, dtype=np.float32))
    states[0].arrive(arrival("a"), 0.0)
    states[0].advance(0.0)
    states.append(written_and_read(states[0], ShardState(RoundPolicy(outer=outer)), tmp_path))
    for state in states:
        state.arrive(arrival("a", sequence=2, base=1), 0.0)
        state.advance(0.0)
        assert state.theta == pytest.approx([-1.0 - 1.9] * 2)


def test_what_a_syncer_is_started_with_has_defaults() -> None:
    plain = RoundPolicy.of({"groups": 3, "quorum": 2})
    assert plain == RoundPolicy(3, 2, 0.0, StalenessRule("divide", 8, 0.1), OuterOptimizer(1.0, 0.0, 1))
    given = {"groups": 3, "quorum": 2, "grace": 1.5, "rule": {"name": "discard", "limit": 2}, "outer": {"delay": 4}}
    assert RoundPolicy.of(given) == RoundPolicy(3, 2, 1.5, StalenessRule("discard", 2), OuterOptimizer(delay=4))


@pytest.mark.parametrize(("updates", "remembered"), [(7, True), (8, False)])
def test_eight_versions_are_remembered(updates: int, remembered: bool) -> None:
    shard = shard_with(rule=StalenessRule("compensate", compensation=1.0))
    for sequence in range(1, updates + 1):
        shard.arrive(arrival("a", sequence=sequence, base=sequence - 1), 0.0)
        shard.advance(0.0)
    shard.arrive(arrival("b", base=0, value=0.5), 0.0)
    shard.advance(0.0)
    counted = 0.5 - 0.25 * updates if remembered else 0.5 / (1 + updates)
    assert shard.theta == pytest.approx([-updates - counted / 2] * 2)


def test_progress_counts_fully_while_no_step_was_made_from_which_to_measure() -> None:
    now, base = np.array([1.0]), np.array([0.0])
    rule = StalenessRule("gap")
    assert weigh(np.array([2.0]), now=now, base=base, stale=1, rule=rule, mean_step=0.0) == pytest.approx([2.0])
    assert weigh(np.array([2.0]), now=now, base=base, stale=1, rule=rule, mean_step=0.5) == pytest.approx([2 / 3])


def test_a_quorum_of_more_groups_than_there_are_is_all_of_them() -> None:
    shard = ShardState(RoundPolicy(groups=2, quorum=5, grace=9.0))
    shard.start(np.zeros(2, dtype=np.float32))
    shard.arrive(arrival("a"), 0.0)
    assert not shard.advance(99.0)
    shard.arrive(arrival("b"), 0.0)
    assert shard.advance(0.0)
    shard.count(0)
    assert not shard.advance(99.0), "nobody has arrived"
    shard.arrive(arrival("a", sequence=2, base=1), 0.0)
    assert shard.advance(0.0), "one group is all"


def test_the_grace_of_others_goes_on_when_one_begins_anew() -> None:
    shard = ShardState(RoundPolicy(groups=3, quorum=2, grace=4.0))
    shard.start(np.zeros(2, dtype=np.float32))
    for name in "ab":
        shard.arrive(arrival(name), 10.0)
    shard.forget("a")
    assert not shard.advance(13.9)
    assert shard.advance(14.0)
    assert (shard.settled("b", 1), shard.settled("a", 1)) == (True, False)


def test_a_grace_begins_anew_when_nobody_is_left_who_has_arrived() -> None:
    shard = ShardState(RoundPolicy(groups=2, quorum=1, grace=4.0))
    shard.start(np.zeros(2, dtype=np.float32))
    shard.arrive(arrival("a"), 10.0)
    shard.forget("a")
    shard.arrive(arrival("b"), 13.0)
    assert not shard.advance(16.9)
    assert shard.advance(17.0)


def test_a_restart_keeps_how_many_samples_a_round_has(tmp_path: Path) -> None:
    shard = ShardState(RoundPolicy(groups=2))
    shard.start(np.zeros(2, dtype=np.float32))
    for name, samples in (("a", 30), ("b", 10)):
        shard.arrive(arrival(name, samples=samples), 0.0)
    shard.advance(0.0)
    again = written_and_read(shard, ShardState(RoundPolicy(groups=2)), tmp_path)
    again.arrive(arrival("b", sequence=2, base=1), 0.0)
    assert again.advance(0.0)
    assert again.theta == pytest.approx([-1.0 - 10 / 40] * 2)


def test_who_arrives_first_changes_no_digit_of_a_round() -> None:
    found = []
    for order in ("abc", "acb", "cab"):
        shard = ShardState(RoundPolicy(groups=3, quorum=3))
        shard.start(np.zeros(2, dtype=np.float32))
        for name in order:
            shard.arrive(arrival(name, value={"a": 1e8, "b": 1.0, "c": -1e8}[name]), 0.0)
        assert shard.advance(0.0)
        found.append(np.asarray(shard.theta).tolist())
    assert found[0] == found[1] == found[2]


def test_the_first_parameters_are_the_shards_own() -> None:
    given = np.zeros(2, dtype=np.float32)
    shard = ShardState(RoundPolicy())
    shard.start(given)
    given += 1.0
    assert np.asarray(shard.theta).tolist() == [0.0, 0.0]


def test_what_arrives_again_after_a_later_one_is_not_taken() -> None:
    shard = shard_with("a")
    shard.arrive(arrival("a", sequence=3, base=1), 0.0)
    shard.advance(0.0)
    for sequence in (1, 2, 3):
        shard.arrive(arrival("a", sequence=sequence, base=2, value=50.0), 0.0)
        assert not shard.advance(0.0)
    assert shard.theta == pytest.approx([-2.0] * 2)


def test_a_group_that_is_gone_has_no_part_in_the_samples_of_a_round() -> None:
    """What it had handed in before still counts, as one of that round."""
    shard = ShardState(RoundPolicy(groups=2, quorum=1))
    shard.start(np.zeros(1))
    for group, samples in (("a", 30), ("b", 10)):
        shard.arrive(Arrival(group, 1, 0, samples, np.ones(1)), 0.0)
    shard.leave("b")
    shard.count(1)
    assert shard.advance(0.0)
    assert shard.theta == pytest.approx([-1.0])
    shard.arrive(Arrival("a", 2, 1, 30, np.ones(1)), 1.0)
    assert shard.advance(1.0)
    assert shard.theta == pytest.approx([-2.0])
