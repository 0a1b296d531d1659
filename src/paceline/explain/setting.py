"""Settings of a watched training as recorded by its processes, and their relation to causes of long steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.measurements.run import Run

__all__ = ["Setting", "exchange_reason", "setting_of", "setting_of_run"]

SMALL_BUCKET = 256 * 1024
"""Bytes below which the start of an exchange takes longer than its bytes, on most links."""
MANY_BUCKETS = 8
ONE_BUCKET = 1024 * 1024
"""A single bucket of at least this size could be divided, so that part of the exchange overlaps with backward."""


@dataclass(frozen=True)
class Setting:
    """Facts about a training; the default is that nothing is known."""

    collecting: float = 0.0
    """Share of the time in Python's garbage collection."""
    collected: Mapping[int, float] = field(default_factory=dict)
    """Seconds of garbage collection by step, of the rank with most."""
    crowding: float = 0.0
    """Compute threads of a host for each of its cores."""
    buckets: tuple[int, ...] = ()
    """Bytes of the buckets of DistributedDataParallel."""
    searches: bool = False
    """Whether DistributedDataParallel searches for unused parameters in every step although there are none."""
    by_hand: bool = False
    """Whether the ranks exchange gradients without DistributedDataParallel."""
    sharded: bool = False
    """Whether ranks hold shards of the weights, or of the tensors between layers."""
    served: bool = False
    """Whether ranks send gradients point to point instead of by a collective."""
    staged: bool = False
    """Whether ranks are stages of a pipeline."""


def setting_of(facts: Mapping[str, Any], threads: int | None, cores: int, ranks: int) -> Setting:
    """The settings from the facts of a run; imported runs have none."""
    hosts, ddp = facts.get("hosts") or [], facts.get("ddp") or {}
    crowd = max((hosts.count(host) for host in hosts), default=1)
    return Setting(
        collecting=float(facts.get("gc_share", 0.0)),
        collected={int(step): float(seconds) for step, seconds in facts.get("gc_steps", ())},
        crowding=(threads or 0) * crowd / cores if hosts else 0.0,
        buckets=tuple(ddp.get("buckets") or ()),
        searches=bool(ddp.get("find_unused_parameters")) and not ddp.get("unused"),
        by_hand=ranks > 1 and "ddp" in facts and not (ddp or facts.get("sharded") or facts.get("joined")),
        sharded=bool(facts.get("sharded")),
        served=bool(facts.get("served")),
        staged=bool(facts.get("replay") or facts.get("staged")),
    )


def setting_of_run(run: Run) -> Setting:
    """The setting of a stored run."""
    return setting_of(run.facts, run.machine.threads, run.machine.cores, run.ranks)


def exchange_reason(setting: Setting) -> str:
    """Why the exchange of gradients is exposed; `link` if nothing in the setting explains it."""
    if setting.staged:
        return "stages"
    if setting.served:
        return "server"
    if setting.sharded:
        return "shards"
    if setting.by_hand:
        return "overlap"
    if setting.searches:
        return "unused"
    total = sum(setting.buckets)
    if len(setting.buckets) >= MANY_BUCKETS and total < SMALL_BUCKET * len(setting.buckets):
        return "buckets"
    return "overlap" if len(setting.buckets) == 1 and total >= ONE_BUCKET else "link"
