"""Every sample counts once, whenever a shard is killed and whatever it had not yet synchronised is lost.

The shard is the real one, over a disk in memory that dies between any two of its operations. Groups repeat what was not
answered, die and begin anew, are declared failed while they live, and messages that they sent before arrive again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from paceline.errors import StoreError
from paceline.runtime.protocol import messages
from paceline.runtime.protocol.codec import ProtocolError
from paceline.runtime.syncer.journal import Disk, FileDisk, Journal, Part
from paceline.runtime.syncer.packing import pack_numbers
from paceline.runtime.syncer.rounds import Arrival, RoundPolicy, ShardState
from paceline.runtime.syncer.shard import SyncerShard
from tests.unit.runtime.syncer.answers import reply_of

SAMPLES, SIZE = 14, 4


class Killed(Exception):
    """The shard's process ended."""


class MemoryDisk:
    """Loses any blocks that were not synchronised when the power goes off, and keeps the others."""

    name = "memory"
    BLOCK = 64

    def __init__(self, chance: random.Random, *, synchronises: bool = True) -> None:
        self._chance, self._synchronises = chance, synchronises
        self.sides, self.kept, self.deadly = [b"", b""], [b"", b""], 0.0

    def read(self, side: int) -> bytes:
        return self.sides[side]

    def write(self, side: int, at: int, parts: Sequence[Part]) -> None:
        self._may_die()
        data, before = b"".join(parts), self.sides[side].ljust(at, b"\0")
        self.sides[side] = before[:at] + data + before[at + len(data) :]
        self._may_die()

    def synchronise(self, side: int) -> None:
        if self._synchronises:
            self.kept[side] = self.sides[side]
        self._may_die()

    def _may_die(self) -> None:
        if self._chance.random() < self.deadly:
            raise Killed

    def power_off(self) -> None:
        for side, (now, kept) in enumerate(zip(self.sides, self.kept, strict=True)):
            both = zip(self._blocks(now), self._blocks(kept.ljust(len(now), b"\0")), strict=True)
            self.kept[side] = self.sides[side] = b"".join(self._chance.choice(either) for either in both)

    def _blocks(self, content: bytes) -> list[bytes]:
        return [content[at : at + self.BLOCK] for at in range(0, len(content), self.BLOCK)]


class Counting(ShardState):
    """Adds progress up, so that the parameters say how often each sample was used."""

    def _update(self, arrivals: list[Arrival]) -> None:
        assert self.theta is not None
        for arrival in arrivals:
            self.theta = self.theta + arrival.progress
            self._applied[arrival.group] = arrival.sequence
        self.version += 1


