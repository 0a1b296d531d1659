"""A group's side of the syncer when a shard does not answer: heartbeats go on, and patience has a beginning."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.errors import TrainingLost
from paceline.runtime.members.channel import login_of
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.messages import Role
from paceline.runtime.syncer import connections
from paceline.runtime.syncer.connections import GroupHeartbeats, LeaseRevoked, ShardConnections


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


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Line:
    """A channel to a shard that does what a script says."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def set_timeout(self, timeout: float) -> None:
        self.timeout = timeout

    def send(self, message: Any) -> None:
        self.message = message

    def receive(self, *expected: Any) -> Any:
        assert self.timeout > 0
        return self._act(self.message)

    def close(self) -> None:
        pass


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Connections to two shards that answer as a function says, with a clock of their own."""
    clock = Clock()
    monkeypatch.setattr(GroupHeartbeats, "_run", lambda self, index: None)

    def make(act: Any, timeout: float = 60.0) -> tuple[ShardConnections, Clock]:
        monkeypatch.setattr(connections, "time", clock)
        monkeypatch.setattr(connections, "open_channel", lambda host, port, *a, **k: Line(lambda m: act(port, m)))
        made = ShardConnections([("h", 0), ("h", 1)], b"secret", group="a", timeout=timeout)
        made._heartbeats.doubtful = False
        return made, clock

    return make


def test_patience_counts_from_the_first_failure_not_from_the_question(shards: Any) -> None:
    tries: list[float] = []

    def act(port: int, message: Any) -> Any:
        clock.now += 100.0 if not tries else 0.0  # the round took long, and then the shard was started again
        tries.append(clock.now)
        if len(tries) < 4:
            raise ConnectionError("the shard is being started again")
        return messages.Facts(1, 0, 1, 0.0, 0)

    made, clock = shards(act)
    assert made.facts().version == 1


def test_a_shard_that_stays_away_is_an_error_after_the_patience(shards: Any) -> None:
    def act(port: int, message: Any) -> Any:
        raise ConnectionError("gone")

    made, clock = shards(act, timeout=5.0)
    with pytest.raises(TrainingLost, match="does not answer"):
        made.facts()
    assert 5.0 <= clock.now < 6.0


def test_no_shard_applies_what_the_first_refuses(shards: Any) -> None:
    asked: list[int] = []

    def act(port: int, message: Any) -> Any:
        asked.append(port)
        return messages.PushRejected()

    made, _ = shards(act)
    with pytest.raises(LeaseRevoked):
        made.exchange(connections.np.ones(4, dtype="float32"), sequence=1, versions=[0, 0], samples=4)
    assert asked == [0]


def test_other_shards_get_nothing_of_a_group_that_is_revoked_while_its_round_waits(shards: Any) -> None:
    asked, questions, enough = list[int](), list[messages.Message](), threading.Event()

    def act(port: int, message: Any) -> Any:
        if isinstance(message, messages.StandingQuery):
            questions.append(message)
            if len(questions) == 3:
                enough.set()
            return messages.Standing(False, True)
        asked.append(port)
        assert enough.wait(20)
        return messages.PushRejected()

    made, _ = shards(act)
    with pytest.raises(LeaseRevoked):
        made.exchange(connections.np.ones(4, dtype="float32"), sequence=1, versions=[0, 0], samples=4)
    assert asked == [0]


def test_no_heartbeat_follows_a_farewell(shards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    made, _ = shards(lambda port, message: said.append(type(message).__name__) or messages.Done())
    monkeypatch.setattr(made._heartbeats, "stop", lambda: said.append("stopped"))
    made.leave()
    assert said[:3] == ["stopped", "LeaveSyncer", "LeaveSyncer"]


def test_a_process_that_was_suspended_doubts_before_its_next_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, waits, doubts = Clock(), list[float](), list[bool]()

    class Asleep(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(clock.now)
            clock.now += 5.0 if len(waits) == 3 else 0.1
            return len(waits) > 4

    def send(self: GroupHeartbeats, index: int, channel: Any) -> Any:
        doubts.append(self.doubtful)
        self.doubtful = False
        return Line(None)

    monkeypatch.setattr(connections, "time", clock)
    monkeypatch.setattr(connections, "threading", SimpleNamespace(Event=Asleep, Thread=threading.Thread))
    monkeypatch.setattr(GroupHeartbeats, "_send", send)
    login = login_of(b"secret", Role.GROUP, "a")
    heartbeats = GroupHeartbeats([("h", 1)], login, group="a", cut_off=lambda index: None)
    heartbeats._threads[0].join(20)
    assert doubts == [True, False, True, False], "asleep before the third"


def test_other_shards_get_progress_while_the_round_of_the_first_waits(shards: Any) -> None:
    """The round of the first shard may wait for a group that waits at another shard for this one."""
    second = threading.Event()

    def act(port: int, message: Any) -> Any:
        if isinstance(message, messages.StandingQuery):
            return messages.Standing(True, message.sequence == 1)
        if port == 0:
            assert second.wait(20), "the second shard was never asked"
        second.set()
        return messages.Parameters(1, "none", 0.0, connections.pack_numbers(connections.np.ones(2, "float32"), "none"))

    made, _ = shards(act)
    theta, versions = made.exchange(connections.np.ones(4, dtype="float32"), sequence=1, versions=[0, 0], samples=4)
    assert (theta.tolist(), versions) == ([1.0] * 4, [1, 1])


def test_a_connection_that_is_dropped_while_it_is_looked_up_is_no_error(shards: Any) -> None:
    made, _ = shards(lambda port, message: messages.Facts(1, 0, 1, 0.0, 0))

    class Dropping(dict):  # type: ignore[type-arg]
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            self.pop(key, None)  # the heartbeats cut the shard off just now
            return found

    made._channels = Dropping({0: made._channel(0)})
    assert made.facts().version == 1
