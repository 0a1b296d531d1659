"""What groups that change their ways ask of the syncer: where to begin, how to go on, when to end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.integration.runtime.test_shard import syncer

__all__ = ["syncer"]

ONES = np.ones(4, dtype=np.float32)


def begin(client: Any, begin: tuple[int, int] = (0, 0)) -> list[int]:
    return list(client.start(np.zeros(4, dtype=np.float32), num_samples=100, epochs=2, begin=begin)[1])


def test_samples_that_were_used_before_are_not_handed_out(syncer: Any) -> None:
    client = syncer(1, groups=1, quorum=1).client("a")
    begin(client, (0, 70))
    taken = [client.lease(number, 50) for number in range(1, 5)]
    assert [(lease.epoch, lease.begin, lease.end) for lease in taken[:3]] == [(0, 70, 100), (1, 0, 50), (1, 50, 100)]
    assert taken[3] is None
    client.close()


def test_another_quorum_and_number_of_local_steps_reach_all_and_survive_a_kill(syncer: Any) -> None:
    made = syncer(2, groups=2, quorum=2)
    one, other = made.client("one"), made.client("other")
    versions = begin(one)
    begin(other)
    one.retune(local_steps=16, quorum=1, merge_at=None)
    made.restart()
    other.lease(1, 10)
    assert other.last_reply.local_steps == 16
    theta, _ = one.exchange(ONES, sequence=1, versions=versions, samples=10)
    assert theta != pytest.approx(np.zeros(4)), "the quorum of one does not wait"
    for client in (one, other):
        client.close()


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed"])
def test_an_appointment_ends_leases_and_says_where_and_from_where_on(syncer: Any, killed: bool) -> None:
    made = syncer(1, groups=2, quorum=1)
    one, other = made.client("one"), made.client("other")
    found: list[Any] = []
    begin(one)
    versions = begin(other)
    assert one.lease(1, 25) is not None
    assert other.lease(1, 25) is not None
    one.retune(local_steps=1, quorum=1, merge_at=("10.0.0.1", 5))
    if killed:
        made.restart()
    other.exchange(ONES, sequence=1, versions=versions, samples=25)
    one.exchange(2 * ONES, sequence=1, versions=versions, samples=25)
    waiting = threading.Thread(target=lambda: found.append(other.lease(2, 25)))
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive(), "the other group still holds samples"
    found.append(one.lease(2, 25))
    waiting.join(5)
    assert found == [None, None]
    for client in (one, other):
        assert client.last_reply.merge_at == ("10.0.0.1", 5)
        assert client.last_reply.position == (0, 50)
    assert one.common()[0] == pytest.approx(other.common()[0])
    for client in (one, other):
        client.close()


def test_a_syncer_of_the_groups_own_ends_when_they_have_left(syncer: Any) -> None:
    made = syncer(1, groups=1, quorum=1, heartbeat_timeout=0.3, ends=True)
    client = made.client("a")
    begin(client)
    client.leave()
    assert made.processes[0].wait(10) == 0
