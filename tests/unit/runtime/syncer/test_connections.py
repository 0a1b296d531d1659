"""A group's heartbeats go on whatever one of them met."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from paceline.runtime.members.channel import login_of
from paceline.runtime.protocol.messages import Role
from paceline.runtime.syncer import connections
from paceline.runtime.syncer.connections import GroupHeartbeats


def test_heartbeats_go_on_whatever_one_of_them_met(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []
    enough = threading.Event()

    def fail(*args: Any, **options: Any) -> Any:
        calls.append(time.monotonic())
        if len(calls) > 3:
            enough.set()
        raise RecursionError("not an error of the network")

    monkeypatch.setattr(connections, "open_channel", fail)
    login = login_of(b"secret", Role.GROUP, "a")
    heartbeats = GroupHeartbeats([("127.0.0.1", 1)], login, group="a", cut_off=lambda index: None)
    assert enough.wait(20)
    heartbeats.stop()
    assert heartbeats.doubtful, "a group without an answer asks whether it still counts"
