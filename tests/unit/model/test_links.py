"""Hosts are judged by what they reach with their best partner, beside what the fabric shows to be possible."""

from __future__ import annotations

import pytest

from paceline.bench.sites.fabric import rounds_of
from paceline.errors import PacelineError
from paceline.measurements.foreign import nccl_tests
from paceline.model.links import FabricVerdict, HostVerdict, LinkVerdict, judge_fabric, judge_link, refuse_failed
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


def of_rate(
    rate: float, *, size: int = 1 << 28, wrong: int = 0, hosts: tuple[str, ...] = ("a", "b"), ranks: int = 2
) -> nccl_tests.CollectiveTest:
    small = nccl_tests.TestedSize(1 << 10, 1.0, rate / 2, 0)
    return nccl_tests.CollectiveTest(
        "t.txt", "all_reduce", ranks, hosts, "", (small, nccl_tests.TestedSize(size, 1.0, rate, wrong))
    )


@pytest.mark.parametrize(
    ("rate", "size", "wrong", "status"),
    [
        (0.7e9, 1 << 28, 0, "PASS"),
        (0.699e9, 1 << 28, 0, "FAIL"),
        (0.699e9, 50_000_000, 0, "FAIL"),  # 0.05 s of this link
        (0.699e9, 49_999_999, 0, "UNDECIDED"),
        (0.7e9, 1 << 10, 0, "PASS"),
        (0.9e9, 1 << 28, 1, "FAIL"),
    ],
)
def test_a_link_fails_below_seven_tenths_once_messages_are_large(
    rate: float, size: int, wrong: int, status: str
) -> None:
    found = judge_link(of_rate(rate, size=size, wrong=wrong), Link(name="way", bandwidth=1e9))
    assert (found.status, found.link, found.stated, found.least) == (status, "way", 1e9, 0.7)
    assert found.share == pytest.approx(rate / 1e9)


def test_sixty_four_mebibytes_are_large_on_any_link() -> None:
    fast = Link(name="way", bandwidth=1e12)
    assert judge_link(of_rate(1e9, size=64 << 20), fast).status == "FAIL"
    assert judge_link(of_rate(1e9, size=(64 << 20) - 1), fast).status == "UNDECIDED"


def test_a_cluster_is_judged_by_the_link_that_the_ranks_share() -> None:
    inside = Link(name="bus", bandwidth=8e9)
    hosts = tuple(
        Host(name=name, devices=(Device(name="gpu"),) * 2, inside=inside, link=Link(name=f"way {name}", bandwidth=rate),
             nics=nics)
        for name, rate, nics in (("a", 1e9, 4), ("b", 3e9, 1))
    )  # fmt: skip
    made = Cluster(name="c", hosts=hosts)
    across = judge_link(of_rate(1e9), made)
    assert (across.link, across.stated) == ("way b", 3e9), "four ports of 1 GB/s are faster than one of 3 GB/s"
    assert judge_link(of_rate(1e9), Cluster(name="c", hosts=hosts[:1])).stated == 4e9
    for ranks, link in ((2, "bus"), (3, "way b")):
        assert judge_link(of_rate(1e9, hosts=("a",), ranks=ranks), made).link == link
    assert judge_link(of_rate(1e9, ranks=2), made).link == "way b", "two hosts are never inside one"


def verdict(rate: float, **more: object) -> LinkVerdict:
    return judge_link(of_rate(rate, **more), Link(name="way", bandwidth=1e9))  # type: ignore[arg-type]


def test_advice_says_what_to_do_next() -> None:
    assert verdict(0.9e9).advice == ""
    assert verdict(0.1e9, size=1 << 20).advice == "test larger messages: -e 1G (1,048,576 bytes were the largest)"
    assert verdict(0.1e9).advice == "paceline doctor tests pairs of hosts and names those to exclude: a, b"
    assert verdict(0.1e9, hosts=("a",)).advice == "NCCL_DEBUG=INFO shows which transport was used"
    assert verdict(0.9e9, wrong=3).advice == "3 elements came out wrong: take a, b out"
    assert verdict(0.9e9, wrong=3, hosts=()).advice == "3 elements came out wrong: take the host out"


def test_failed_links_end_with_an_error_that_names_them() -> None:
    refuse_failed([verdict(0.9e9), verdict(0.1e9, size=1 << 20)])
    with pytest.raises(PacelineError, match="1 of 2 tests failed: way"):
        refuse_failed([verdict(0.9e9), verdict(0.1e9)])


def test_a_host_passes_at_its_least_share() -> None:
    assert HostVerdict("a", "b", 0.7e9, 1e9, 0.7).status == "PASS"
    assert HostVerdict("a", "b", 0.699e9, 1e9, 0.7).status == "FAIL"
