"""Choice of a strategy: the model ranks candidate strategies by measured costs; one sentence states the reason.

Links are measured between every two hosts (only neighbours, if there are many) and between two ranks of each host: a
small and a large message go back and forth. Hosts whose link is nearly as fast as the fastest link form one site.
Groups are divided between sites only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.cost.split import Cost
from paceline.model.plan.search import Candidate, PlannedDevice, ranked_candidates

__all__ = [
    "LARGE",
    "SMALL",
    "Choice",
    "Links",
    "Measured",
    "Timing",
    "choose",
    "large_message",
    "links_from",
    "one_group",
    "pairs_of",
]

SMALL, LEAST_LARGE, LARGE = 1 << 10, 1 << 18, 1 << 20
MANY_HOSTS = 8
"""Number of hosts above which only neighbours are measured."""
SITE_FACTOR = 4.0
"""A link that is slower than the fastest link by this factor separates two sites."""
INSIDE_HOST = (1e10, 1e-5)
"""Assumed bandwidth and latency inside a host with one rank, where nothing can be measured."""

LinkRate = tuple[float, float]
"""Bandwidth in bytes per second, and latency in seconds."""
Timing = tuple[float, float]
"""One-way times of a small and of a large message, in seconds."""

GAIN = 1.1
"""Minimum predicted gain of another candidate, because a change has a cost and measurements are noisy."""
KIND_FACTOR = 1.25
"""Devices whose costs per sample differ by less than this factor count as one kind."""


@dataclass(frozen=True)
class Links:
    """The site of each rank, and the links of the rank inside its site and to other sites."""

    sites: tuple[str, ...]
    inside: tuple[LinkRate, ...]
    between: tuple[LinkRate, ...]


def pairs_of(addresses: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of ranks between which messages are timed."""
    hosts: dict[str, list[int]] = {}
    for rank, address in enumerate(addresses):
        hosts.setdefault(address, []).append(rank)
    inside = [(ranks[0], ranks[1]) for ranks in hosts.values() if len(ranks) > 1]
    first = [ranks[0] for ranks in hosts.values()]
    if len(first) > MANY_HOSTS:
        return inside + [(first[i], first[(i + 1) % len(first)]) for i in range(len(first))]
    return inside + [(one, other) for i, one in enumerate(first) for other in first[i + 1 :]]


def large_message(gradient_bytes: float) -> int:
    """Size of the large message in bytes: at most the gradients, but enough to measure a bandwidth."""
    return int(min(LARGE, max(LEAST_LARGE, gradient_bytes)))


def links_from(addresses: Sequence[str], timings: dict[tuple[int, int], Timing], *, large: int = LARGE) -> Links:
    """Sites and links from measured message times."""
    costs = {pair: _cost(timing, large) for pair, timing in timings.items()}
    site_of = _sites(addresses, costs)
    inside: dict[str, list[LinkRate]] = {}
    between: dict[str, list[LinkRate]] = {}
    for (one, other), cost in costs.items():
        here, there = site_of[addresses[one]], site_of[addresses[other]]
        for site in {here, there}:
            (inside if here == there else between).setdefault(site, []).append(cost)
    sites = tuple(site_of[address] for address in addresses)
    within = {site: _worst(inside.get(site, [INSIDE_HOST])) for site in set(sites)}
    out = {site: _worst(between[site]) if site in between else within[site] for site in set(sites)}
    return Links(sites, tuple(within[site] for site in sites), tuple(out[site] for site in sites))


def _cost(timing: Timing, large: int) -> LinkRate:
    short, long = timing
    return (large - SMALL) / max(long - short, 1e-9), max(short, 1e-6)


def _worst(costs: Sequence[LinkRate]) -> LinkRate:
    return min(bandwidth for bandwidth, _ in costs), max(latency for _, latency in costs)


def _sites(addresses: Sequence[str], costs: dict[tuple[int, int], LinkRate]) -> dict[str, str]:
    """The site of each host; the first host of a site gives the site its name."""
    site = {address: address for address in addresses}
    fastest = max((bandwidth for bandwidth, _ in costs.values()), default=0.0)
    for (one, other), (bandwidth, _) in costs.items():
        if bandwidth * SITE_FACTOR >= fastest and len(costs) > 1:
            old, new = site[addresses[other]], site[addresses[one]]
            site = {address: new if where == old else where for address, where in site.items()}
    return site


