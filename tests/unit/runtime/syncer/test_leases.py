"""Every sample of an epoch is leased exactly once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.runtime.syncer.leases import Leases


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
    for group in "bc":
        leases.release(group, handed_in=False)
        held.pop(group, None)
    while take("a"):
        pass
    assert sorted(done) == [(epoch, index) for epoch in range(epochs) for index in range(samples)]
