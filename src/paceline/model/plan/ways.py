"""The search over ways to train: which members, which groups, how often they exchange.

Sets of hosts grow from the most useful host to all of them: with few hosts one by one,
with many a grid of sizes. Groups follow the seams: hosts, kinds of link, kinds of device, single devices.
Standard library only: training processes ask it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence

from paceline.model.plan.candidate import Candidate, Member, grouped, synchronous

__all__ = ["ranked_ways"]

LOCAL_STEPS = (1, 4, 16, 64)
MAX_SIZES = 24
"""Sets of hosts that are tried."""
MAX_GROUPS = 64


def ranked_ways(members: Sequence[Member], batch: int, *, size: float) -> tuple[Candidate, ...]:
    """All ways that differ in kind or groups, best first; `size` is the bytes of the gradients."""
    found = list(_candidates(members, batch, size))
    found.sort(key=lambda candidate: (-candidate.score, len(candidate.groups), candidate.local_steps))
    distinct: dict[Hashable, Candidate] = {}
    for candidate in found:
        distinct.setdefault((candidate.kind, candidate.groups), candidate)
    return tuple(distinct.values())


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
            for quorum in sorted({1, len(groups) // 2, len(groups)}):
                yield grouped(members, groups, batch, size=size, local_steps=local_steps, quorum=quorum)


def _groupings(members: Sequence[Member], hosts: list[list[int]]) -> Iterator[list[list[int]]]:
    links = _by_key(members, lambda member: member.link)
    kinds = _by_key(members, lambda member: (member.name, member.link))
    single = [[index] for index in range(len(members))]
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for grouping in (hosts, links, kinds, single):
        key = tuple(tuple(group) for group in grouping)
        if 1 < len(grouping) <= MAX_GROUPS and key not in seen:
            seen.add(key)
            yield grouping


def _by_key(members: Sequence[Member], key: Callable[[Member], Hashable]) -> list[list[int]]:
    found: dict[Hashable, list[int]] = {}
    for index, member in enumerate(members):
        found.setdefault(key(member), []).append(index)
    return list(found.values())


def _sizes(count: int) -> list[int]:
    if count <= MAX_SIZES:
        return list(range(1, count + 1))
    return sorted({max(1, round(count * step / MAX_SIZES)) for step in range(1, MAX_SIZES + 1)})
