"""A plan as a file: what was chosen, for which cluster, and what is predicted of it."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from paceline.errors import StoreError
from paceline.files import atomic_write
from paceline.model.plan.make import Plan
from paceline.spec.fields import Count, Name, Noun
from paceline.spec.load import load_noun

__all__ = ["PlanFile", "PlanGroup", "PlanMember", "read_plan", "write_plan"]


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
    precision: str = ""
    basis: tuple[str, ...] = ()
    """What the prediction rests on."""
    interval_50: tuple[float, float] | None = None
    interval_90: tuple[float, float] | None = None
    """Of the throughput."""
    step_s_interval_50: tuple[float, float] | None = None
    step_s_interval_90: tuple[float, float] | None = None
    group: tuple[PlanGroup, ...]


def read_plan(path: Path) -> PlanFile:
    """The plan of a file."""
    return load_noun(path, PlanFile)


def write_plan(plan: Plan, path: Path) -> None:
    """Write the best candidate as TOML."""
    content = plan.as_dict()
    best = content.pop("candidates")[0]
    groups = [{"members": group} for group in best.pop("groups")]
    try:
        atomic_write(path, tomli_w.dumps({**content, **best, "group": groups}))
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error}") from error
