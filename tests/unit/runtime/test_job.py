"""What becomes of the processes of a job, whom a lost peer's port declares dead, and what a script lacks."""

from __future__ import annotations

import os
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.bench.sites.site import Process
from paceline.errors import InputError
from paceline.runtime.job import following
from paceline.runtime.job.following import JobResult, _comes_back, _ending, _Tail
from paceline.runtime.job.interpreter import _imports, check_imports, find_interpreter
from paceline.runtime.members import peers
from paceline.runtime.members.channel import Channel, login_of, message_listener
from paceline.runtime.members.peers import answers, is_dead
from paceline.runtime.members.view import Peer
from paceline.runtime.protocol.messages import Role
from paceline.runtime.syncer.journal import DAMAGED

RANK = Process("rank 0", 0, (), {}, Path("log"), rank=0)
SHARD = replace(RANK, name="shard 0", rank=None)


@pytest.mark.parametrize(
    ("codes", "ok"),
    [((0, 0), True), ((0, -9), True), ((-9, -9), False), ((0, 1), False), ((0,), True), ((), False)],
)
def test_a_job_is_well_where_one_rank_finished_and_none_failed(codes: tuple[int, ...], ok: bool) -> None:
    assert JobResult({str(place): code for place, code in enumerate(codes)}, 0).ok is ok


@pytest.mark.parametrize(
    ("process", "code", "allowed", "back"),
    [
        (RANK, -9, True, True), (RANK, -9, False, False), (RANK, 1, True, False), (RANK, 0, True, False),
        (RANK, None, True, False), (SHARD, 1, True, True), (SHARD, 0, True, True), (SHARD, -9, True, True),
        (SHARD, DAMAGED, True, False), (SHARD, 1, False, False), (SHARD, None, True, False),
    ],
)  # fmt: skip
def test_killed_ranks_and_shards_whose_journal_is_sound_come_back(
    process: Process, code: int | None, allowed: bool, back: bool
) -> None:
    assert _comes_back(process, code, allowed) is back


@pytest.mark.parametrize(
    ("process", "code", "training", "words"),
    [
        (RANK, -9, True, "was killed by SIGKILL; training continues without it"),
        (RANK, -9, False, "was killed by SIGKILL"),
        (RANK, 3, True, "failed with exit code 3; training continues without it"),
        (SHARD, 3, True, "failed with exit code 3"),
        (SHARD, -200, True, "was killed by signal 200"),
    ],
)  # fmt: skip
def test_the_end_of_a_process_has_words(process: Process, code: int, training: bool, words: str) -> None:
    assert _ending(process, code, training=training) == words


def test_lines_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = _Tail(path)
    assert tail.lines() == []
    path.write_text("a\nb")
    assert tail.lines() == ["a"]
    with path.open("a") as file:
        file.write("c\n\nd\n")
    assert tail.lines() == ["bc", "", "d"]
    assert tail.lines() == []


def test_a_line_without_an_end_is_read_once_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    tail = _Tail(path)
    path.write_bytes(b"epoch 1\r\n 10 %\r 20 %")
    assert tail.lines() == ["epoch 1", " 10 %"], "a progress bar begins its line anew"
    path.write_bytes(b"-" * path.stat().st_size)
    assert tail.lines() == [], "what was read is not read again"
    assert tail.lines(last=True) == [" 20 %"]
    assert tail.lines(last=True) == []
    monkeypatch.setattr(following, "LONGEST_LINE", 10)
    with path.open("ab") as file:
        file.write(b"x" * 11)
    assert tail.lines() == ["x" * 11]


def test_a_script_that_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    check_imports(tmp_path / "train.py", Path(sys.executable))


def test_a_script_that_imports_what_is_not_there_is_refused_before_it_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    (tmp_path / "beside.py").touch()
    script.write_text(
        "import os, yaml_of_nobody.part as y\nimport beside, paceline\nfrom sklearn_of_nobody import x\n"
        "from . import here\ndef late():\n    import only_if_called\n"
    )
    assert _imports(script) == {"os", "yaml_of_nobody", "beside", "paceline", "sklearn_of_nobody"}
    with pytest.raises(InputError, match="imports sklearn_of_nobody, yaml_of_nobody, which") as caught:
        check_imports(script, Path(sys.executable))
    assert "-m pip install sklearn_of_nobody yaml_of_nobody;" in str(caught.value.hint)
    script.write_text("import beside, json\n")
    check_imports(script, Path(sys.executable))
    script.write_text("import (\n")
    assert _imports(script) == _imports(tmp_path / "nowhere.py") == set()


def test_an_interpreter_is_named_once_and_can_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="both name an interpreter"):
        find_interpreter(Path(sys.executable), "pytorch", print)
    with pytest.raises(InputError, match="is not an interpreter"):
        find_interpreter(tmp_path / "python", None, print)
    assert find_interpreter(Path(sys.executable), None, print).python == Path(sys.executable)


def test_only_a_port_that_refuses_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REACH_TIMEOUT", "ANSWERS_TIMEOUT"):
        monkeypatch.setattr(peers, name, 0.1)
    login = login_of(b"secret", Role.MEMBER, "asks")
    with socket.create_server(("127.0.0.1", 0)) as server:
        address, port = server.getsockname()
        peer = Peer("x", 1, address, port)
        assert not is_dead(peer, login), "it accepts and says nothing: it may be suspended"
        assert not answers((address, port), login)
    assert is_dead(peer, login)
    assert not answers((address, port), login)


def test_a_peer_is_dead_when_another_has_its_port() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    listener = message_listener(
        server, login_of(b"secret", Role.MEMBER, "rank0-new"), Channel.close, caller=Role.MEMBER
    )
    threading.Thread(target=listener.run, daemon=True).start()
    try:
        login, place = login_of(b"secret", Role.MEMBER, "asks"), server.getsockname()
        assert is_dead(Peer("rank0-old", 0, *place), login)
        assert not is_dead(Peer("rank0-new", 0, *place), login)
        assert not is_dead(Peer("rank0-old", 0, *place), login_of(b"other", Role.MEMBER, "asks")), "nothing is proven"
    finally:
        listener.close()
