"""The search over strategies: which devices train, in which groups, how often the groups exchange.

One group:   one synchronous step, whose seconds a pricing function gives.
Groups:      each steps by itself and exchanges every H steps through the syncer, which is sharded over the groups:
             an exchange sends and receives all parameters over the group's slowest link, which it shares with the
             other groups of its host, and the group waits for it.
Stragglers:  a step of a group is slowed by f with probability q; a round of all groups waits for the slowest.

Sets of hosts grow from the fastest host to all hosts: one by one if there are few, in a grid of sizes if there are
many. Groups are divided at hosts, kinds of link, kinds of device, or single devices. The statistical cost of not
being synchronous is stated: `efficiency` multiplies throughput in the ranking. No pydantic, because training
processes import this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.cost.collective import Endpoint, allreduce, fabric_between, syncer_round
from paceline.cost.split import Cost, proportional_split, split_batch

__all__ = [
    "Candidate",
    "GroupStep",
    "PlannedDevice",
    "Pricing",
    "asynchrony_sentence",
    "exchange_seconds_of",
    "measured_pricing",
    "ranked_candidates",
    "throughputs",
]

Floats = NDArray[np.float64]

BACKWARD = 2 / 3
"""Share of the compute during which gradients appear, where only totals are known."""
BUCKETS = (1, 2, 4, 8, 16)
"""Candidate numbers of equal buckets, if only totals are known."""
STALE_PRICE = 0.23
"""Progress lost per step of staleness: asynchronous took 14.3 where balanced synchronous took 11.6."""
LOCAL_PRICE = 0.004
"""Progress lost per local step that others do not know of, as benchmarks/asynchrony_price.py finds (0.0042)."""
SIMPLER_WITHIN = 0.02
"""Share of progress per second by which one group of all devices may be worse and still rank first."""
LOCAL_STEPS = (1, 4, 16, 64)
MAX_SIZES = 24
"""Sets of hosts that are tried."""
MAX_GROUPS = 64


@dataclass(frozen=True)
class PlannedDevice:
    """One device as the search sees it."""

    host: str
    name: str
    cost: Cost
    rate: float
    """Samples per second of the device alone."""
    inside: tuple[float, float]
    """Bandwidth and latency to devices of the same host."""
    link: tuple[float, float]
    """Bandwidth and latency to other hosts."""
    straggle: tuple[float, float] = (0.0, 1.0)
    """Probability and factor of a slow step."""

    @property
    def endpoint(self) -> Endpoint:
        """The endpoint of the device."""
        return Endpoint(self.host, self.inside, self.link)


@dataclass(frozen=True)
class GroupStep:
    """A step of a group of devices that step together."""

    shares: tuple[int, ...]
    """Samples of each device."""
    seconds: float
    exposed: float
    """Seconds in which devices only wait for the exchange."""

    @property
    def waits(self) -> float:
        """Share of the step that waits for the exchange."""
        return self.exposed / self.seconds


Group = tuple[int, ...]
"""Devices by their index."""
Pricing = Callable[[Group, int, Group], GroupStep]
"""Cost of a step of a group for a number of samples; devices of a host that train concurrently share its cores."""


@dataclass(frozen=True)
class Candidate:
    """One strategy and its prediction."""

    kind: str
    groups: tuple[Group, ...]
    shares: tuple[tuple[int, ...], ...]
    """Samples per step of each device, by group; together they are the global batch."""
    local_steps: int
    quorum: int
    predicted_throughput: float
    predicted_utilisation: float
    staleness: float
    efficiency: float
    reason: str
    interval_50: tuple[float, float] | None = None
    interval_90: tuple[float, float] | None = None
    """Interval of the throughput, if requested."""

    @property
    def predicted_step(self) -> float:
        """Seconds in which the global batch is trained."""
        return sum(map(sum, self.shares)) / self.predicted_throughput

    @property
    def score(self) -> float:
        """Samples per second, weighed by how much they teach."""
        return self.predicted_throughput * self.efficiency


def ranked_candidates(
    devices: Sequence[PlannedDevice], batch: int, *, size: float, price: Pricing | None = None
) -> tuple[Candidate, ...]:
    """All strategies that differ in kind, groups or synchrony, best first; `size` is the bytes of the gradients."""
    pricing = measured_pricing(devices, size) if price is None else price
    ranked = list(_candidates(devices, batch, size, pricing))
    ranked.sort(key=lambda candidate: (-candidate.score, len(candidate.groups), candidate.local_steps))
    distinct: dict[Hashable, Candidate] = {}
    for candidate in ranked:
        distinct.setdefault((candidate.kind, candidate.groups, candidate.staleness > 0), candidate)
    return _simplest_first(list(distinct.values()))


def _simplest_first(ranked: list[Candidate]) -> tuple[Candidate, ...]:
    """One group ranks before candidates that are hardly better: it needs no syncer, and predictions are not precise
    enough."""
    least = ranked[0].score * (1 - SIMPLER_WITHIN)
    plain = next((one for one in ranked if len(one.groups) == 1 and one.score >= least), None)
    return tuple(ranked if plain is None else [plain, *(one for one in ranked if one is not plain)])


def asynchrony_sentence(ranked: Sequence[Candidate]) -> str:
    """Whether groups that do not wait for each other progress faster than the best that wait."""
    waiting = next((one for one in ranked if not one.staleness), None)
    free = next((one for one in ranked if one.staleness), None)
    if free is None or waiting is None:
        return "Asynchrony has nothing to offer: no strategy without waiting is among the candidates."
    gain = free.score / waiting.score - 1
    rates = f"{free.predicted_throughput:,.1f} samples/s against {waiting.predicted_throughput:,.1f}"
    if gain > 0:
        return f"Asynchrony pays: {gain:.1%} more progress per second ({rates}, a stale sample counted as less)."
    return (
        f"Asynchrony does not pay: {abs(gain):.1%} less progress per second ({rates}, a stale sample counted as less)."
    )


def _candidates(devices: Sequence[PlannedDevice], batch: int, size: float, price: Pricing) -> Iterator[Candidate]:
    hosts = _by_key(devices, lambda device: device.host)
    ordered = sorted(hosts, key=lambda group: -sum(devices[i].rate for i in group))
    chosen = {tuple(sorted(i for group in ordered[:count] for i in group)) for count in _sizes(len(ordered))}
    chosen.add((max(range(len(devices)), key=lambda i: devices[i].rate),))
    for group in sorted(chosen, key=len):
        yield _combined(devices, [group], [price(group, batch, group)])
    for groups in _groupings(devices, hosts):
        least = [1] * len(groups) if batch < len(devices) else [len(group) for group in groups]
        if batch < len(groups):
            continue
        parts = proportional_split([sum(devices[i].rate for i in group) for group in groups], batch, least=least)
        everyone = tuple(range(len(devices)))
        steps = [price(group, part, everyone) for group, part in zip(groups, parts, strict=True)]
        exchanges = exchange_seconds_of(devices, groups, size)
        for local_steps in LOCAL_STEPS:
            for quorum in sorted({1, len(groups) // 2, len(groups)}):
                yield _combined(devices, groups, steps, exchanges=exchanges, local_steps=local_steps, quorum=quorum)


def _groupings(devices: Sequence[PlannedDevice], hosts: list[Group]) -> Iterator[list[Group]]:
    links = _by_key(devices, lambda device: device.link)
    kinds = _by_key(devices, lambda device: (device.name, device.link))
    single: list[Group] = [(index,) for index in range(len(devices))]
    seen: set[tuple[Group, ...]] = set()
    for grouping in (hosts, links, kinds, single):
        if 1 < len(grouping) <= MAX_GROUPS and tuple(grouping) not in seen:
            seen.add(tuple(grouping))
            yield grouping


def _by_key(devices: Sequence[PlannedDevice], key: Callable[[PlannedDevice], Hashable]) -> list[Group]:
    groups: dict[Hashable, list[int]] = {}
    for index, device in enumerate(devices):
        groups.setdefault(key(device), []).append(index)
    return [tuple(group) for group in groups.values()]


def _sizes(count: int) -> list[int]:
    if count <= MAX_SIZES:
        return list(range(1, count + 1))
    return sorted({max(1, round(count * step / MAX_SIZES)) for step in range(1, MAX_SIZES + 1)})


def _combined(
    devices: Sequence[PlannedDevice],
    groups: Sequence[Group],
    steps: Sequence[GroupStep],
    *,
    exchanges: Sequence[float] = (0.0,),
    local_steps: int = 1,
    quorum: int = 1,
) -> Candidate:
    """The strategy of one group, or of groups that exchange through the syncer every `local_steps` steps."""
    kind, reason = "synchronous", f"all finish together; {steps[0].waits:.0%} of a step waits for the exchange"
    if len(groups) == 1 and len(groups[0]) == 1 < len(devices):
        reason = "one device alone: what others would add is less than their exchange costs"
    if len(groups) > 1:
        kind = "local" if local_steps > 1 else "hybrid"
        reason = f"{len(groups)} groups exchange every {local_steps} steps, so the slow links carry less"
    stale = (len(groups) - quorum) / quorum / local_steps
    unknown = local_steps * (1 + local_steps * stale)  # groups that do not wait may also be rounds ahead
    shares, seconds = tuple(step.shares for step in steps), np.array([[step.seconds] for step in steps])
    candidate = Candidate(
        kind=kind,
        groups=tuple(groups),
        shares=shares,
        local_steps=local_steps,
        quorum=quorum,
        predicted_throughput=0.0,
        predicted_utilisation=0.0,
        staleness=stale,
        efficiency=1 / (1 + STALE_PRICE * stale) / (1 + LOCAL_PRICE * (unknown - 1)),
        reason=reason,
    )
    throughput = float(throughputs(candidate, devices, seconds, np.array(exchanges)[:, None])[0])
    utilisation = throughput / sum(device.rate for device in devices)
    return replace(candidate, predicted_throughput=throughput, predicted_utilisation=utilisation)


def throughputs(candidate: Candidate, devices: Sequence[PlannedDevice], seconds: Floats, exchanges: Floats) -> Floats:
    """Samples per second of a strategy: rows are groups, columns are draws of the seconds of their steps and exchanges.

    A group's step takes its share of the exchange and, where a quorum must come together, as long as that quorum.
    """
    groups, samples = candidate.groups, np.array([[float(sum(shares))] for shares in candidate.shares])
    if candidate.quorum == len(groups) > 1:
        waits = [_waiting([devices[i] for i in group], len(groups), candidate.local_steps) for group in groups]
        seconds = seconds * np.array(waits)[:, None]
    rounds = seconds + exchanges / candidate.local_steps * (len(groups) > 1)
    lasts = np.sort(rounds, axis=0)[candidate.quorum - 1]
    return np.asarray((samples / np.maximum(rounds, lasts)).sum(axis=0))


def exchange_seconds_of(devices: Sequence[PlannedDevice], groups: Sequence[Group], size: float) -> list[float]:
    """Seconds in which each group pushes its progress and receives the common parameters."""
    one_host = len({device.host for device in devices}) == 1
    hosts = [{devices[i].host for i in group} for group in groups]
    seconds = []
    for group, mine in zip(groups, hosts, strict=True):
        links = [devices[i].inside if one_host else devices[i].link for i in group]
        sharing = sum(not mine.isdisjoint(other) for other in hosts)
        bandwidth, latency = min(link[0] for link in links), max(link[1] for link in links)
        seconds.append(syncer_round(size, bandwidth=bandwidth, latency=latency, sharing=sharing))
    return seconds


def _straggle(devices: Sequence[PlannedDevice]) -> tuple[float, float]:
    """Probability that some device slows a step down, and by which factor."""
    missed = math.prod(1 - device.straggle[0] for device in devices)
    return 1 - missed, max(device.straggle[1] for device in devices)


def _waiting(devices: Sequence[PlannedDevice], groups: int, local_steps: int) -> float:
    """How much longer than one group's mean the slowest of all groups takes over a round of local steps.

    The expected maximum of sums is at most the mean plus sqrt(2 ln G) deviations, and never more than if every step
    waited for all.
    """
    slow, factor = _straggle(devices)
    mean = 1 + slow * (factor - 1)
    deviation = math.sqrt(slow * (1 - slow) / local_steps) * (factor - 1)
    every_step = 1 + (1 - (1 - slow) ** groups) * (factor - 1)
    return min(mean + math.sqrt(2 * math.log(groups)) * deviation, every_step) / mean


def measured_pricing(devices: Sequence[PlannedDevice], size: float) -> Pricing:
    """Pricing from totals alone: what running ranks have measured of themselves and of the links.

    Gradients appear evenly over backward and travel in k equal buckets of the best k:
    exposed = min over k of max(c, k c - backward (1 - 1/k)), with c the seconds of one bucket.
    """

    def price(group: Group, batch: int, _everyone: Group) -> GroupStep:
        members = [devices[i] for i in group]
        split = split_batch([member.cost for member in members], batch)
        slow, factor = _straggle(members)
        finish = split.seconds * (1 + slow * (factor - 1))
        fabric, backward = fabric_between([member.endpoint for member in members]), finish * BACKWARD
        costs = [(count, float(allreduce(fabric, size / count))) for count in BUCKETS]
        exposed = min(max(one, count * one - backward * (1 - 1 / count)) for count, one in costs)
        return GroupStep(split.samples, finish + exposed, exposed)

    return price
