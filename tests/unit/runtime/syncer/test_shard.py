"""Requests to one shard without sockets: what a group that was declared failed may still do."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import ProtocolError
from paceline.runtime.syncer.journal import FileDisk, Journal
from paceline.runtime.syncer.packing import pack_numbers, unpack_numbers
from paceline.runtime.syncer.rounds import RoundPolicy, ShardState
from paceline.runtime.syncer.shard import SyncerShard

ONES = np.ones(4, dtype=np.float32)
LAYOUT = (("theta", 4),)
SESSION = 7


def shard_of(folder: Path, *, quorum: int = 1, groups: int = 2) -> SyncerShard:
    state = ShardState(RoundPolicy(groups=groups, quorum=quorum))
    return SyncerShard(state, groups=groups, heartbeat_timeout=60.0, journal=Journal(FileDisk(folder / "journal")))


def begin(shard: SyncerShard, *groups: str) -> None:
    for group in groups:
        shard._reply(
            messages.StartGroup(group, SESSION, LAYOUT, 100, 1, (0, 0), None, None, pack_numbers(0 * ONES, "none"))
        )


def fail(shard: SyncerShard, group: str) -> None:
    """What the watching thread does when a group was silent for too long."""
    with shard._changed:
        shard._declare_failed(group)


def lease(shard: SyncerShard, group: str, sequence: int = 1) -> messages.LeaseReply:
    reply = shard._reply(messages.LeaseRequest(group, SESSION, sequence, 25, None))
    assert isinstance(reply, messages.LeaseReply)
    return reply


def push(
    shard: SyncerShard, group: str, value: float = 1.0, *, sequence: int = 1, samples: int = 25
) -> messages.Message:
    return shard._reply(messages.Push(group, SESSION, sequence, 0, samples, "none", pack_numbers(value * ONES, "none")))


def parameters(shard: SyncerShard) -> list[float]:
    reply = shard._reply(messages.FetchParameters("stays"))
    assert isinstance(reply, messages.Parameters)
    return [float(number) for number in unpack_numbers(reply.data, "none")]


def counts(shard: SyncerShard, group: str) -> bool:
    reply = shard._reply(messages.StandingQuery(group, 0))
    assert isinstance(reply, messages.Standing)
    return reply.counts


def test_a_push_of_a_revoked_group_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "hung", "stays")
    lost = lease(shard, "hung").lease
    fail(shard, "hung")
    assert lease(shard, "stays").lease == lost, "its samples are leased again"
    assert not counts(shard, "hung")
    assert isinstance(push(shard, "hung", 100.0), messages.PushRejected)
    assert parameters(shard) == [0.0] * 4


def test_a_group_that_asked_and_is_revoked_before_it_pushes_is_refused(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "hung", "stays")
    lease(shard, "hung")
    assert counts(shard, "hung")
    fail(shard, "hung")
    assert isinstance(push(shard, "hung", 100.0), messages.PushRejected)
    assert parameters(shard) == [0.0] * 4


def test_a_revoked_group_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "hung", "stays")
    lease(shard, "hung")
    fail(shard, "hung")
    again = shard_of(tmp_path)
    assert not counts(again, "hung")
    assert isinstance(push(again, "hung", 100.0), messages.PushRejected)
    assert parameters(again) == [0.0] * 4


def test_a_heartbeat_does_not_make_a_revoked_group_count(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "hung", "stays")
    lease(shard, "hung")
    fail(shard, "hung")
    shard._reply(messages.GroupHeartbeat("hung", True))
    assert isinstance(push(shard, "hung"), messages.PushRejected)
    shard._reply(messages.Busy("hung"))
    assert lease(shard, "hung", 2).lease is not None
    assert isinstance(push(shard, "hung", 4.0, sequence=2), messages.Parameters), "it came back, on other samples"
    assert parameters(shard) == [-4.0] * 4


def test_progress_that_arrived_before_its_group_failed_counts(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, quorum=2)
    begin(shard, "hung", "stays")
    mine = lease(shard, "hung").lease
    waiting = threading.Thread(target=push, args=(shard, "hung", 2.0), daemon=True)
    waiting.start()
    while not shard._shard.has("hung", 1):
        waiting.join(0.01)
    fail(shard, "hung")
    assert lease(shard, "stays").lease != mine, "what it handed in is not done again"
    waiting.join(10)
    assert parameters(shard) == [-2.0] * 4, "the round is over without the group that is left"
    push(shard, "stays", 4.0)
    assert parameters(shard) == [-3.0] * 4, "half of the samples, one version late"


def test_a_round_does_not_wait_for_a_group_that_failed(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, quorum=2)
    begin(shard, "hung", "stays")
    lease(shard, "hung")
    fail(shard, "hung")
    assert isinstance(push(shard, "stays", 4.0), messages.Parameters)


def test_leases_survive_a_restart(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    first = lease(shard, "stays")
    assert first.lease is not None
    assert (first.lease.begin, first.lease.end) == (0, 25)
    again = shard_of(tmp_path)
    assert lease(again, "stays").lease == first.lease, "the same request has the same answer"
    after = lease(again, "stays", 2).lease
    assert after is not None
    assert (after.begin, after.end) == (25, 50)


def test_a_retuned_quorum_and_its_local_steps_are_told_and_kept(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    shard._reply(messages.Retune("stays", 16, 2, None))
    for one in (shard, shard_of(tmp_path)):
        reply = lease(one, "stays")
        assert (reply.local_steps, reply.merge_at) == (16, None)
    shard._reply(messages.Retune("stays", 16, 2, ("127.0.0.1", 9)))
    for one in (shard, shard_of(tmp_path)):
        reply = lease(one, "stays", 2)
        assert (reply.lease, reply.merge_at) == (None, ("127.0.0.1", 9)), "nothing more is leased before a merge"


def test_facts_are_the_mean_and_largest_staleness(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "a", "b")
    for sequence in (1, 2, 3):
        push(shard, "a", sequence=sequence)  # all from version 0
    facts = shard._reply(messages.FactsQuery("a"))
    assert isinstance(facts, messages.Facts)
    assert (facts.version, facts.dropped, facts.mean_staleness, facts.largest_staleness) == (3, 0, 1.0, 2)


@pytest.mark.parametrize("samples", [0, 25])
def test_progress_of_another_size_or_of_no_samples_is_refused(tmp_path: Path, samples: int) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    size = 4 if samples == 0 else 3
    with pytest.raises(ProtocolError, match="not what this shard holds"):
        shard._reply(
            messages.Push("stays", SESSION, 1, 0, samples, "none", pack_numbers(np.ones(size, np.float32), "none"))
        )
    assert parameters(shard) == [0.0] * 4
