"""A plan as a file: what was chosen, for which cluster, and what is predicted of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from paceline.errors import StoreError
from paceline.model.plan.candidate import Candidate
from paceline.model.plan.search import Plan
from paceline.spec.fields import Count, Name, Noun
from paceline.spec.load import load_noun

__all__ = ["PlanFile", "PlanGroup", "PlanMember", "plain_plan", "read_plan", "write_plan"]


class PlanMember(Noun):
    """One device of a plan."""

    rank: int
    device: Name
    samples: int


class PlanGroup(Noun):
    """Devices that step together."""

    members: tuple[PlanMember, ...]


class PlanFile(Noun):
    """A plan as its file says it."""

    network: Name
    cluster: Name
    global_batch: Count
    kind: Name
    local_steps: Count
    quorum: Count
    predicted_step_s: float
    predicted_throughput: float
    predicted_utilisation: float
    staleness: float
    efficiency: float
    reason: str
    group: tuple[PlanGroup, ...]


def read_plan(path: Path) -> PlanFile:
    """The plan of a file."""
    return load_noun(path, PlanFile)


def plain_plan(plan: Plan) -> dict[str, Any]:
    """The plan as plain data, best first."""
    return {
        "network": plan.network,
        "cluster": plan.cluster,
        "global_batch": plan.global_batch,
        "candidates": [_plain(plan, candidate) for candidate in plan.ranked],
    }


def _plain(plan: Plan, candidate: Candidate) -> dict[str, Any]:
    groups = []
    for group, shares in zip(candidate.groups, candidate.shares, strict=True):
        rows = zip(group, shares, strict=True)
        groups.append([{"rank": i, "device": plan.members[i].name, "samples": n} for i, n in rows])
    return {
        "kind": candidate.kind,
        "local_steps": candidate.local_steps,
        "quorum": candidate.quorum,
        "predicted_step_s": candidate.predicted_step,
        "predicted_throughput": candidate.predicted_throughput,
        "predicted_utilisation": candidate.predicted_utilisation,
        "staleness": candidate.staleness,
        "efficiency": candidate.efficiency,
        "reason": candidate.reason,
        "groups": groups,
    }


def write_plan(plan: Plan, path: Path) -> None:
    """Write the best candidate as TOML."""
    content = plain_plan(plan)
    best = content.pop("candidates")[0]
    groups = [{"members": group} for group in best.pop("groups")]
    try:
        path.write_text(tomli_w.dumps({**content, **best, "group": groups}), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error}") from error
