"""Hosts are judged by what they reach with their best partner, beside what the fabric shows to be possible."""

from __future__ import annotations

import pytest

from paceline.bench.fabric.hosts import rounds_of
from paceline.measurements.foreign import nccl_tests
from paceline.model.links import FabricVerdict, judge_fabric
from paceline.spec.cluster import Cluster, Device, Host, Link

STATED = 1e9


def fabric(links: dict[str, float], reached: dict[str, float], *, whole: float, stated: bool = True) -> FabricVerdict:
    """Hosts with these links, of which each reaches this much: a pair is as fast as its slower host."""
    names = list(links)
    inside, devices = Link(name="bus", bandwidth=1e12), (Device(name="gpu"),)
    hosts = tuple(
        Host(name=n, devices=devices, inside=inside, link=Link(name="way", bandwidth=links[n])) for n in names
    )
    pairs = [(names[a], names[b]) for met in rounds_of(len(names)) for a, b in met]
    rates = {pair: min(reached[pair[0]], reached[pair[1]]) for pair in pairs}
    test = nccl_tests.CollectiveTest(
        "gloo", "all_reduce", len(names), tuple(names), "", (nccl_tests.TestedSize(1 << 28, 1.0, whole, 0),)
    )
    return judge_fabric(test, rates, Cluster(name="c", hosts=hosts) if stated else None)


@pytest.mark.parametrize("stated", [True, False])
def test_the_slow_host_is_named(stated: bool) -> None:
    reached = {"a": 0.9e9, "b": 0.95e9, "c": 0.1e9, "d": 0.92e9}
    found = fabric(dict.fromkeys(reached, STATED), reached, whole=0.1e9, stated=stated)
    assert (found.status, found.exclude) == ("FAIL", ("c",))
    assert "take out c" in found.advice


def test_two_of_three_slow_hosts_and_a_majority_of_slow_hosts() -> None:
    """The best pair says what is possible; where no pair is good, no host can be blamed."""
    reached = {"a": 0.9e9, "b": 0.9e9, "c": 0.2e9, "d": 0.2e9, "e": 0.3e9}
    assert fabric(dict.fromkeys(reached, STATED), reached, whole=0.2e9).exclude == ("c", "d", "e")
    alike = dict.fromkeys("abc", 0.3e9)
    found = fabric(dict.fromkeys("abc", STATED), alike, whole=0.3e9)
    assert (found.status, found.exclude, "no host stands out" in found.advice) == ("FAIL", (), True)
    found = fabric(dict.fromkeys("ab", STATED), {"a": 0.9e9, "b": 0.2e9}, whole=0.2e9)
    assert (found.status, found.exclude, "third" in found.advice) == ("FAIL", (), True)


def test_unequal_links_are_judged_by_the_slower_link_of_a_pair() -> None:
    links = {"a": 1e9, "b": 1e9, "c": 1e8, "d": 1e9}
    reached = {"a": 0.9e9, "b": 0.9e9, "c": 0.95e8, "d": 0.9e9}
    found = fabric(links, reached, whole=0.9e8)
    assert (found.status, found.exclude, found.whole.stated) == ("PASS", (), 1e8)
    assert fabric(links, {**reached, "c": 0.5e8}, whole=0.5e8).exclude == ("c",)


def test_the_border_is_the_named_share_of_what_is_possible() -> None:
    links = dict.fromkeys("abc", STATED)
    assert fabric(links, {"a": 0.8e9, "b": 0.8e9, "c": 0.57e9}, whole=0.57e9).exclude == ()
    assert fabric(links, {"a": 0.8e9, "b": 0.8e9, "c": 0.55e9}, whole=0.55e9).exclude == ("c",)


@pytest.mark.parametrize("count", [2, 3, 4, 7, 8])
def test_everybody_meets_everybody_once(count: int) -> None:
    rounds = rounds_of(count)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    assert all(len({one for pair in pairs for one in pair}) == 2 * len(pairs) for pairs in rounds)
    assert all(
        sum(host in pair for pairs in rounds_of(count, 3) for pair in pairs) >= min(2, count - 1)
        for host in range(count)
    )
