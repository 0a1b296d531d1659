"""How fast one way of training on a set of devices is: step time, throughput, utilisation, staleness.

One group:   step = finish + exposed           exposed = max(last bucket, all-reduce - hidden part of the backward)
Groups:      each steps by itself and exchanges every H steps through the syncer, which is sharded over the groups:
             an exchange sends and receives all parameters over the group's slowest link, which it shares with the
             other groups of its host, and the group waits for it.
Stragglers:  a step of a group is slowed by f with probability q; who waits for all groups waits for the unluckiest.

The statistical price of not being synchronous is stated, not hidden: `efficiency` multiplies throughput in the ranking.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.cost.split import Cost, split_batch

__all__ = ["Candidate", "Member", "grouped", "synchronous"]

BACKWARD = 2 / 3
"""Share of the compute during which gradients appear."""
BUCKETS = 8
"""Buckets of a well arranged exchange; the last one is always exposed."""
STALE_PRICE = 0.23
"""Progress lost per step of staleness: asynchronous took 14.3 where balanced synchronous took 11.6."""
LOCAL_PRICE = 0.004
"""Progress lost per local step that others do not know of, as benchmarks/asynchrony_price.py finds (0.0042)."""


@dataclass(frozen=True)
class Member:
    """One device as the search sees it."""

    host: str
    name: str
    cost: Cost
    inside: tuple[float, float]
    """Bandwidth and latency to devices of the same host."""
    link: tuple[float, float]
    """Bandwidth and latency to other hosts."""
    straggle: tuple[float, float] = (0.0, 1.0)
    """Probability and factor of a slow step."""


@dataclass(frozen=True)
class Candidate:
    """One way to train, and what is predicted of it."""

    kind: str
    groups: tuple[tuple[int, ...], ...]
    """Members by their index."""
    shares: tuple[tuple[int, ...], ...]
    """Samples per step of each member, by group."""
    local_steps: int
    quorum: int
    predicted_step: float
    predicted_throughput: float
    predicted_utilisation: float
    staleness: float
    efficiency: float
    reason: str

    @property
    def score(self) -> float:
        """Samples per second, weighed by how much they teach."""
        return self.predicted_throughput * self.efficiency


def synchronous(members: Sequence[Member], chosen: Sequence[int], batch: int, *, size: float) -> Candidate:
    """One balanced group of some members."""
    shares, step, exposed = _group_step([members[i] for i in chosen], batch, size)
    throughput = batch / step
    reason = f"all finish together; {exposed / step:.0%} of a step waits for the exchange"
    return _candidate("synchronous", members, [tuple(chosen)], [shares], batch, throughput, reason)


def grouped(
    members: Sequence[Member],
    groups: Sequence[Sequence[int]],
    batch: int,
    *,
    size: float,
    local_steps: int,
    quorum: int,
) -> Candidate:
    """Groups that exchange through the syncer every so many local steps."""
    rates = [sum(_rate(members[i].cost, batch) for i in group) for group in groups]
    shares, steps = [], []
    for group, rate in zip(groups, rates, strict=True):
        part = max(len(group), round(batch * rate / sum(rates)))
        split, step, _ = _group_step([members[i] for i in group], part, size)
        if quorum == len(groups):
            step *= _waiting([members[i] for i in group], len(groups), local_steps)
        shares.append(split)
        steps.append(step + _syncer_exchange(members, groups, group, size) / local_steps)
    round_lasts = sorted(steps)[quorum - 1]
    steps = [max(step, round_lasts) for step in steps]
    throughput = sum(sum(split) / step for split, step in zip(shares, steps, strict=True))
    stale = (len(groups) - quorum) / quorum / local_steps
    kind = "local" if local_steps > 1 else "hybrid"
    reason = f"{len(groups)} groups exchange every {local_steps} steps, so the slow links carry less"
    return _candidate(
        kind, members, [tuple(g) for g in groups], shares, batch, throughput, reason, local_steps, quorum, stale
    )


def _candidate(
    kind: str,
    members: Sequence[Member],
    groups: list[tuple[int, ...]],
    shares: list[tuple[int, ...]],
    batch: int,
    throughput: float,
    reason: str,
    local_steps: int = 1,
    quorum: int = 1,
    stale: float = 0.0,
) -> Candidate:
    alone = sum(_rate(member.cost, batch) for member in members)
    unknown = local_steps * (1 + local_steps * stale)  # of groups that do not wait, the others are rounds ahead as well
    efficiency = 1 / (1 + STALE_PRICE * stale) / (1 + LOCAL_PRICE * (unknown - 1))
    return Candidate(
        kind=kind,
        groups=tuple(groups),
        shares=tuple(shares),
        local_steps=local_steps,
        quorum=quorum,
        predicted_step=batch / throughput,
        predicted_throughput=throughput,
        predicted_utilisation=throughput / alone,
        staleness=stale,
        efficiency=efficiency,
        reason=reason,
    )


def _rate(cost: Cost, batch: int) -> float:
    return batch / cost.seconds(batch)


def _group_step(members: Sequence[Member], batch: int, size: float) -> tuple[tuple[int, ...], float, float]:
    """Shares, step time, and the part of it that only waits for the exchange."""
    split = split_batch([member.cost for member in members], batch)
    slow, factor = _straggle(members)
    finish = split.seconds * (1 + slow * (factor - 1))
    exchange = _all_reduce(members, size)
    last = _all_reduce(members, size / BUCKETS)
    exposed = max(last, exchange - finish * BACKWARD * (1 - 1 / BUCKETS)) if len(members) > 1 else 0.0
    return split.samples, finish + exposed, exposed


def _straggle(members: Sequence[Member]) -> tuple[float, float]:
    """Probability that some member slows a step down, and by which factor."""
    missed = math.prod(1 - member.straggle[0] for member in members)
    return 1 - missed, max(member.straggle[1] for member in members)


def _waiting(members: Sequence[Member], groups: int, local_steps: int) -> float:
    """How much longer than one group's mean the slowest of all groups takes over a round of local steps.

    The expected maximum of sums is at most the mean plus sqrt(2 ln G) deviations, and never more than if every step
    waited for all.
    """
    slow, factor = _straggle(members)
    mean = 1 + slow * (factor - 1)
    deviation = math.sqrt(slow * (1 - slow) / local_steps) * (factor - 1)
    every_step = 1 + (1 - (1 - slow) ** groups) * (factor - 1)
    return min(mean + math.sqrt(2 * math.log(groups)) * deviation, every_step) / mean


def _syncer_exchange(
    members: Sequence[Member], groups: Sequence[Sequence[int]], group: Sequence[int], size: float
) -> float:
    """Seconds in which a group hands in its progress and takes the common parameters."""
    one_host = len({member.host for member in members}) == 1
    slowest, latency = _slowest([members[i] for i in group], one_host=one_host)
    hosts = {members[i].host for i in group}
    sharing = sum(1 for other in groups if any(members[i].host in hosts for i in other))
    return 2 * size * sharing / slowest + 4 * latency


def _slowest(members: Sequence[Member], *, one_host: bool) -> tuple[float, float]:
    """The least bandwidth and the largest latency among the links that are used."""
    links = [member.inside if one_host else member.link for member in members]
    return min(link[0] for link in links), max(link[1] for link in links)


def _all_reduce(members: Sequence[Member], size: float) -> float:
    """A ring over the slowest of its links."""
    count = len(members)
    if count < 2:
        return 0.0
    bandwidth, latency = _slowest(members, one_host=len({member.host for member in members}) == 1)
    return 2 * (count - 1) * latency + 2 * (count - 1) / count * size / bandwidth
