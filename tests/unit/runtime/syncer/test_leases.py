"""Every sample of an epoch is leased exactly once."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.runtime.syncer.leases import Lease, Leases


@given(st.integers(1, 200), st.integers(1, 3), st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_leases_cover_every_epoch_exactly_once(samples: int, epochs: int, events: list[tuple[str, bool]]) -> None:
    """Also where whoever keeps the books begins anew from what is on disk, after each event."""
    leases = Leases(samples, epochs)
    sequences = dict.fromkeys("abc", 0)
    done: list[tuple[int, int]] = []
    held: dict[str, list[tuple[int, int]]] = {}

    def take(group: str) -> bool:
        done.extend(held.pop(group, []))
        sequences[group] += 1
        lease = leases.take(group, sequences[group], 17)
        assert lease == leases.take(group, sequences[group], 17)
        if lease is not None:
            held[group] = [(lease.epoch, index) for index in range(lease.begin, lease.end)]
        return lease is not None

    for group, dies in events:
        if dies:
            leases.release(group, handed_in=False)
            held.pop(group, None)
        else:
            take(group)
        leases = Leases.of(json.loads(json.dumps(leases.plain())))
    for group in "bc":
        leases.release(group, handed_in=False)
        held.pop(group, None)
    while take("a"):
        pass
    assert sorted(done) == [(epoch, index) for epoch in range(epochs) for index in range(samples)]


def span(lease: Lease | None) -> tuple[int, int, int] | None:
    return None if lease is None else (lease.epoch, lease.begin, lease.end)


def test_what_is_leased_is_where_a_merged_group_goes_on() -> None:
    leases = Leases(10, 2, begin=(0, 4))
    assert span(leases.take("a", 1, 4)) == (0, 4, 7)
    assert (leases.position, leases.outstanding, leases.holders, leases.sequence_of("a")) == ((0, 7), 1, ["a"], 1)
    assert span(leases.take("b", 1, 4)) == (0, 7, 10)
    assert leases.position == (1, 0)
    leases.halted = True
    assert leases.take("a", 2, 4) is None, "no fresh samples"
    assert (leases.holders, leases.sequence_of("a")) == (["b"], 0)
    leases.release("b", handed_in=False)
    assert span(leases.take("a", 3, 99)) == (0, 7, 10), "what was returned is leased again as it was"
    assert leases.take("c", 1, 4) is None


def test_progress_that_was_handed_in_is_not_leased_again_and_late_requests_are_past() -> None:
    leases = Leases(10, 1)
    leases.take("a", 3, 5)
    leases.release("a", handed_in=True)
    assert leases.is_past("a", 3), "a request for it that is still under way"
    assert not leases.is_past("a", 4)
    assert not leases.is_past("b", 0)
    with pytest.raises(ValueError, match="has asked for lease 4, so that 3 is past"):
        leases.take("a", 3, 5)
    leases.forget("a")
    assert span(leases.take("a", 1, 5)) == (0, 5, 10)
    leases.release("nobody", handed_in=False)
    assert Leases.of(leases.plain()).plain() == leases.plain()
    assert leases.take("b", 1, 5) is None
    assert leases.position == (1, 0)


def test_a_restart_knows_who_holds_what_came_back_and_that_it_is_halted() -> None:
    leases = Leases(30, 2)
    for group in "abc":
        leases.take(group, 1, 10)
    leases.release("c", handed_in=False)
    leases.release("b", handed_in=False)
    leases.halted = True
    again = Leases.of(json.loads(json.dumps(leases.plain())))
    assert (again.halted, again.holders, again.sequence_of("a"), again.position) == (True, ["a"], 1, (1, 0))
    assert again.is_past("b", 1)
    assert span(again.take("d", 1, 10)) == (0, 20, 30), "what came back first is leased first"
    assert span(again.take("e", 1, 10)) == (0, 10, 20)
    assert again.take("f", 1, 10) is None
