"""Training on unequal machines: ranks of a group step together, each with a share of the batch that fits its speed.

The names below need torch and are loaded on first use; the rest of the package (protocol, costs, launching) does not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.runtime.data.stream import ShardedSamples as ShardedSamples
    from paceline.runtime.data.streams import ShardStreams as ShardStreams
    from paceline.runtime.group.shards import shard_mesh as shard_mesh
    from paceline.runtime.members.view import Timeouts as Timeouts
    from paceline.runtime.pace import Pace as Pace
    from paceline.runtime.pace import StepRecord as StepRecord
    from paceline.runtime.pace import join as join
    from paceline.runtime.settings import Settings as Settings
    from paceline.runtime.syncer.rounds import OuterOptimizer as OuterOptimizer
    from paceline.runtime.syncer.rounds import StalenessRule as StalenessRule

_HOMES = {
    "OuterOptimizer": "paceline.runtime.syncer.rounds",
    "Pace": "paceline.runtime.pace",
    "Settings": "paceline.runtime.settings",
    "ShardStreams": "paceline.runtime.data.streams",
    "ShardedSamples": "paceline.runtime.data.stream",
    "StalenessRule": "paceline.runtime.syncer.rounds",
    "StepRecord": "paceline.runtime.pace",
    "Timeouts": "paceline.runtime.members.view",
    "join": "paceline.runtime.pace",
    "shard_mesh": "paceline.runtime.group.shards",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline.runtime' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
