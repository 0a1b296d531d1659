"""What a group asks its shards, in which order, and for how long it waits: against shards that follow a script."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from paceline.errors import InputError
from paceline.runtime.members.channel import login_of
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.messages import LeaseReply, LeaseRequest, Parameters, Push, Role, StandingQuery
from paceline.runtime.syncer import connections
from paceline.runtime.syncer.connections import GroupHeartbeats, LeaseRevoked, ShardConnections
from paceline.runtime.syncer.leases import GroupStatus, Lease
from paceline.runtime.syncer.packing import pack_numbers

STATUS = GroupStatus(None, (), 0.5, 2)


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


class Shards:
    """Shards that note every request with its timeout, and answer by what the test gave for its kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, answers: dict[type, Any]) -> None:
        self.asked: list[tuple[int, Any]] = []
        self.timeouts: dict[str, float] = {}
        self._answers, self.clock = answers, Clock()
        monkeypatch.setattr(GroupHeartbeats, "_run", lambda heartbeats, index: None)
        monkeypatch.setattr(connections, "time", self.clock)
        monkeypatch.setattr(connections, "open_channel", self._open)
        endpoints = [("h", number) for number in range(count)]
        self.group = ShardConnections(endpoints, b"secret", group="a")
        self.group._heartbeats.doubtful = False

    def _open(self, host: str, port: int, *login: Any, **options: Any) -> Any:
        return _Line(self, port)

    def answer(self, port: int, message: Any) -> Any:
        self.asked.append((port, message))
        given = self._answers.get(type(message), messages.Done())
        found = given.pop(0) if isinstance(given, list) else given
        if isinstance(found, Exception):
            raise found
        return found(port) if callable(found) else found


class _Line:
    def __init__(self, shards: Shards, port: int) -> None:
        self._shards, self._port = shards, port

    def set_timeout(self, timeout: float) -> None:
        self._timeout = timeout

    def send(self, message: Any) -> None:
        self._message = message

    def receive(self, *expected: Any) -> Any:
        self._shards.timeouts[type(self._message).__name__] = self._timeout
        found = self._shards.answer(self._port, self._message)
        assert isinstance(found, expected)
        return found

    def close(self) -> None:
        pass


def parameters(*values: float, version: int = 3, waited: float = 0.0, lease: LeaseReply | None = None) -> Parameters:
    return Parameters(version, "none", waited, pack_numbers(np.array(values, "float32"), "none"), lease)


def reply(lease: Lease | None, outstanding: int = 0) -> LeaseReply:
    return LeaseReply(lease, outstanding, None, None, {}, (0, 0))


def by_shard(port: int) -> Parameters:
    return parameters(*([1.0, 2.0] if port == 0 else [3.0]), version=5 + port, waited=0.25 + port)


def test_a_group_begins_with_its_part_at_every_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(monkeypatch, 2, {messages.StartGroup: by_shard, messages.FetchParameters: by_shard})
    theta, versions = shards.group.start(np.array([7, 8, 9], "float32"), num_samples=100, epochs=4, begin=(1, 10))
    assert (theta.tolist(), versions, shards.group.waited) == ([1, 2, 3], [5, 6], 1.25)
    (_, first), (_, second) = sorted(shards.asked, key=lambda pair: pair[0])
    assert first.session == second.session == shards.group.session
    assert (first.layout, first.num_samples, first.epochs, first.begin) == ((("theta", 3),), 100, 4, (1, 10))
    assert [connections.unpack_numbers(one.data, "none").tolist() for one in (first, second)] == [[7, 8], [9]]
    assert shards.group.common()[0].tolist() == [1, 2, 3]
    named = Shards(monkeypatch, 1, {messages.StartGroup: parameters(1.0)})
    named.group.start(np.ones(1, "float32"), num_samples=1, epochs=1, layout=(("w", 1),))
    assert named.asked[0][1].layout == (("w", 1),)


def test_a_group_that_fits_not_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(monkeypatch, 1, {messages.StartGroup: messages.StartRefused("it has other samples")})
    with pytest.raises(InputError, match="a cannot train with the other groups: it has other samples"):
        shards.group.start(np.ones(1, "float32"), num_samples=1, epochs=1)


