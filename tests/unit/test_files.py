"""A file or directory appears whole or not at all, and what a dead process left half-written is removed."""

from __future__ import annotations

import io
import os
import socket
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from paceline.files import atomic_directory, atomic_write, read_regular, remove_abandoned, write_output
from tests.power import Power, PowerCut


def test_text_bytes_and_what_a_function_writes(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for content in ("é", "é".encode(), lambda file: file.write("é".encode())):
        path.unlink(missing_ok=True)
        atomic_write(path, content)
        assert path.read_text(encoding="utf-8") == "é"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_could_not_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a"
    atomic_write(path, "before")

    def fail(file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        atomic_write(path, fail)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_that_is_replaced_is_kept_where_asked(tmp_path: Path) -> None:
    path, before = tmp_path / "a", tmp_path / "a.before"
    atomic_write(path, "1", previous=before)
    assert not before.exists()
    atomic_write(path, "2", previous=before)
    assert (path.read_text(), before.read_text()) == ("2", "1")


def test_a_replaced_file_keeps_its_permissions_and_a_long_name_is_none_too_many(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 120)
    atomic_write(path, "1")
    path.chmod(0o600)
    atomic_write(path, "2")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("2", 0o600)


def test_nothing_is_written_through_a_link_under_the_temporary_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: bytes(count))
    (tmp_path / "victim").write_text("mine")
    (tmp_path / f"a.tmp-{socket.gethostname()}-{os.getpid()}-{'00' * 6}").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        atomic_write(tmp_path / "a", "theirs")
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_device_is_not_replaced_by_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda *_: pytest.fail("the device is gone"))
    with pytest.raises(OSError, match="a device, expected a file"):
        atomic_write(Path("/dev/null"), "text")
    write_output(Path("/dev/null"), "text")


def test_an_output_goes_through_links_and_into_pipes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to("file")
    write_output(tmp_path / "link", "after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "after"
    ours, theirs = os.pipe()
    write_output(Path(f"/dev/fd/{theirs}"), b"text")
    assert os.read(ours, 99) == b"text"
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="No such device"):
        write_output(tmp_path / "fifo", "nobody reads")
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("newer_names", [True, False])
@pytest.mark.parametrize("operations", [0, 1, 2, 3, None])
def test_the_new_file_or_the_one_before_is_whole_whenever_the_power_goes_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operations: int | None, newer_names: bool
) -> None:
    path, before = tmp_path / "a", tmp_path / "a.before"
    power = Power(tmp_path, monkeypatch)
    for text in ("first", "second"):
        atomic_write(path, text, previous=before)
    power.left = operations
    with nullcontext() if operations is None else pytest.raises(PowerCut):
        atomic_write(path, "third", previous=before)
    power.off(newer_names=newer_names)
    left = [file.read_text() for file in (path, before) if file.exists()]
    possible = [["third", "second"]] if operations is None else [["second", "first"], ["second"], ["third", "second"]]
    assert left in possible


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_synchronised_before_its_name_appears(tmp_path: Path, monkeypatch, durable: bool) -> None:
    path = tmp_path / "a"
    seen = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: seen.append((os.readlink(f"/proc/self/fd/{handle}"), path.exists()))
    )
    atomic_write(path, "x", durable=durable)
    assert [there for _, there in seen] == ([False, True] if durable else [])
    assert path.read_text() == "x"


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "run"
    with atomic_directory(target) as folder:
        (folder / "a").write_text("1")
        assert not target.exists()
    assert [path.name for path in target.iterdir()] == ["a"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_directory_that_failed_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        with atomic_directory(tmp_path / "run") as folder:
            (folder / "a").write_text("1")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_the_first_of_two_directories_is_kept(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with atomic_directory(tmp_path / "run") as folder:
            (folder / "a").write_text(text)
    assert (tmp_path / "run" / "a").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_only_what_dead_processes_of_this_host_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = socket.gethostname()
    kept = [f"run.tmp-{host}-{os.getpid()}-x", f"run.tmp-other-{dead.pid}-x", "something"]
    for name in (f"run.tmp-{host}-{dead.pid}-x", f"{host}-{dead.pid}-x", *kept):
        (tmp_path / name).mkdir()
    (tmp_path / f"file.tmp-{host}-{dead.pid}-0").write_text("half")
    assert remove_abandoned(tmp_path) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


@pytest.mark.parametrize("number", ["\u00b2", "9" * 20, "4294967296", "0", ""])
def test_a_name_with_what_is_no_number_of_a_process_is_left_alone(tmp_path: Path, number: str) -> None:
    (tmp_path / f"run.tmp-{socket.gethostname()}-{number}-x").touch()
    assert remove_abandoned(tmp_path) == 0


def test_what_a_living_process_of_somebody_else_writes_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(process: int, number: int) -> None:
        raise PermissionError

    (tmp_path / f"run.tmp-{socket.gethostname()}-7-x").mkdir()
    monkeypatch.setattr(os, "kill", kill)
    assert remove_abandoned(tmp_path) == 0


@pytest.mark.parametrize("durable", [True, False])
def test_a_directory_is_synchronised_with_all_that_it_holds_before_its_name_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    seen: list[tuple[str, bool]] = []
    target = tmp_path / "run"
    monkeypatch.setattr(
        os, "fsync", lambda handle: seen.append((Path(os.readlink(f"/proc/self/fd/{handle}")).name, target.exists()))
    )
    with atomic_directory(target, durable=durable) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "a").write_text("a")
        (folder / "b").write_text("b")
    assert sorted(seen[:-1]) == (
        [("a", False), ("b", False), ("inner", False), (folder.name, False)] if durable else []
    )
    assert seen[-1:] == ([(tmp_path.name, True)] if durable else [])


@pytest.mark.parametrize("tail", [None, 10])
def test_an_error_while_reading_names_the_file(tail: int | None) -> None:
    with pytest.raises(OSError, match="/proc/self/mem"):
        read_regular(Path("/proc/self/mem"), tail=tail)


def test_what_would_be_waited_for_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "messages"
    path.touch()

    class Silent(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes | None:  # type: ignore[override]
            return None

    monkeypatch.setattr(os, "fdopen", lambda handle, mode: os.close(handle) or Silent())
    monkeypatch.setattr(os, "fstat", lambda handle: path.stat())
    with pytest.raises(BlockingIOError, match="messages"):
        read_regular(path)


def test_what_replaces_a_link_is_not_open_to_everybody(tmp_path: Path) -> None:
    """A link has all permissions, which say nothing about the file."""
    (tmp_path / "target").write_text("kept")
    (tmp_path / "link").symlink_to("target")
    before = os.umask(0o022)
    try:
        atomic_write(tmp_path / "link", "new")
    finally:
        os.umask(before)
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "target").read_text() == "kept"