@dataclass(frozen=True)
class Measured:
    """Measured costs of the ranks, in the order of the view."""

    costs: tuple[Cost, ...]
    links: Links
    straggling: tuple[tuple[float, float], ...]
    gradient_bytes: float


@dataclass(frozen=True)
class Choice:
    """The strategy of the ranks: groups, shares, local steps, quorum."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks of each group; one group is synchronous training."""
    samples: tuple[int, ...]
    """Samples in one step of each group."""
    local_steps: int
    quorum: int
    predicted_throughput: float
    reason: str

    def plain(self) -> dict[str, Any]:
        """The choice as JSON data."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Choice:
        """The choice from JSON data."""
        groups = tuple(tuple(group) for group in plain["groups"])
        return cls(**{**plain, "groups": groups, "samples": tuple(plain["samples"])})

    @property
    def arrangement(self) -> tuple[object, ...]:
        """Groups, local steps and quorum: if one of them changes, ranks have to regroup or be retuned."""
        return (self.groups, self.local_steps, self.quorum)


def one_group(size: int, batch: int, reason: str = "nothing measured yet") -> Choice:
    """All ranks step together."""
    return Choice((tuple(range(size)),), (batch,), 1, 1, 0.0, reason)


def choose(measured: Measured, batch: int, *, present: Choice, may_split: bool = True) -> Choice:
    """The best candidate that uses all ranks; the present strategy unless the best is better by `GAIN`."""
    members = _members(measured, batch)
    ranked = [
        candidate
        for candidate in ranked_candidates(members, batch, size=measured.gradient_bytes)
        if sum(len(group) for group in candidate.groups) == len(members) and (may_split or len(candidate.groups) == 1)
    ]
    best = ranked[0]
    kept = [candidate for candidate in ranked if candidate.groups == present.groups]
    if kept and best.groups != present.groups and best.score < kept[0].score * GAIN:
        best = kept[0]
    others = [candidate for candidate in ranked if candidate is not best]
    return Choice(
        best.groups,
        tuple(sum(shares) for shares in best.shares),
        best.local_steps,
        best.quorum,
        best.predicted_throughput,
        _reason(measured, _each(measured, batch), [best, *others], may_split=may_split),
    )


def _members(measured: Measured, batch: int) -> list[PlannedDevice]:
    links, kinds = measured.links, _kinds(_each(measured, batch))
    rows = zip(links.sites, kinds, measured.costs, links.inside, links.between, measured.straggling, strict=True)
    return [
        PlannedDevice(site, kind, cost, batch / cost.seconds(batch), inside, link, late)
        for site, kind, cost, inside, link, late in rows
    ]


def _each(measured: Measured, batch: int) -> list[float]:
    """Seconds per sample of each rank at an equal share of the batch, including the constant cost of a step."""
    share = max(1, batch // len(measured.costs))
    return [cost.seconds(share) / share for cost in measured.costs]


def _kinds(each: Sequence[float]) -> list[str]:
    """Name the kind of each device: a new kind begins where the next faster one differs by more than `KIND_FACTOR`."""
    order = sorted(range(len(each)), key=lambda i: each[i])
    names, kind = [""] * len(each), 0
    for before, index in zip([order[0], *order], order, strict=False):
        kind += each[index] > KIND_FACTOR * each[before]
        names[index] = f"kind {kind}"
    return names


def _reason(measured: Measured, each: Sequence[float], candidates: Sequence[Candidate], *, may_split: bool) -> str:
    best, *others = candidates
    rates = [seconds * 1e3 for seconds in each]
    slowest = min(bandwidth for bandwidth, _ in measured.links.between) / 1e6
    seen = f"a sample costs {min(rates):.3g} to {max(rates):.3g} ms, the slowest link carries {slowest:.3g} MB/s"
    late = max(share for share, _ in measured.straggling)
    if late:
        seen += f", up to {late:.0%} of steps straggle"
    text = f"{_named(best)}, because {seen}: predicted {best.predicted_throughput:.4g} samples/s"
    if others:
        next_best = others[0]
        text += f"; next best is {_named(next_best)} with {next_best.score / best.score:.0%} of its progress"
    return text if may_split else text + "; several groups need batches(epochs=...), float32 and no checkpoint"


def _named(candidate: Candidate) -> str:
    if len(candidate.groups) == 1:
        return "one balanced group"
    waits = "all" if candidate.quorum == len(candidate.groups) else str(candidate.quorum)
    return f"{len(candidate.groups)} groups exchanging every {candidate.local_steps} steps with a quorum of {waits}"
