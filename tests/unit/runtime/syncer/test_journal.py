"""What a shard has answered is still there when the power goes off, on a real file."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from paceline.runtime.protocol import messages
from paceline.runtime.syncer.journal import FileDisk, Journal
from paceline.runtime.syncer.packing import pack_numbers
from paceline.runtime.syncer.rounds import RoundPolicy, ShardState
from paceline.runtime.syncer.shard import SyncerShard
from tests.power import Power

BOTH = pytest.mark.parametrize("newer_names", [True, False])


@BOTH
def test_every_record_is_on_disk_when_append_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_names: bool
) -> None:
    power, path = Power(tmp_path, monkeypatch), tmp_path / "journal"
    journal = Journal(FileDisk(path))
    for number in range(3):
        journal.append({"n": number}, {"x": np.full(4, number)})
    power.off(newer_names=newer_names)
    again = Journal(FileDisk(path))
    assert (again.facts, again.arrays["x"].tolist()) == ({"n": 2}, [2] * 4)


@BOTH
def test_a_journal_that_is_written_anew_is_on_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_names: bool
) -> None:
    power, path = Power(tmp_path, monkeypatch), tmp_path / "journal"
    monkeypatch.setattr("paceline.runtime.syncer.journal.MANY_BYTES", 1 << 20)
    journal = Journal(FileDisk(path))
    for number in range(20):
        journal.append({"n": number}, {"x": np.full(20_000, number, dtype=np.float32)})
    assert path.stat().st_size < 1_000_000, "written anew"
    power.off(newer_names=newer_names)
    assert Journal(FileDisk(path)).facts == {"n": 19}


def started(folder: Path, samples: int) -> tuple[SyncerShard, bytes]:
    """A shard of three parameters at 0 whose group has a lease of some samples, and progress by 1."""
    shard = served(folder)
    data = pack_numbers(np.zeros(3, dtype=np.float32), "none")
    shard._reply(messages.StartGroup("a", 1, (("theta", 3),), 9, 1, (0, 0), None, None, data))
    lease = shard._reply(messages.LeaseRequest("a", 1, 1, samples, None)).lease
    assert lease.end - lease.begin == samples
    return shard, pack_numbers(np.ones(3, dtype=np.float32), "none")


@BOTH
def test_progress_that_was_acknowledged_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_names: bool
) -> None:
    power = Power(tmp_path, monkeypatch)
    shard, used = started(tmp_path, 9)
    shard._reply(messages.Push("a", 1, 1, 0, 9, "none", used))
    power.off(newer_names=newer_names)
    theta = served(tmp_path)._shard.theta
    assert theta is not None
    assert theta.tolist() == [-1.0, -1.0, -1.0], "what moved by 1 has been applied once"


@BOTH
def test_progress_and_the_next_samples_are_on_disk_before_their_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_names: bool
) -> None:
    power = Power(tmp_path, monkeypatch)
    shard, used = started(tmp_path, 5)
    push, synchronised = messages.Push("a", 1, 1, 0, 5, "none", used, wanted=4), []
    disk = shard._journal._disk
    monkeypatch.setattr(disk, "synchronise", lambda plain=disk.synchronise: synchronised.append(plain()))
    granted = shard._reply(push).lease
    assert (granted.lease.begin, granted.lease.end, len(synchronised)) == (5, 9, 1)
    power.off(newer_names=newer_names)
    again = served(tmp_path)
    assert again._shard.theta.tolist() == [-1.0, -1.0, -1.0]
    assert again._reply(push).lease.lease == granted.lease, "asked again, it is the same lease"
    assert again._shard.theta.tolist() == [-1.0, -1.0, -1.0], "and the progress counts once"


class SlowDisk:
    """Synchronises when it is told to, and counts."""

    name = "slow"

    def __init__(self, content: bytes = b"") -> None:
        self.content, self.count = content, 0
        self.begun, self.may_end = threading.Event(), threading.Event()

    def read(self) -> bytes:
        return self.content

    def append(self, data: bytes) -> None:
        self.content += data

    def synchronise(self) -> None:
        self.begun.set()
        self.may_end.wait()
        self.count += 1

    def replace(self, data: bytes) -> None:
        self.content = data


def test_threads_that_wait_together_share_one_synchronisation() -> None:
    disk = SlowDisk()
    journal = Journal(disk)
    threads = [threading.Thread(target=journal.append, args=({"n": 0},))]
    threads[0].start()
    disk.begun.wait()
    for number in range(1, 6):  # written while the disk is busy: on disk only with the next synchronisation
        journal.write({"n": number})
        threads.append(threading.Thread(target=journal.synchronise))
        threads[-1].start()
    disk.may_end.set()
    for thread in threads:
        thread.join()
    assert disk.count == 2
    journal.synchronise()
    assert disk.count == 2, "everything is on disk"


def test_what_an_earlier_process_wrote_is_synchronised_before_it_is_answered() -> None:
    first, second = SlowDisk(), SlowDisk()
    first.may_end.set()
    Journal(first).append({"n": 1})
    second.content = first.content
    second.may_end.set()
    Journal(second).synchronise()
    assert second.count == 1


def served(folder: Path) -> SyncerShard:
    state = ShardState(RoundPolicy(groups=1))
    return SyncerShard(state, groups=1, heartbeat_timeout=10.0, journal=Journal(FileDisk(folder / "journal")))