def push(shards: Shards, sequence: int = 4) -> list[float]:
    progress = np.array([1, 2, 3], "float32")
    versions = [7] * len(shards.group._shards)
    found, _ = shards.group.exchange(progress, sequence=sequence, versions=versions, samples=6, then=(32, STATUS))
    numbers: list[float] = found.tolist()
    return numbers


@pytest.mark.parametrize("counts", [True, False])
def test_a_group_in_doubt_asks_whether_it_counts_before_it_hands_anything_in(
    monkeypatch: pytest.MonkeyPatch, counts: bool
) -> None:
    shards = Shards(monkeypatch, 1, {StandingQuery: messages.Standing(counts, False), Push: parameters(4, 5, 6)})
    shards.group._heartbeats.doubtful = True
    if counts:
        assert push(shards) == [4, 5, 6]
    else:
        with pytest.raises(LeaseRevoked):
            push(shards)
    assert shards.asked[0] == (0, StandingQuery("a", 0)), "of no exchange in particular"
    assert [type(message) for _, message in shards.asked[1:]] == ([Push] if counts else [])
    assert not shards.group._heartbeats.doubtful
    if counts:
        push(shards, 5)
        assert [type(message) for _, message in shards.asked[2:]] == [Push], "asked once"


def test_one_shard_answers_a_push_with_the_next_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Lease(0, 32, 64), Lease(0, 64, 96)
    answers = {Push: parameters(4, 5, 6, lease=reply(first)), LeaseRequest: reply(second)}
    shards = Shards(monkeypatch, 1, answers)
    push(shards)
    (_, sent) = shards.asked[0]
    assert (sent.sequence, sent.base, sent.samples, sent.wanted, sent.status) == (4, 7, 6, 32, STATUS)
    assert shards.group.lease(5, 32, STATUS) == first
    assert len(shards.asked) == 1, "it came with the answer"
    assert shards.group.lease(6, 16) == second
    assert shards.asked[1:] == [(0, LeaseRequest("a", 0, 6, 16, None))]
    assert shards.group.last_reply == reply(second)


