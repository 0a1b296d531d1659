"""A plan as a file: the chosen strategy, its cluster, and its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tomli_w
from pydantic import Field, model_validator

from paceline.errors import InputError
from paceline.files import write_output
from paceline.model.plan.make import Plan
from paceline.spec.fields import Count, Name, NotNegative, SpecModel
from paceline.spec.load import load_spec

__all__ = ["PlanFile", "PlanGroup", "PlanMember", "read_plan", "write_plan"]


class PlanMember(SpecModel):
    """One device of a plan."""

    rank: Annotated[int, Field(ge=0, le=10**6)]
    device: Name
    samples: Annotated[int, Field(ge=0, le=2**31 - 1)]


class PlanGroup(SpecModel):
    """Devices that step together."""

    members: Annotated[tuple[PlanMember, ...], Field(min_length=1)]


class PlanFile(SpecModel):
    """A plan as stored in its file."""

    network: Name
    cluster: Name
    global_batch: Count
    kind: Name
    local_steps: Count
    quorum: Count
    predicted_step_s: NotNegative
    predicted_throughput: NotNegative
    predicted_utilisation: NotNegative
    staleness: NotNegative
    efficiency: NotNegative
    reason: str
    precision: str = ""
    exchange: str = ""
    asynchrony: str = ""
    basis: tuple[str, ...] = ()
    """The sources of the prediction."""
    interval_50: tuple[NotNegative, NotNegative] | None = None
    interval_90: tuple[NotNegative, NotNegative] | None = None
    """90 % interval of the throughput."""
    step_s_interval_50: tuple[NotNegative, NotNegative] | None = None
    step_s_interval_90: tuple[NotNegative, NotNegative] | None = None
    group: Annotated[tuple[PlanGroup, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _ranks_once(self) -> PlanFile:
        ranks = [member.rank for group in self.group for member in group.members]
        if len(set(ranks)) < len(ranks):
            raise ValueError("group must name a rank only once; a plan may leave ranks out")
        return self

    @model_validator(mode="after")
    def _whole_batch(self) -> PlanFile:
        total = sum(member.samples for group in self.group for member in group.members)
        if total != self.global_batch:
            raise ValueError(f"samples of all members sum to {total}, global_batch is {self.global_batch}")
        return self


def read_plan(path: Path) -> PlanFile:
    """The plan of a file."""
    return load_spec(path, PlanFile)


def write_plan(plan: Plan, path: Path) -> None:
    """Write the best candidate as TOML."""
    content = plan.as_dict()
    for name in ("baseline", "loads", "everyday"):  # for people, not for training
        del content[name]
    best = content.pop("candidates")[0]
    groups = [{"members": group} for group in best.pop("groups")]
    try:
        write_output(path, tomli_w.dumps({**content, **best, "group": groups}))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="name a file that can be written") from None
