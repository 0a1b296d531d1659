"""Requests to one shard without sockets: what a group that was declared failed may still do."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline import variables
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import ProtocolError
from paceline.runtime.syncer.journal import DAMAGED, FileDisk, Journal
from paceline.runtime.syncer.packing import pack_numbers, unpack_numbers
from paceline.runtime.syncer.rounds import RoundPolicy, ShardState
from paceline.runtime.syncer.shard import SyncerShard, main
from tests.unit.runtime.syncer.answers import reply_of

ONES = np.ones(4, dtype=np.float32)
LAYOUT = (("theta", 4),)
SESSION = 7


def shard_of(folder: Path, *, quorum: int = 1, groups: int = 2) -> SyncerShard:
    state = ShardState(RoundPolicy(groups=groups, quorum=quorum))
    return SyncerShard(state, groups=groups, heartbeat_timeout=60.0, journal=Journal(FileDisk(folder / "journal")))


def begin(shard: SyncerShard, *groups: str) -> None:
    for group in groups:
        reply_of(
            shard,
            messages.StartGroup(group, SESSION, LAYOUT, 100, 1, (0, 0), None, None, pack_numbers(0 * ONES, "none")),
        )


def fail(shard: SyncerShard, group: str) -> None:
    """What the watching thread does when a group was silent for too long."""
    with shard._deciding():
        shard._declare_failed(group)


def lease(shard: SyncerShard, group: str, sequence: int = 1) -> messages.LeaseReply:
    reply = reply_of(shard, messages.LeaseRequest(group, SESSION, sequence, 25, None))
    assert isinstance(reply, messages.LeaseReply)
    return reply


def push(
    shard: SyncerShard, group: str, value: float = 1.0, *, sequence: int = 1, samples: int = 25
) -> messages.Message:
    return reply_of(
        shard, messages.Push(group, SESSION, sequence, 0, samples, "none", pack_numbers(value * ONES, "none"))
    )


def parameters(shard: SyncerShard) -> list[float]:
    reply = reply_of(shard, messages.FetchParameters("stays"))
    assert isinstance(reply, messages.Parameters)
    return [float(number) for number in unpack_numbers(reply.data, "none")]


def counts(shard: SyncerShard, group: str) -> bool:
    reply = reply_of(shard, messages.StandingQuery(group, 0))
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
    assert isinstance(push(shard, "hung", 100.0, sequence=2), messages.PushRejected), "of samples it never had"
    assert parameters(shard) == [0.0] * 4


def test_a_push_of_what_the_group_began_before_is_refused(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "anew", "stays")
    start = messages.StartGroup("anew", SESSION + 1, LAYOUT, 100, 1, (0, 0), None, None, pack_numbers(0 * ONES, "none"))
    reply_of(shard, start)
    assert isinstance(push(shard, "anew", 100.0), messages.PushRejected)
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
    reply_of(shard, messages.GroupHeartbeat("hung", True))
    assert isinstance(push(shard, "hung"), messages.PushRejected)
    reply_of(shard, messages.Busy("hung"))
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
    assert parameters(shard) == [-4.0] * 4, "all samples of its round, one version late"


def test_a_round_does_not_wait_for_a_group_that_failed(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, quorum=2)
    begin(shard, "hung", "stays")
    lease(shard, "hung")
    fail(shard, "hung")
    assert isinstance(push(shard, "stays", 4.0), messages.Parameters)


@pytest.mark.parametrize("ends", ["fails", "leaves"])
def test_a_group_that_is_gone_does_not_make_the_progress_of_others_smaller(tmp_path: Path, ends: str) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays", "goes")
    for group in ("stays", "goes"):
        lease(shard, group)
        push(shard, group)
    before = parameters(shard)[0]
    fail(shard, "goes") if ends == "fails" else reply_of(shard, messages.LeaveSyncer("goes"))
    for sequence in (2, 3):
        lease(shard, "stays", sequence)
        late = messages.Push("stays", SESSION, sequence, sequence, 25, "none", pack_numbers(ONES, "none"))
        reply_of(shard, late)
        assert parameters(shard)[0] == pytest.approx(before - (sequence - 1.0))
        shard = shard_of(tmp_path)  # a restart does not bring it back


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
    reply_of(shard, messages.Retune("stays", 16, 2, None))
    for _ in ("as it is", "started again"):
        reply = lease(shard, "stays")
        assert (reply.local_steps, reply.merge_at) == (16, None)
        assert reply.lease is not None, "leasing goes on"
        shard = shard_of(tmp_path)
    reply_of(shard, messages.Retune("stays", 16, 2, ("127.0.0.1", 9)))
    for _ in ("as it is", "started again"):
        reply = lease(shard, "stays", 2)
        assert (reply.lease, reply.merge_at) == (None, ("127.0.0.1", 9)), "nothing more is leased before a merge"
        shard = shard_of(tmp_path)


def test_a_shard_that_ends_right_after_it_was_retuned_is_retuned_when_it_is_back(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    reply_of(shard, messages.Retune("stays", 16, 2, ("127.0.0.1", 9)))
    reply = lease(shard_of(tmp_path), "stays")
    assert (reply.lease, reply.local_steps, reply.merge_at) == (None, 16, ("127.0.0.1", 9))


def test_samples_of_a_round_that_a_group_did_not_live_to_see_are_leased_again(tmp_path: Path) -> None:
    shard = shard_of(tmp_path, quorum=2)
    begin(shard, "anew", "stays")
    lost = lease(shard, "anew").lease
    waiting = threading.Thread(target=push, args=(shard, "anew", 100.0), daemon=True)
    waiting.start()
    while not shard._shard.has("anew", 1):
        waiting.join(0.01)
    start = messages.StartGroup("anew", SESSION + 1, LAYOUT, 100, 1, (0, 0), None, None, pack_numbers(0 * ONES, "none"))
    reply_of(shard, start)
    assert lease(shard, "stays").lease == lost, "its progress is dropped with what it had begun"


@pytest.mark.parametrize(("samples", "epochs"), [(100, 2), (99, 1)])
def test_groups_on_other_data_or_for_other_epochs_are_refused(tmp_path: Path, samples: int, epochs: int) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    data = pack_numbers(0 * ONES, "none")
    reply = reply_of(shard, messages.StartGroup("b", SESSION, LAYOUT, samples, epochs, (0, 0), None, None, data))
    assert isinstance(reply, messages.StartRefused)
    assert f"{samples} samples for {epochs} epochs, the others on 100 for 1" in reply.why


@pytest.mark.parametrize(("packing", "back"), [("none", "none"), ("half", "half"), ("int8", "half")])
def test_parameters_come_back_no_coarser_than_in_half(tmp_path: Path, packing: str, back: str) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    given = pack_numbers(np.array([1.0, 2.0, 3.0, 1000.0], np.float32), packing)
    reply = reply_of(shard, messages.Push("stays", SESSION, 1, 0, 25, packing, given))
    assert reply.packing == back
    assert unpack_numbers(reply.data, back) == pytest.approx(parameters(shard), rel=1e-3)


def test_progress_from_a_version_that_never_was_is_refused(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    with pytest.raises(ProtocolError, match="started from version 1, the newest is 0"):
        reply_of(shard, messages.Push("stays", SESSION, 1, 1, 25, "none", pack_numbers(ONES, "none")))


def test_facts_are_the_mean_and_largest_staleness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "a", "b")
    for sequence in (1, 2, 3):
        push(shard, "a", sequence=sequence)  # all from version 0
    facts = reply_of(shard, messages.FactsQuery("a"))
    assert isinstance(facts, messages.Facts)
    assert (facts.version, facts.dropped, facts.mean_staleness, facts.largest_staleness) == (3, 0, 1.0, 2)
    monkeypatch.setattr("paceline.runtime.syncer.shard.REPORTED", 2)
    assert reply_of(shard, messages.FactsQuery("a")).mean_staleness == 1.5, "of the newest"


@pytest.mark.parametrize("samples", [0, 25])
def test_progress_of_another_size_or_of_no_samples_is_refused(tmp_path: Path, samples: int) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    size = 4 if samples == 0 else 3
    with pytest.raises(ProtocolError, match="not what this shard holds"):
        reply_of(
            shard,
            messages.Push("stays", SESSION, 1, 0, samples, "none", pack_numbers(np.ones(size, np.float32), "none")),
        )
    assert parameters(shard) == [0.0] * 4


# Time.


class Over(Exception):
    """The clock has no further moment."""


class Clock:
    """Moments that a test chooses, in place of `time`; before each one, `hook` is called."""

    def __init__(self) -> None:
        self.now, self.moments, self.hook = 0.0, list[float](), lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if not self.moments:
            raise Over
        self.hook()
        self.now = self.moments.pop(0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("paceline.runtime.syncer.shard.time", made)
    return made


def watched(shard: SyncerShard, clock: Clock, *moments: float) -> None:
    """What the thread that judges timeouts does at these moments."""
    clock.moments = list(moments)
    with pytest.raises(Over):
        shard._tick()


def test_a_group_is_declared_failed_when_its_timeout_has_passed(tmp_path: Path, clock: Clock) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "hung", "stays")
    lost = lease(shard, "hung").lease
    watched(shard, clock, 20.0, 40.0)
    reply_of(shard, messages.GroupHeartbeat("stays", True))
    watched(shard, clock, 50.0, 60.0)
    assert "hung" in shard._last_heard  # to ask would be a sign of life
    watched(shard, clock, 60.1)
    assert not counts(shard, "hung")
    assert counts(shard, "stays")
    assert lease(shard, "stays").lease == lost


def test_a_group_that_does_not_come_back_after_a_restart_is_declared_failed_too(tmp_path: Path, clock: Clock) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "hung", "stays")
    lost = lease(shard, "hung").lease
    shard = shard_of(tmp_path)
    clock.hook = lambda: reply_of(shard, messages.GroupHeartbeat("stays", True))
    watched(shard, clock, 20.0, 40.0, 60.0)
    assert counts(shard, "hung")
    shard = shard_of(tmp_path)  # `counts` was a sign of life
    watched(shard, clock, 80.0, 100.0, 120.0, 120.1)
    assert lease(shard, "stays").lease == lost


def test_what_arrives_late_of_a_group_that_has_left_does_not_bring_it_back(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "left", "stays")
    reply_of(shard, messages.LeaveSyncer("left"))
    reply_of(shard, messages.StandingQuery("left", 0))
    clock.hook = lambda: reply_of(shard, messages.GroupHeartbeat("stays", True))
    watched(shard, clock, 20.0, 40.0, 60.0, 60.1)
    assert "declared failed" not in caplog.text


@pytest.mark.parametrize(("moments", "counted"), [((30.0, 60.0, 60.1), False), ((30.1, 60.1, 90.0), True)])
def test_a_shard_that_was_suspended_for_half_the_timeout_judges_nobody_by_it(
    tmp_path: Path, clock: Clock, moments: tuple[float, ...], counted: bool
) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "hung", "stays")
    lease(shard, "hung")
    watched(shard, clock, *moments)
    assert counts(shard, "hung") is counted


@pytest.mark.parametrize("restarted", [False, True])
def test_rounds_wait_for_a_group_that_never_came_for_two_minutes_after_a_restart_for_the_timeout(
    tmp_path: Path, clock: Clock, restarted: bool
) -> None:
    shard = shard_of(tmp_path, quorum=2)
    begin(shard, "a")
    if restarted:
        shard = shard_of(tmp_path, quorum=2)
    clock.hook = lambda: reply_of(shard, messages.GroupHeartbeat("a", True))
    last = 60.0 if restarted else 120.0
    watched(shard, clock, *(20.0 * number for number in range(1, int(last / 20) + 1)))
    assert shard._shard._groups == 2
    watched(shard, clock, last + 0.1)
    assert shard._shard._groups == 1


@pytest.mark.parametrize(("came", "seconds"), [(True, 60.0), (False, 120.0)])
def test_a_syncer_of_the_groups_own_ends_with_its_folder_when_all_have_left(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, came: bool, seconds: float
) -> None:
    def ended(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr("paceline.runtime.syncer.shard.os._exit", ended)
    own = tmp_path / "own"
    own.mkdir()
    shard = SyncerShard(
        ShardState(RoundPolicy(groups=2)), groups=2, heartbeat_timeout=60.0, journal=None, own=own
    )  # fmt: skip
    if came:
        begin(shard, "a")
        watched(shard, clock, 10.0)
        reply_of(shard, messages.LeaveSyncer("a"))
    at = clock.now
    watched(shard, clock, at + seconds / 2, at + seconds)
    assert own.exists()
    clock.moments = [at + seconds + 0.1]
    with pytest.raises(SystemExit) as code:
        shard._tick()
    assert code.value.code == 0
    assert not own.exists()


def test_a_syncer_of_the_groups_own_stays_while_one_waits_aside(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.runtime.syncer.shard.os._exit", lambda code: None)
    own = tmp_path / "own"
    own.mkdir()
    shard = SyncerShard(ShardState(RoundPolicy()), groups=1, heartbeat_timeout=60.0, journal=None, own=own)
    begin(shard, "a")
    reply_of(shard, messages.Idle("a"))
    clock.hook = lambda: reply_of(shard, messages.GroupHeartbeat("a", False))
    watched(shard, clock, *(20.0 * number for number in range(1, 10)))
    assert own.exists()


def test_a_start_that_is_repeated_is_carried_out_once_and_an_older_one_is_refused(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "a", "stays")
    lease(shard, "a")
    push(shard, "a", 4.0)
    before = parameters(shard)
    begin(shard, "a")
    assert shard._shard.settled("a", 1), "it was sent again, and the group has not begun anew"
    assert parameters(shard) == before == [-4.0] * 4
    newer = messages.StartGroup("a", 8, LAYOUT, 100, 1, (0, 0), None, None, pack_numbers(9 * ONES, "none"))
    assert isinstance(reply_of(shard, newer), messages.Parameters)
    assert not shard._shard.settled("a", 1)
    assert parameters(shard) == before, "only the first group's parameters are the first version"
    late = messages.StartGroup("a", SESSION, LAYOUT, 100, 1, (0, 0), None, None, pack_numbers(ONES, "none"))
    assert isinstance(reply_of(shard, late), messages.StartRefused)


def test_a_lease_of_what_was_begun_before_or_of_no_samples_is_refused(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    with pytest.raises(ProtocolError, match="before any group has started"):
        lease(shard, "a")
    begin(shard, "a")
    for session, size in ((SESSION + 1, 25), (SESSION, 0)):
        with pytest.raises(ProtocolError):
            reply_of(shard, messages.LeaseRequest("a", session, 1, size, None))
    assert lease(shard, "a").lease is not None


def test_progress_on_one_sample_counts(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    begin(shard, "stays")
    assert isinstance(push(shard, "stays", 3.0, samples=1), messages.Parameters)
    assert parameters(shard) == [-3.0] * 4


class Caller:
    """A group's connection: hands in messages, and notes what was on disk when each answer was held and sent."""

    peer = "a"

    def __init__(self, disk: FileDisk, *sent: messages.Message) -> None:
        self._sent, self.synchronised, self.answers = list(sent), 0, list[tuple[str, int, int]]()
        wait = disk.synchronise

        def counted(side: int) -> None:
            wait(side)
            self.synchronised += 1

        disk.synchronise = counted  # type: ignore[method-assign]

    def receive(self, *expected: type[messages.Message]) -> messages.Message:
        if not self._sent:
            raise ProtocolError("gone")
        return self._sent.pop(0)

    def answer(self, message: messages.Message, reply: messages.Message, *, hold: Callable[[], None] | None) -> None:
        before = self.synchronised
        if hold is not None:
            hold()
        self.answers.append((type(reply).__name__, before, self.synchronised))

    def close(self) -> None:
        self.answers.append(("closed", self.synchronised, self.synchronised))