class Group:
    """One group: what it would ask next."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self._chance = name, chance
        self.begin()

    def begin(self) -> None:
        self.session, self.sequence, self.lease, self.over = self._chance.getrandbits(60), 0, None, False
        self.stage = "start"

    def request(self) -> Any:
        if self.stage == "start":
            data = pack_numbers(np.zeros(SAMPLES, dtype=np.float32), "none")
            layout = (("theta", SAMPLES),)
            return messages.StartGroup(self.name, self.session, layout, SAMPLES, 1, (0, 0), None, None, data)
        if self.stage == "busy":
            return messages.Busy(self.name)
        if self.stage == "lease":
            return messages.LeaseRequest(self.name, self.session, self.sequence + 1, SIZE, None)
        assert self.lease is not None
        used = np.zeros(SAMPLES, dtype=np.float32)
        used[self.lease.begin : self.lease.end] = 1.0
        samples = self.lease.end - self.lease.begin
        data = pack_numbers(used, "none")
        wanted = self._chance.choice((0, SIZE))  # the next samples with the answer, or by a request of their own
        return messages.Push(self.name, self.session, self.sequence, 0, samples, "none", data, wanted)

    def answered(self, reply: Any) -> None:
        if isinstance(reply, messages.Parameters) and reply.lease is not None:
            reply = reply.lease
        if isinstance(reply, messages.PushRejected):
            self.stage = "busy"
        elif isinstance(reply, messages.LeaseReply):
            self.over = reply.lease is None and not reply.outstanding
            self.lease = reply.lease
            self.stage = "push" if reply.lease is not None else "lease"
            self.sequence += reply.lease is not None
        else:
            self.stage = "lease"


class Job:
    """Two groups and a shard that is killed."""

    def __init__(self, seed: int, *, synchronises: bool = True) -> None:
        self.chance = random.Random(seed)
        self.disk = MemoryDisk(self.chance, synchronises=synchronises)
        self.groups = [Group(name, self.chance) for name in "ab"]
        self.sent: list[Any] = []
        self.shard = self._started()

    def _started(self) -> SyncerShard:
        disk: Disk = self.disk
        state = Counting(RoundPolicy(groups=2))
        return SyncerShard(state, groups=2, heartbeat_timeout=10.0, journal=Journal(disk))

    def ask(self, message: Any) -> Any:
        try:
            return reply_of(self.shard, message)
        except Killed:
            self.kill()
        except ProtocolError:
            return None
        return None

    def kill(self) -> None:
        self.disk.power_off()
        self.shard = self._started()

    def turn(self) -> None:
        group, dice = self.chance.choice(self.groups), self.chance.random()
        if dice < 0.05:
            self.kill()
        elif dice < 0.10:
            group.begin()
        elif dice < 0.15 and group.name in self.shard._last_heard:
            self.declare_failed(group)
        elif dice < 0.25 and self.sent:
            self.ask(self.chance.choice(self.sent))
        elif not group.over:
            message = group.request()
            self.sent = [*self.sent[-6:], message]
            reply = self.ask(message)
            if reply is not None and self.chance.random() < 0.85:  # else the answer is lost, and the group asks again
                group.answered(reply)

    def declare_failed(self, group: Group) -> None:
        try:
            with self.shard._deciding():
                self.shard._declare_failed(group.name)
        except Killed:
            self.kill()

    def run(self) -> np.ndarray:
        """Through the faults, and then to the end without; how often each sample was used."""
        self.disk.deadly = 0.06
        for _ in range(self.chance.randint(5, 60)):
            self.turn()
        self.disk.deadly, self.sent = 0.0, []
        self.kill()
        for _ in range(200):
            for group in self.groups:
                if not group.over:
                    reply = self.ask(group.request())
                    if reply is None:
                        group.begin()
                    else:
                        group.answered(reply)
        theta = self.shard._shard.theta
        return theta if theta is not None else np.zeros(SAMPLES)


@pytest.mark.parametrize("begin", [0, pytest.param(150, marks=pytest.mark.full)])
def test_every_sample_counts_once_under_kills_at_any_moment(begin: int) -> None:
    for seed in range(begin, 150 if begin == 0 else 5000):
        used = Job(seed).run()
        assert used.tolist() == [1.0] * SAMPLES, f"seed {seed}: {used}"


def test_without_synchronising_samples_are_lost_or_counted_twice() -> None:
    wrong = 0
    for seed in range(20):
        try:
            wrong += Job(seed, synchronises=False).run().tolist() != [1.0] * SAMPLES
        except StoreError:  # a later record says that an earlier one was on disk
            wrong += 1
    assert wrong


def test_an_empty_journal_is_a_new_one(tmp_path: Any) -> None:
    (tmp_path / "journal").touch()
    assert Journal(FileDisk(tmp_path / "journal")).facts == {}


def started(shard: SyncerShard, group: str, layout: tuple[tuple[str, int], ...], numbers: int, samples: int = 9) -> Any:
    data = pack_numbers(np.zeros(numbers, dtype=np.float32), "none")
    return reply_of(shard, messages.StartGroup(group, hash(group), layout, samples, 1, (0, 0), None, None, data))


def test_a_group_with_another_model_or_other_data_is_refused_with_the_difference() -> None:
    shard = SyncerShard(ShardState(RoundPolicy(groups=2)), groups=2, heartbeat_timeout=9.0, journal=None)
    assert isinstance(started(shard, "a", (("w", 4), ("b", 2)), 6), messages.Parameters)
    wide = started(shard, "b", (("w", 5), ("b", 2)), 7)
    assert wide == messages.StartRefused(
        "its model has the parameter w of 5 numbers where the others have w of 4 numbers"
    )
    named = started(shard, "c", (("w", 4), ("bias", 2)), 6)
    assert "bias of 2 numbers where the others have b of 2" in named.why
    assert "10 samples" in started(shard, "d", (("w", 4), ("b", 2)), 6, samples=10).why
    assert isinstance(started(shard, "e", (("w", 4), ("b", 2)), 6), messages.Parameters)
