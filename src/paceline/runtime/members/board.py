"""The view's board as a torch store, through which Gloo exchanges addresses: no open store, no second port."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from paceline.runtime.members.member import Member

__all__ = ["BoardStore"]


class BoardStore(dist.Store):
    """What Gloo's rendezvous needs of a store, over the authenticated connection to the leader."""

    def __init__(self, member: Member, view: int, prefix: str) -> None:
        super().__init__()
        self._member, self._view, self._prefix = member, view, prefix

    def set(self, key: str, value: Any) -> None:
        """Publish a value."""
        self._member.put(self._view, self._prefix + key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """The value, as soon as it is there."""
        value = self._member.read(self._view, self._prefix + key)
        if value is None:
            raise RuntimeError("the view ended before its members were connected")
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are there."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there now."""
        return all(self._member.glance(self._view, self._prefix + key) for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        """The view's end is the only time limit."""
