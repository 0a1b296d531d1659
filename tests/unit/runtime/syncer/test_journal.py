"""What a shard has answered is still there when the power goes off, on a real file."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from paceline.channel.frames import accept_connection, call_connected
from paceline.errors import StoreError
from paceline.runtime.members.channel import Channel, login_of
from paceline.runtime.protocol import messages
from paceline.runtime.syncer.journal import MARK, FileDisk, Journal, Part
from paceline.runtime.syncer.packing import pack_numbers
from paceline.runtime.syncer.rounds import RoundPolicy, ShardState
from paceline.runtime.syncer.shard import SyncerShard
from tests.power import Power
from tests.unit.runtime.syncer.answers import reply_of

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


def written(path: Path, count: int, numbers: int = 20_000) -> Journal:
    """A journal with records of these parameters."""
    journal = Journal(FileDisk(path))
    for number in range(count):
        journal.append(
            {"n": number, f"k{number % 3}": number}, {"x": np.full(numbers, number, dtype=np.float32), "e": np.zeros(0)}
        )
    return journal


@BOTH
@pytest.mark.parametrize("count", [14, 15, 16, 40])
def test_when_old_records_fill_a_file_the_other_is_written_over_and_on_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_names: bool, count: int
) -> None:
    power, path = Power(tmp_path, monkeypatch), tmp_path / "journal"
    written(path, count)
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) == 1 + (count > 14), "14 records of 80 kB and more are a MiB, and one behind its end"
    assert max(sizes) < 1_300_000
    power.off(newer_names=newer_names)
    again = Journal(FileDisk(path))
    assert again.facts == {"n": count - 1, **{f"k{i}": max(range(i, count, 3)) for i in range(3)}}
    assert (again.arrays["x"].tolist()[::19_999], again.arrays["e"].size) == ([count - 1] * 2, 0)


def test_files_that_have_reached_their_size_grow_no_more(tmp_path: Path) -> None:
    journal = written(tmp_path / "journal", 40)
    sizes = [file.stat().st_size for file in tmp_path.iterdir()]
    for number in range(200):
        journal.write({"n": 10**15 + number}, {"x": np.zeros(20_000, dtype=np.float32)})
    assert [file.stat().st_size for file in tmp_path.iterdir()] == sizes


def records(disk: MemoryDisk, side: int) -> list[int]:
    """Where records begin."""
    content, places = disk.read(side), [0]
    while (at := content.find(MARK, places[-1] + 1)) >= 0:
        places.append(at)
    return places


class MemoryDisk:
    """Files in memory, which a test may damage."""

    name = "memory"

    def __init__(self, *contents: bytes) -> None:
        self.contents, self.count = list(contents or (b"", b"")), 0

    def read(self, side: int) -> bytes:
        return self.contents[side]

    def write(self, side: int, at: int, parts: Sequence[Part]) -> None:
        data, before = b"".join(parts), self.contents[side].ljust(at, b"\0")
        self.contents[side] = before[:at] + data + before[at + len(data) :]

    def synchronise(self, side: int) -> None:
        self.count += 1

    def but(self, side: int, at: int, new: bytes) -> MemoryDisk:
        """The same with other bytes in one place."""
        changed = MemoryDisk(*self.contents)
        changed.write(side, at, [new])
        return changed


@pytest.mark.parametrize("at", [0, 3, 10, 20, 30, 44, 60])
def test_damage_to_a_record_that_was_on_disk_is_one_clear_error(at: int) -> None:
    disk = MemoryDisk()
    journal = Journal(disk)
    for number in range(3):
        journal.append({"n": number})
    side = disk.contents.index(max(disk.contents))
    for index, place in enumerate(records(disk, side)[:2]):
        byte = bytes([disk.contents[side][place + at] ^ 0x41])
        with pytest.raises(StoreError, match=rf"memory(-other)? is damaged at byte {place}"):
            Journal(disk.but(side, place + at, byte))
        assert index < 2


@pytest.mark.parametrize("at", [0, 3, 10, 20, 30, 44, 60])
def test_a_record_that_was_not_on_disk_is_dropped_with_those_behind_it(
    at: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = MemoryDisk()
    journal = Journal(disk)
    journal.append({"n": 0})
    for number in (
        1,
        2,
        3,
    ):  # written, but the power is cut before they are on disk, and the first of them is not whole
        journal.write({"n": number})
    side = disk.contents.index(max(disk.contents))
    place = records(disk, side)[1] + at
    torn = disk.but(side, place, bytes([disk.contents[side][place] ^ 0x41]))
    again = Journal(torn)
    assert again.facts == {"n": 0}
    assert "cut off" in caplog.text
    again.append({"m": 1})
    # What was dropped must not come back behind records of the same length.
    for facts in ({"n": 7}, {"n": 8}):
        again.append(facts)
        assert Journal(torn).facts == {"m": 1, **facts}


def test_a_generation_whose_first_record_is_not_whole_was_never_answered() -> None:
    disk = MemoryDisk()
    Journal(disk).append({"n": 1})
    second = Journal(disk)
    second.write({"n": 2})
    second.write({"n": 3})
    side = second._side
    torn = disk.but(side, 50, b"?")
    assert Journal(torn).facts == {"n": 1}
    third = Journal(torn)
    third.append({"n": 9})
    assert Journal(torn).facts == {"n": 9}, "and what was left of that generation is not taken for a part of the next"
    second.synchronise()
    second.write({"n": 4})
    with pytest.raises(StoreError, match="is damaged at byte 0"):
        Journal(disk.but(side, 50, b"?"))


def test_a_file_is_not_written_over_before_the_other_is_on_disk() -> None:
    disk = MemoryDisk()
    Journal(disk).append({"n": 1})
    second = Journal(disk)
    assert disk.count == 1
    second.write({"n": 2})
    assert disk.count == 2, "the generation before, which an earlier process may not have synchronised"
    second._size = None
    second.write({"n": 3})
    assert disk.count == 3


def started(folder: Path, samples: int) -> tuple[SyncerShard, bytes]:
    """A shard of three parameters at 0 whose group has a lease of some samples, and progress by 1."""
    shard = served(folder)
    data = pack_numbers(np.zeros(3, dtype=np.float32), "none")
    reply_of(shard, messages.StartGroup("a", 1, (("theta", 3),), 9, 1, (0, 0), None, None, data))
    lease = reply_of(shard, messages.LeaseRequest("a", 1, 1, samples, None)).lease
    assert lease.end - lease.begin == samples
    return shard, pack_numbers(np.ones(3, dtype=np.float32), "none")


@BOTH
def test_progress_that_was_acknowledged_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, newer_names: bool
) -> None:
    power = Power(tmp_path, monkeypatch)
    shard, used = started(tmp_path, 9)
    reply_of(shard, messages.Push("a", 1, 1, 0, 9, "none", used))
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
    monkeypatch.setattr(disk, "synchronise", lambda side, plain=disk.synchronise: synchronised.append(plain(side)))
    granted = reply_of(shard, push).lease
    assert (granted.lease.begin, granted.lease.end, len(synchronised)) == (5, 9, 1)
    power.off(newer_names=newer_names)
    again = served(tmp_path)
    assert again._shard.theta.tolist() == [-1.0, -1.0, -1.0]
    assert reply_of(again, push).lease.lease == granted.lease, "asked again, it is the same lease"
    assert again._shard.theta.tolist() == [-1.0, -1.0, -1.0], "and the progress counts once"


class SlowDisk(MemoryDisk):
    """Synchronises when it is told to, and counts."""

    def __init__(self, *contents: bytes) -> None:
        super().__init__(*contents)
        self.begun, self.may_end = threading.Event(), threading.Event()

    def synchronise(self, side: int) -> None:
        self.begun.set()
        self.may_end.wait()
        super().synchronise(side)


def test_threads_that_wait_together_share_one_synchronisation() -> None:
    disk = SlowDisk()
    journal = Journal(disk)
    threads = [threading.Thread(target=journal.append, args=({"n": 0},))]
    threads[0].start()
    assert disk.begun.wait(20), "the disk was not asked"
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


@pytest.mark.parametrize("numbers", [3, 40_000])
def test_a_group_is_not_told_before_the_disk_has_what_it_is_told(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    monkeypatch.setattr("paceline.channel.frames._allowed", lambda size: 0.2)
    disk, ends = SlowDisk(), socket.socketpair()
    shard = SyncerShard(ShardState(RoundPolicy(groups=1)), groups=1, heartbeat_timeout=10.0, journal=Journal(disk))
    login = (login_of(b"secret", messages.Role.GROUP, "a"), login_of(b"secret", messages.Role.SHARD, "shard"))

    def serve() -> None:
        with contextlib.suppress(ConnectionError):
            shard._serve_caller(Channel(accept_connection(ends[1], login[1], ("group",))))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    group = Channel(call_connected(ends[0], login[0], listener="shard", timeout=5))
    group.set_timeout(0.2)
    data = pack_numbers(np.zeros(numbers, dtype=np.float32), "none")
    group.send(messages.StartGroup("a", 1, (("theta", numbers),), 9, 1, (0, 0), None, None, data))
    assert disk.begun.wait(20), "the answer did not wait for the disk"
    with pytest.raises(ConnectionError, match="sent nothing, or too little"):
        group.receive(messages.Parameters)
    group.close()
    disk.may_end.set()
    thread.join()


def test_what_an_earlier_process_wrote_is_synchronised_before_it_is_answered() -> None:
    first = MemoryDisk()
    Journal(first).append({"n": 1})
    second = MemoryDisk(*first.contents)
    Journal(second).synchronise()
    assert second.count == 1


def served(folder: Path) -> SyncerShard:
    state = ShardState(RoundPolicy(groups=1))
    return SyncerShard(state, groups=1, heartbeat_timeout=10.0, journal=Journal(FileDisk(folder / "journal")))


@pytest.mark.parametrize("kind", ["FIFO", "folder", "link", "link to nowhere"])
def test_what_is_no_file_in_place_of_a_journal_is_one_error_at_once(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "shard-0.journal", tmp_path / "other"
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        other.write_bytes(b"") if kind == "link" else None
        path.symlink_to(other)
    with pytest.raises(StoreError, match=r"shard-0\.journal cannot be read"):
        Journal(FileDisk(path))
    assert other.exists() == (kind == "link")


def test_a_journal_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"mine")
    (tmp_path / "journal-other").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        FileDisk(tmp_path / "journal").write(1, 0, [b"record"])
    assert (tmp_path / "elsewhere").read_bytes() == b"mine"


class Huge(np.ndarray):
    """Numbers that say they are more than any memory holds."""

    shape = (10**30,)


def test_a_record_of_more_numbers_than_there_can_be_is_one_clear_error(tmp_path: Path) -> None:
    Journal(FileDisk(tmp_path / "journal")).append({}, {"x": np.zeros(4).view(Huge)})
    with pytest.raises(StoreError, match="cannot be read at byte"):
        Journal(FileDisk(tmp_path / "journal"))


def test_a_record_of_tables_in_tables_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(FileDisk(tmp_path / "journal"))
    monkeypatch.setattr(json, "dumps", lambda _: "[" * 100_000)
    journal.append({}, {})
    with pytest.raises(StoreError, match="cannot be read at byte"):
        Journal(FileDisk(tmp_path / "journal"))


def test_only_the_user_of_the_job_reads_its_journal(tmp_path: Path) -> None:
    """It holds the parameters."""
    before = os.umask(0)
    try:
        disk = FileDisk(tmp_path / "journal")
        for side in (0, 1):
            disk.write(side, 0, [b"x"])
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    (tmp_path / "other").symlink_to(tmp_path / "journal")
    with pytest.raises(OSError, match="symbolic links"):
        FileDisk(tmp_path / "other").write(0, 0, [b"x"])


def test_files_are_closed_with_their_disk(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "journal")
    for side in (0, 1):
        disk.write(side, 0, [b"x"])
    handles = list(disk._handles.values())
    del disk
    for handle in handles:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)