def test_of_several_shards_none_is_asked_for_samples_with_a_push(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(monkeypatch, 2, {Push: by_shard, StandingQuery: messages.Standing(True, True)})
    assert push(shards) == [1, 2, 3]
    sent = {port: message for port, message in shards.asked if isinstance(message, Push)}
    assert [(sent[port].wanted, sent[port].status) for port in (0, 1)] == [(0, None)] * 2
    parts = [connections.unpack_numbers(sent[port].data, "none").tolist() for port in (0, 1)]
    assert parts == [[1, 2], [3]]


def test_a_group_waits_aside_while_others_train_on_the_last_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(1, 0, 8)
    shards = Shards(monkeypatch, 2, {LeaseRequest: [reply(None, 1), reply(None, 2), reply(lease)]})
    assert shards.group.lease(3, 8) == lease
    kinds = [(port, type(message).__name__) for port, message in shards.asked]
    assert kinds == [
        (0, "LeaseRequest"), (0, "Idle"), (1, "Idle"), (0, "LeaseRequest"), (0, "LeaseRequest"), (0, "Busy"),
        (1, "Busy"),
    ]  # fmt: skip
    assert shards.clock.slept == [connections.POLL] * 2
    assert shards.group._heartbeats.busy
    over = Shards(monkeypatch, 1, {LeaseRequest: [reply(None, 1), reply(None)]})
    assert over.group.lease(3, 8) is None
    assert [type(message).__name__ for _, message in over.asked] == ["LeaseRequest", "Idle", "LeaseRequest"]
    assert not over.group._heartbeats.busy, "who is done does not hold up others"
    at_once = Shards(monkeypatch, 1, {LeaseRequest: [reply(None)]})
    assert at_once.group.lease(3, 8) is None
    assert at_once.clock.slept == []


def test_who_comes_back_says_so_to_all_and_takes_what_is_common(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(monkeypatch, 2, {messages.FetchParameters: by_shard})
    assert shards.group.come_back() == (pytest.approx([1, 2, 3]), [5, 6])
    names = [type(message).__name__ for _, message in shards.asked]
    assert names[:2] == ["Busy", "Busy"]
    assert sorted(names[2:]) == ["FetchParameters"] * 2
    shards.group.retune(local_steps=4, quorum=2, merge_at=("h", 9))
    assert shards.asked[4:] == [(port, messages.Retune("a", 4, 2, ("h", 9))) for port in (0, 1)]
    shards.group.leave()
    assert shards.asked[6:] == [(port, messages.LeaveSyncer("a")) for port in (0, 1)]


def test_a_push_may_wait_for_its_round_and_other_requests_for_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {Push: parameters(4, 5, 6), messages.FactsQuery: messages.Facts(1, 0, 1, 0.0, 0)}
    shards = Shards(monkeypatch, 1, answers)
    push(shards)
    assert shards.group.facts().version == 1
    assert shards.timeouts == {"Push": 600.0, "FactsQuery": 30.0}


def test_a_request_without_an_answer_is_repeated_and_raises_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = messages.Facts(1, 0, 1, 0.0, 0)
    shards = Shards(monkeypatch, 1, {messages.FactsQuery: [ConnectionError("gone"), TimeoutError("late"), facts]})
    assert shards.group.facts() == facts
    assert shards.group._heartbeats.doubtful
    assert shards.clock.slept == [connections.RETRY] * 2


class Stop:
    """Ends after some waits, in which the clock goes on by a script."""

    def __init__(self, clock: Clock, *waits: float) -> None:
        self._clock, self._waits = clock, list(waits)

    def wait(self, seconds: float) -> bool:
        assert seconds == connections.HEARTBEAT_INTERVAL
        if not self._waits:
            return True
        self._clock.now += self._waits.pop(0)
        return False

    def set(self) -> None:
        pass


def beaten(monkeypatch: pytest.MonkeyPatch, answers: list[bool], *waits: float) -> tuple[bool, list[int]]:
    """Whether a group is in doubt after its heartbeats were answered or not, and which shards it cut off."""
    clock, cut = Clock(), list[int]()
    monkeypatch.setattr(connections, "time", clock)
    heartbeats = GroupHeartbeats([], login_of(b"secret", Role.GROUP, "a"), group="a", cut_off=cut.append)
    heartbeats.doubtful = False
    line: Any = _Line(Shards.__new__(Shards), 0)
    monkeypatch.setattr(heartbeats, "_send", lambda index, channel: line if answers.pop(0) else None)
    monkeypatch.setattr(heartbeats, "_stopped", Stop(clock, *waits))
    heartbeats._run(3)
    return heartbeats.doubtful, cut


def test_doubt_comes_with_silence_before_the_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    assert beaten(monkeypatch, [True, True], 0.29, 0.29) == (False, [])
    assert beaten(monkeypatch, [True, True], 0.29, 0.31) == (True, []), "this process slept"
    assert beaten(monkeypatch, [False, True], 0.2, 0.2) == (True, []), "the first was not answered"


def test_a_shard_that_is_silent_for_long_is_cut_off_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    assert beaten(monkeypatch, [False, False], 10.0, 10.0)[1] == []
    assert beaten(monkeypatch, [False, False, False], 10.0, 10.5, 10.0)[1] == [3]
    assert beaten(monkeypatch, [False, True, False], 15.0, 1.0, 19.0)[1] == []


def test_a_heartbeat_says_whether_the_group_is_busy_and_a_broken_line_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = Shards(monkeypatch, 1, {messages.GroupHeartbeat: [messages.HeartbeatReply()] * 2 + [OSError("cut")]})
    heartbeats = shards.group._heartbeats
    line = heartbeats._send(0, None)
    heartbeats.busy = False
    assert heartbeats._send(0, line) is line
    assert heartbeats._send(0, line) is None
    assert [message.busy for _, message in shards.asked] == [True, False, False]
    assert shards.timeouts == {"GroupHeartbeat": 2.0}
