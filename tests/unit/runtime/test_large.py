"""The noise scale from known noise, the warm-up, the syncer's rules, rounds and leases: all without torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InputError
from paceline.runtime.large.noise import NoiseScale
from paceline.runtime.syncer.leases import Leases
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


def test_noise_scale_is_found_from_known_noise() -> None:
    generator = np.random.default_rng(1)
    signal, sigma, small, large = np.full(200, 0.1), 2.0, 8, 64
    scale = NoiseScale(smoothing=0.999)
    for _ in range(600):
        samples = signal + sigma * generator.standard_normal((large, 200))
        norms = [float((samples[:count].mean(0) ** 2).sum()) for count in (small, large)]
        scale.observe((small, norms[0]), (large, norms[1]))
    expected = sigma**2 * 200 / float((signal**2).sum())
    assert scale.samples == pytest.approx(expected, rel=0.15)


def test_noise_scale_refuses_equal_batches() -> None:
    with pytest.raises(InputError):
        NoiseScale().observe((8, 1.0), (8, 1.0))


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


def test_what_was_committed_survives_and_is_not_counted_twice(tmp_path: Path) -> None:
    path = tmp_path / "shard.npz"
    shard = ShardState(RoundPolicy(groups=1), path)
    shard.start(np.zeros(2, dtype=np.float32))
    arrival = Arrival("a", 1, 0, 10, np.ones(2, dtype=np.float32))
    shard.arrive(arrival, 0.0)
    shard.advance(0.0)
    again = ShardState(RoundPolicy(groups=1), path)
    assert again.version == 1
    assert again.theta == pytest.approx([-1.0, -1.0])
    again.arrive(arrival, 0.0)
    assert again.settled("a", 1)
    assert not again.advance(0.0)


@given(st.integers(1, 200), st.integers(1, 3), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_leases_cover_every_epoch_exactly_once(samples: int, epochs: int, events: list[tuple[str, bool]]) -> None:
    leases = Leases(samples, epochs)
    sequences = dict.fromkeys("abc", 0)
    done: list[tuple[int, int]] = []
    held: dict[str, list[tuple[int, int]]] = {}

    def take(group: str) -> bool:
        done.extend(held.pop(group, []))
        sequences[group] += 1
        lease = leases.take(group, sequences[group], 17)
        assert lease == leases.take(group, sequences[group], 17) or lease is None
        if lease is not None:
            held[group] = [(lease.epoch, index) for index in range(lease.begin, lease.end)]
        return lease is not None

    for group, dies in events:
        if dies:
            leases.release(group, handed_in=False)
            held.pop(group, None)
        else:
            take(group)
    for group in "bc":
        leases.release(group, handed_in=False)
        held.pop(group, None)
    while take("a"):
        pass
    assert sorted(done) == [(epoch, index) for epoch in range(epochs) for index in range(samples)]
