"""Who reads which shard of a stream, and how far."""

from __future__ import annotations

import pytest

from paceline.runtime.data.progress import Offer, StreamProgress, wanted_samples


def offer(*places: tuple[int, int, int]) -> Offer:
    return Offer(1, more=True, wants=0, places=places)


def wanting(*numbers: int, more: bool = True) -> list[Offer]:
    return [Offer(0, more=more, wants=number, places=()) for number in numbers]


def test_whoever_holds_the_fewest_shards_is_leased_the_next() -> None:
    progress = StreamProgress(5, seed=0)
    granted = progress.grant(["a", "b", "c"], wanting(3, 0, 1))
    assert [list(granted.values()).count(name) for name in "abc"] == [3, 0, 1]
    assert list(granted.values())[:2] == ["a", "c"]
    assert set(progress.grant(["a", "b", "c"], wanting(1, 1, 1)).values()) == {"b"}, "one was left, and b has none"
    assert progress.grant(["a", "b", "c"], wanting(1, 1, 1)) == {}
    assert len(set(granted)) == 4


def test_who_has_none_takes_over_one_of_several_where_it_was_left() -> None:
    progress = StreamProgress(3, seed=0)
    first, second, third = progress.grant(["a", "b"], wanting(2, 1))
    (mine, last), (other,) = (list(progress.held_by(name)) for name in "ab")
    assert {mine, last, other} == {first, second, third}
    progress.use([offer((last, 4, 0)), offer((other, 9, 1))])
    ids, dry = ["a", "b"], [*wanting(1), *wanting(1, more=False)]
    assert progress.hand_over(ids, wanting(0, 1)) == {}, "only for whoever has none"
    assert progress.hand_over(ids, dry) == {last: "b"}
    assert (progress.held_by("a"), progress.held_by("b")) == ({mine: 0}, {last: 4})
    assert progress.hand_over(ids, dry) == {}, "the last one stays"
    assert progress.hand_over(ids, wanting(1, 1, more=False)) == {}, "nobody has any left"


def test_the_shards_of_the_dead_are_leased_first_from_where_committed_steps_left_them() -> None:
    progress = StreamProgress(4, seed=1)
    shard = next(iter(progress.grant(["a", "b"], wanting(1, 1))))
    assert not progress.use([offer((shard, 7, 0))])
    progress.release(["b"])
    assert progress.held_by("a") == {}
    assert progress.grant(["b"], wanting(1)) == {shard: "b"}
    assert progress.held_by("b")[shard] == 7


def test_an_epoch_is_over_when_every_shard_has_ended_and_the_next_has_another_order() -> None:
    orders = set()
    progress = StreamProgress(6, seed=3)
    for _ in range(4):
        order = list(progress.grant(["a"], wanting(6)))
        orders.add(tuple(order))
        assert sorted(order) == list(range(6))
        assert [progress.use([offer((shard, 2, 1))]) for shard in order] == [False] * 5 + [True]
        assert progress.held_by("a") == {}
    assert len(orders) == 4


def test_a_copy_is_what_it_was_copied_from_until_it_changes() -> None:
    progress = StreamProgress(3, seed=0)
    progress.grant(["a"], wanting(2))
    other = progress.copy()
    assert other.state_dict() == progress.state_dict()
    other.grant(["a"], wanting(1))
    assert len(progress.held_by("a")) == 2
    with pytest.raises(ValueError, match="3 shards, there are 4"):
        StreamProgress(4, seed=0).load_state_dict(progress.state_dict())


@pytest.mark.parametrize(
    ("shares", "dry", "wanted"),
    [
        ((8, 2, 2), (False, False, False), (8, 2, 2)),
        ((8, 2, 2), (True, False, False), (0, 6, 6)),
        ((8, 2, 2), (False, True, False), (10, 0, 2)),
        ((12, 0, 0), (True, False, False), (0, 6, 6)),
        ((8, 2, 2), (True, True, True), (8, 2, 2)),
    ],
)
def test_the_part_of_a_rank_without_streams_is_taken_by_the_others(
    shares: tuple[int, ...], dry: tuple[bool, ...], wanted: tuple[int, ...]
) -> None:
    assert wanted_samples(shares, dry) == wanted


@pytest.mark.parametrize(
    ("ready", "more", "wanted", "short"),
    [(4, True, 4, False), (4, False, 4, True), (3, False, 4, True), (0, False, 0, False)],
)
def test_a_rank_is_short_until_it_knows_what_comes_next(ready: int, more: bool, wanted: int, short: bool) -> None:
    assert Offer(ready, more=more, wants=0, places=()).short(wanted) is short


def test_a_shard_moves_only_to_whoever_could_read_it() -> None:
    """A rank whose workers are all busy has none left to open another shard."""
    progress = StreamProgress(3, seed=0)
    progress.grant(["a", "b"], wanting(3, 0))
    busy = Offer(0, more=False, wants=0, places=())
    assert progress.hand_over(["a", "b"], [*wanting(0), busy]) == {}
    assert len(progress.hand_over(["a", "b"], [*wanting(0), *wanting(1, more=False)])) == 1


def test_a_shard_that_is_leased_again_does_not_take_the_place_of_a_new_one() -> None:
    progress = StreamProgress(3, seed=2)
    first = progress.grant(["a"], wanting(2))
    progress.release(["b"])
    again = progress.grant(["b"], wanting(3))
    assert set(again) == {0, 1, 2}, "two that the dead held, and the one that nobody had"
    assert list(again)[:2] == list(first)
    assert [progress.use([offer((shard, 1, 1))]) for shard in again] == [False, False, True]
