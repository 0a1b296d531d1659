"""A plan for a cluster as its file describes it: the members and the best ways to train on them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import InputError
from paceline.model.plan.candidate import Candidate, Member
from paceline.model.plan.cost import Workload, device_cost
from paceline.model.plan.ways import ranked_ways
from paceline.spec.cluster import Cluster, Host

__all__ = ["Plan", "make_plan", "members_of"]

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
    ranked = ranked_ways(members, global_batch, size=work.gradient_bytes)
    return Plan(work.name, cluster.name, global_batch, tuple(members), ranked[:SHOWN])


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