def test_no_answer_ends_before_what_it_says_is_on_disk_and_a_heartbeat_waits_for_no_disk(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "journal")
    state = ShardState(RoundPolicy(groups=1, quorum=1))
    shard = SyncerShard(state, groups=1, heartbeat_timeout=60.0, journal=Journal(disk))
    data = pack_numbers(ONES, "none")
    caller: Any = Caller(
        disk,
        messages.StartGroup("a", SESSION, LAYOUT, 100, 1, (0, 0), None, None, data),
        messages.GroupHeartbeat("a", True),
        messages.LeaseRequest("a", SESSION, 1, 25, None),
        messages.Push("a", SESSION, 1, 0, 25, "none", data),
        messages.FactsQuery("a"),
    )
    shard._serve_caller(caller)
    assert caller.answers == [
        ("Parameters", 0, 1), ("HeartbeatReply", 1, 1), ("LeaseReply", 1, 2), ("Parameters", 2, 3), ("Facts", 3, 3),
        ("closed", 3, 3),
    ]  # fmt: skip
    shard._carry_out(messages.LeaseRequest("a", SESSION, 2, 25, None), ONES)  # decided, and not on disk yet
    beating: Any = Caller(disk, messages.GroupHeartbeat("a", True))
    shard._serve_caller(beating)
    assert beating.answers[0] == ("HeartbeatReply", 0, 0)


