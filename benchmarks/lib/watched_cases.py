"""Sixteen causes of slow steps in a user's script, and what each tool has to name first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["CASES", "Watched"]

STRAGGLERS = ("STRAGGLER", "COMPUTE_STRAGGLER")
CALM = ("NO_CLEAR_PERFORMANCE_BOTTLENECK", "BALANCED", "COMPUTE_BOUND")


@dataclass(frozen=True)
class Watched:
    """One case."""

    name: str
    """Also the plant of `user_script.py`."""
    named: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Paceline's first cause; none of the control, which must have no cause."""
    peer: tuple[str, ...] = ()
    """Diagnoses of TraceML that point at the place of the cause; it has none for exchanges and settings."""
    rank: int | None = None
    """The rank that TraceML must call the culprit."""
    onset: int | None = None
    rate: str = ""
    """Rate of the loopback device, such as `80mbit`."""


CASES = (
    Watched("slow link", {"kind": "aggregate", "reason": "link"}, rate="400mbit"),
    Watched("tiny buckets", {"kind": "aggregate", "reason": "buckets"}),
    Watched("slow input", {"kind": "io"}, ("INPUT_BOUND",)),
    Watched("one slow rank", {"kind": "slow_rank", "rank": 1}, STRAGGLERS, rank=1),
    Watched("oversubscribed threads", {"kind": "threads"}),
    Watched("no overlap", {"kind": "aggregate", "reason": "overlap"}, rate="800mbit"),
    Watched("large fixed overhead", {"kind": "other"}, ("RESIDUAL_HEAVY",)),
    Watched("server hot spot", {"kind": "aggregate", "reason": "server"}, rate="800mbit"),
    Watched("too small batch", {"kind": "batch"}),
    Watched("control: nothing planted", {}, CALM),
    Watched("input stall every tenth step", {"kind": "stalls", "phase": "io", "every": 10}, ("INPUT_BOUND",)),
    Watched("slow optimiser on one rank", {"kind": "slow_rank", "rank": 1, "phase": "update"}, STRAGGLERS, rank=1),
    Watched("backward straggler", {"kind": "slow_rank", "rank": 1, "phase": "backward"}, STRAGGLERS, rank=1),
    Watched("garbage collection", {"kind": "collections"}, ("RESIDUAL_HEAVY",)),
    Watched("slow from step 100", {"kind": "slow_rank", "rank": 1}, STRAGGLERS, rank=1, onset=100),
    Watched("find_unused_parameters", {"kind": "aggregate", "reason": "unused"}),
)
