"""How late progress counts, when a round is complete, and what is on disk."""

from __future__ import annotations

from pathlib import Path

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
