"""The search over ways to train on a cluster: which devices, which groups, how often they exchange.

Sets of hosts grow from the most useful host to all of them: with few hosts one by one,
with many a grid of sizes. Groups follow the seams of the cluster: its hosts, or its kinds of link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline.errors import InputError
from paceline.model.plan.candidate import Candidate, Member, grouped, synchronous
from paceline.model.plan.cost import Workload, device_cost
from paceline.spec.cluster import Cluster, Host

__all__ = ["Plan", "make_plan", "members_of"]

LOCAL_STEPS = (1, 4, 16, 64)
MAX_SIZES = 24
"""Sets of hosts that are tried."""
MAX_GROUPS = 64
SHOWN = 5


@dataclass(frozen=True)
class Plan:
    """The best way found, and those that came after it."""

    network: str
    cluster: str
    global_batch: int
    members: tuple[Member, ...]
    ranked: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The one to use."""
        return self.ranked[0]


def make_plan(cluster: Cluster, work: Workload, *, global_batch: int) -> Plan:
    """Search, rank, and keep the best few that differ."""
    if global_batch < 1:
        raise InputError(f"a global batch of {global_batch} has no sample")
    members = members_of(cluster, work, global_batch)
    found = list(_candidates(members, global_batch, work.gradient_bytes))
    found.sort(key=lambda candidate: (-candidate.score, len(candidate.groups), candidate.local_steps))
    distinct: dict[tuple[object, ...], Candidate] = {}
    for candidate in found:
        distinct.setdefault((candidate.kind, candidate.groups), candidate)
    return Plan(work.name, cluster.name, global_batch, tuple(members), tuple(distinct.values())[:SHOWN])


def members_of(cluster: Cluster, work: Workload, batch: int) -> list[Member]:
    """Every device of the cluster with its cost and links; alike devices are costed once."""
    known: dict[object, object] = {}
    found = []
    for host in cluster.hosts:
        for device in host.devices:
            key = device.model_dump_json()
            if key not in known:
                known[key] = device_cost(device, work, batch=batch)
            found.append(_member(host, device.name, known[key], device.emulation))
    return found


def _member(host: Host, name: str, cost: object, emulation: object) -> Member:
    straggle = (getattr(emulation, "straggle", 0.0), getattr(emulation, "straggle_factor", 1.0))
    inside = (host.inside.bandwidth, host.inside.latency)
    link = (host.link.bandwidth * host.nics, host.link.latency)
    return Member(host.name, name, cost, inside, link, straggle)  # type: ignore[arg-type]


def _candidates(members: Sequence[Member], batch: int, size: float) -> Iterator[Candidate]:
    hosts = _by_key(members, lambda member: member.host)
    ordered = sorted(hosts, key=lambda group: -sum(1 / members[i].cost.b for i in group))
    for count in _sizes(len(ordered)):
        chosen = sorted(i for group in ordered[:count] for i in group)
        yield synchronous(members, chosen, batch, size=size)
    if len(members) > 1:
        fastest = min(range(len(members)), key=lambda i: members[i].cost.seconds(batch))
        yield synchronous(members, [fastest], batch, size=size)
    for groups in _groupings(members, hosts):
        for local_steps in LOCAL_STEPS:
            for quorum in {1, len(groups)}:
                yield grouped(members, groups, batch, size=size, local_steps=local_steps, quorum=quorum)


def _groupings(members: Sequence[Member], hosts: list[list[int]]) -> Iterator[list[list[int]]]:
    links = _by_key(members, lambda member: member.link)
    kinds = _by_key(members, lambda member: (member.name, member.link))
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for grouping in (hosts, links, kinds):
        key = tuple(tuple(group) for group in grouping)
        if 1 < len(grouping) <= MAX_GROUPS and key not in seen:
            seen.add(key)
            yield grouping


def _by_key(members: Sequence[Member], key: object) -> list[list[int]]:
    found: dict[object, list[int]] = {}
    for index, member in enumerate(members):
        found.setdefault(key(member), []).append(index)  # type: ignore[operator]
    return list(found.values())


def _sizes(count: int) -> list[int]:
    if count <= MAX_SIZES:
        return list(range(1, count + 1))
    return sorted({max(1, round(count * step / MAX_SIZES)) for step in range(1, MAX_SIZES + 1)})
