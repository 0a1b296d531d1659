"""What a shard answers, without sockets."""

from __future__ import annotations

from typing import Any

from paceline.runtime.syncer.requests import request_numbers
from paceline.runtime.syncer.shard import SyncerShard


def reply_of(shard: SyncerShard, message: Any) -> Any:
    """The answer to a message, when it may be told."""
    reply = shard._carry_out(message, request_numbers(message))
    shard._keep()
    return reply
