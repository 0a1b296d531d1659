"""Places from timed messages, and the choice where the right answer is known: all without torch."""

from __future__ import annotations

import pytest

from paceline.cost.split import Cost
from paceline.runtime.auto.choose import (
    LARGE,
    SMALL,
    Choice,
    Links,
    Measured,
    _each,
    _kinds,
    choose,
    large_message,
    links_from,
    one_group,
    pairs_of,
)

FAST, SLOW = (2e9, 5e-5), (1e7, 1e-3)


def timing(bandwidth: float, latency: float) -> tuple[float, float]:
    return latency, latency + (LARGE - SMALL) / bandwidth


def measured(costs: list[Cost], links: Links, *, late: float = 0.0, size: float = 4e6) -> Measured:
    straggling = tuple((late, 10.0 if late else 1.0) for _ in costs)
    return Measured(tuple(costs), links, straggling, size)


def together(count: int) -> Links:
    return Links(("here",) * count, (FAST,) * count, (FAST,) * count)


def apart() -> Links:
    return Links(("one", "one", "two", "two"), (FAST,) * 4, (SLOW,) * 4)


def test_ranks_of_one_host_are_one_place() -> None:
    addresses = ["10.0.0.1"] * 3
    assert pairs_of(addresses) == [(0, 1)]
    found = links_from(addresses, {(0, 1): timing(*FAST)})
    assert len(set(found.sites)) == 1
    assert found.between[0] == pytest.approx(FAST)


def test_hosts_behind_a_slow_link_are_sites_of_their_own() -> None:
    addresses = ["a", "b", "c", "d"]
    pairs = {pair: timing(*SLOW) for pair in pairs_of(addresses)}
    pairs |= {(0, 1): timing(*FAST), (2, 3): timing(*FAST)}
    found = links_from(addresses, pairs)
    assert found.sites == ("a", "a", "c", "c")
    assert found.inside[0] == pytest.approx(FAST)
    assert found.between[3] == pytest.approx(SLOW)


def test_two_hosts_are_never_taken_for_one() -> None:
    found = links_from(["a", "b"], {(0, 1): timing(*SLOW)})
    assert found.sites == ("a", "b")


def test_many_hosts_are_measured_around_a_ring() -> None:
    assert len(pairs_of([f"h{i}" for i in range(40)])) == 40
    assert len(pairs_of([f"h{i}" for i in range(8)])) == 28


def test_unequal_devices_side_by_side_are_one_group() -> None:
    found = choose(measured([Cost(0, 0.001), Cost(0, 0.004)], together(2)), 100, present=one_group(2, 100))
    assert found.groups == ((0, 1),)
    assert found.reason.startswith("one balanced group, because a sample costs 1 to 4 ms")


def test_a_slow_link_separates_groups_and_says_so() -> None:
    found = choose(measured([Cost(0, 0.001)] * 4, apart()), 100, present=one_group(4, 100))
    assert found.groups == ((0, 1), (2, 3))
    assert found.local_steps > 1
    assert "the slowest link carries 10 MB/s" in found.reason
    assert Choice.of(found.plain()) == found


def test_without_epochs_the_group_stays_together_and_says_why() -> None:
    found = choose(measured([Cost(0, 0.001)] * 4, apart()), 100, present=one_group(4, 100), may_split=False)
    assert len(found.groups) == 1
    assert "batches(epochs=...)" in found.reason


def test_stragglers_make_groups_that_do_not_wait() -> None:
    found = choose(measured([Cost(0, 0.001)] * 4, together(4), late=0.1), 100, present=one_group(4, 100))
    assert len(found.groups) == 4
    assert found.quorum < len(found.groups)
    assert "10% of steps straggle" in found.reason


def test_the_present_way_is_kept_unless_another_is_clearly_better() -> None:
    present = {"one": one_group(2, 100), "two": Choice(((0,), (1,)), (50, 50), 4, 1, 0.0, "")}

    def chosen(bandwidth: float) -> dict[str, int]:
        links = Links(("one", "two"), (FAST,) * 2, ((bandwidth, 1e-4),) * 2)
        seen = measured([Cost(0, 0.001)] * 2, links)
        return {name: len(choose(seen, 100, present=way).groups) for name, way in present.items()}

    assert chosen(2e8) == {"one": 1, "two": 2}
    assert chosen(1e7) == {"one": 2, "two": 2}


@pytest.mark.parametrize(("gradients", "size"), [(1.0, 1 << 18), (1 << 19, 1 << 19), (1e12, 1 << 20)])
def test_the_large_message_is_as_long_as_the_gradients_within_bounds(gradients: float, size: int) -> None:
    assert large_message(gradients) == size


@pytest.mark.parametrize(("slower", "sites"), [(3.9, ("a", "a", "a")), (4.1, ("a", "a", "c"))])
def test_a_link_four_times_slower_than_the_fastest_separates_sites(slower: float, sites: tuple[str, ...]) -> None:
    far = timing(2e9 / slower, 5e-5)
    found = links_from(["a", "b", "c"], {(0, 1): timing(*FAST), (0, 2): far, (1, 2): far})
    assert found.sites == sites


def test_a_site_has_its_worst_link_and_a_host_of_one_rank_an_assumed_one() -> None:
    timings = {(0, 1): timing(2e9, 9e-5), (0, 2): timing(1e7, 1e-3), (1, 2): timing(2e7, 5e-3)}
    found = links_from(["a", "b", "c"], timings)
    assert found.sites == ("a", "a", "c")
    assert found.inside == (pytest.approx((2e9, 9e-5)), pytest.approx((2e9, 9e-5)), (1e10, 1e-5))
    assert found.between == (pytest.approx((1e7, 5e-3)),) * 3
    at_once = links_from(["a", "a"], {(0, 1): (0.0, 0.0)})
    assert at_once.inside[0] == ((LARGE - SMALL) / 1e-9, 1e-6), "no message takes less than nothing"


def test_nine_hosts_are_measured_around_a_ring_and_two_ranks_inside_each() -> None:
    addresses = [f"h{i // 2}" for i in range(18)]
    pairs = pairs_of(addresses)
    assert pairs[:9] == [(2 * i, 2 * i + 1) for i in range(9)]
    assert pairs[9:] == [(2 * i, (2 * i + 2) % 18) for i in range(9)]


def test_devices_are_of_one_kind_within_a_quarter_of_the_next_faster() -> None:
    assert _kinds([1.6, 1.0, 1.25]) == ["kind 1", "kind 0", "kind 0"]
    assert _kinds([1.0, 1.26]) == ["kind 0", "kind 1"]
    shared = measured([Cost(0.1, 0.001), Cost(0.0, 0.004)], together(2))
    assert _each(shared, 100) == pytest.approx([0.15 / 50, 0.004]), "in an equal share, with the constant part"
    assert _each(shared, 1) == pytest.approx([0.101, 0.004])


def test_devices_are_of_one_kind_with_the_next_faster_one() -> None:
    names = _kinds([1.44, 1.0, 2.0, 1.2])
    assert names[0] == names[1] == names[3] != names[2]
