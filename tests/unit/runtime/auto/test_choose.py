"""Places from timed messages, and the choice where the right answer is known: all without torch."""

from __future__ import annotations

import pytest

from paceline.cost.split import Cost
from paceline.runtime.auto.choose import LARGE, SMALL, Choice, Links, Measured, choose, links_from, one_group, pairs_of

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