def started(folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> SyncerShard:
    """The shard that the program serves with a file of settings."""
    served: list[SyncerShard] = []

    def serve(shard: SyncerShard, server: socket.socket, secret: bytes) -> None:
        server.close()
        served.append(shard)

    monkeypatch.setattr(SyncerShard, "serve", serve)
    path = folder / "settings.json"
    content = {
        "folder": str(folder),
        "index": 0,
        "groups": 1,
        "quorum": 1,
        "address": "127.0.0.1",
        "port": 0,
        **settings,
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["shard", str(path)])
    monkeypatch.setenv(variables.SECRET, "s" * 32)
    main()
    return served[0]


def test_a_shard_removes_its_folder_only_if_the_settings_say_that_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = started(tmp_path, monkeypatch)
    assert stays._own is None, "the folder of a job has its journals, its plan and its logs"
    assert stays._heartbeat_timeout == 10.0
    ends = started(tmp_path, monkeypatch, ends=True, heartbeat_timeout=3.0)
    assert (ends._own, ends._heartbeat_timeout) == (tmp_path, 3.0)


def test_a_journal_that_cannot_be_read_ends_the_shard_with_a_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher starts a shard again after any other code."""
    (tmp_path / "shard-0.journal").mkdir()
    with pytest.raises(SystemExit) as ended:
        started(tmp_path, monkeypatch)
    assert ended.value.code == DAMAGED
