"""The facts of a stored run that readers compute with, checked before anything uses them; others only are shown.

Facts come from workers, watched processes and imported files. A text in place of a number would end every command that
reads the run, and with it the sound runs beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline.spec.cluster import LayerClass
from paceline.spec.fields import Count

__all__ = ["check_facts"]

Number = Annotated[float, Field(ge=0, le=1e30)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Slowdowns = dict[str, Number]


class _Known(BaseModel):
    """Some fields of a table; the others only are shown."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Collective(_Known):
    collective: str
    ranks: Count
    size_bytes: Number
    seconds: Positive


class _Sharing(_Known):
    model_config = ConfigDict(strict=True, extra="forbid")
    cores: Count
    ranks: Count
    threads: Count
    excess: Positive
    spread: Number = 0.0
    wait: Number | None = None


class _Overlap(_Known):
    exchange: Positive
    compute: Number


class _Host(_Known):
    peak: Number | None = None
    bandwidth: Number | None = None
    thread_gain: Number | None = None


class _Work(_Known):
    kind: LayerClass
    macs: Number
    moved: Number
    steps: Count = 1


class _DataParallel(_Known):
    buckets: list[Whole] | None = None


class _Replay(_Known):
    measured_s: Positive
    replayed_s: Positive
    ideal_s: Positive
    num_steps: Whole
    by_stage: Slowdowns
    by_rank: Slowdowns
    by_dp_rank: Slowdowns
    by_kind: Slowdowns
    clock_s: Number = 0.0
    unpaired: Whole = 0
    cost: Annotated[list[Annotated[float, Field(ge=-1e30, le=1e30)]], Field(min_length=3, max_length=3)] | None = None
    delays: dict[str, Annotated[Slowdowns, Field(min_length=1)]] = Field(default_factory=dict)
    blame: Annotated[list[str], Field(min_length=2, max_length=2)] | None = None
    slow_steps: list[int] = Field(default_factory=list)
    since: int | None = None
    pattern: str = ""

    @model_validator(mode="after")
    def _names_what_is_there(self) -> Self:
        what, which = self.blame or ("", "")
        named: dict[str, Slowdowns] = {
            "stage": self.by_stage,
            "rank": self.by_rank,
            "data-parallel rank": self.by_dp_rank,
        }
        if self.blame and not (what == "micro-batches" or (which in named.get(what, {}) and self.by_kind)):
            raise ValueError(f"blame: there is no {what[:40]} {which[:40]}")
        if what == "micro-batches":
            float(which)
        if self.slow_steps and not {"pattern", "since"} <= self.model_fields_set:
            raise ValueError("slow_steps: nothing says how long the cause acts")
        return self


class _Facts(_Known):
    tokens_per_s: Number | None = None
    tokens_per_step: Number = 0.0
    mfu: Number | None = None
    peak_memory_bytes: Number | None = None
    devices: Count = 1
    files: list[str] = Field(default_factory=list)
    collectives: list[_Collective] = Field(default_factory=list)
    copy_bytes_per_s: Positive = 1.0
    sharing: list[_Sharing] = Field(default_factory=list)
    overlap: _Overlap | None = None
    host: _Host | None = None
    work: dict[str, _Work] = Field(default_factory=dict)
    unit: Literal["tokens", "images", "samples"] | None = None
    units_per_sample: Count = 1
    precision: Literal["float64", "float32", "float16", "bfloat16", "amp"] | None = None
    hosts: list[str] | None = None
    ddp: _DataParallel | None = None
    staged: bool = False
    sharded: bool = False
    joined: bool = False
    gc_share: Number = 0.0
    gc_steps: list[Annotated[list[Number], Field(min_length=2, max_length=2)]] = Field(default_factory=list)
    replay: _Replay | None = None


def check_facts(facts: Mapping[str, Any]) -> None:
    """ValueError if readers could not use the facts."""
    try:
        json.dumps(facts, allow_nan=False)
    except ValueError:
        raise ValueError("facts: a number is infinite, or none") from None
    try:
        _Facts.model_validate(facts)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"facts.{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
