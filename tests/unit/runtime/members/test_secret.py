"""Where the secret of a job comes from, and where it does not."""

from __future__ import annotations

import hmac
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.errors import InputError
from paceline.runtime.members.secret import _start_of, given_secret, local_secret, seal_endpoint, unseal_endpoint

SECRET = "0123456789abcdef"
ONE_HOST = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", "MASTER_PORT": "29500"}


@pytest.fixture
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / f"paceline-{os.getuid()}"


def test_from_the_environment_or_a_file_of_the_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    assert given_secret({"PACELINE_SECRET": SECRET}) == SECRET.encode()
    assert given_secret({"PACELINE_SECRET_FILE": str(path)}) == SECRET.encode()
    assert given_secret({}) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(mode)
    with pytest.raises(InputError, match="others can read"):
        given_secret({"PACELINE_SECRET_FILE": str(path)})


def test_links_fifos_and_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name in ("link", "fifo", "nothing"):
        with pytest.raises(InputError):
            given_secret({"PACELINE_SECRET_FILE": str(tmp_path / name)})


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(InputError, match="15 characters, at least 16"):
        given_secret({"PACELINE_SECRET": SECRET[:-1]})


def test_torchrun_on_several_hosts_is_refused_with_the_line_to_type(runtime_folder: Path) -> None:
    """Finding 4: nothing is derived from torchrun's store."""
    with pytest.raises(InputError, match="several hosts") as refusal:
        local_secret({**ONE_HOST, "LOCAL_WORLD_SIZE": "1"})
    assert "export PACELINE_SECRET=$(python3 -c" in str(refusal.value.hint)
    assert not runtime_folder.exists()


def test_ranks_of_one_agent_share_a_secret_that_only_their_user_can_read(runtime_folder: Path) -> None:
    program = (
        "import sys; from paceline.runtime.members.secret import local_secret; "
        f"print(local_secret({ONE_HOST!r}).decode())"
    )
    ranks = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(4)]
    found = {rank.communicate(timeout=60)[0] for rank in ranks}
    assert len(found) == 1
    assert len(found.pop().strip()) == 64
    (path,) = runtime_folder.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(runtime_folder.stat().st_mode) == 0o700
    again = local_secret({**ONE_HOST, "TORCHELASTIC_RESTART_COUNT": "1"})
    assert again.decode() != path.read_text(), "a restarted job has another one"


def test_the_draft_of_a_rank_that_was_killed_is_in_nobodys_way(runtime_folder: Path) -> None:
    first = local_secret(ONE_HOST)
    (path,) = runtime_folder.iterdir()
    path.rename(path.with_name(f"{path.name}.{os.getpid()}"))
    assert local_secret(ONE_HOST) != first, "numbers of processes come again, as in containers with one folder"


@pytest.mark.parametrize("mode", [0o777, 0o710, 0o701, 0o770])
def test_a_folder_that_others_can_use_is_refused(runtime_folder: Path, mode: int) -> None:
    runtime_folder.mkdir()
    runtime_folder.chmod(mode)
    with pytest.raises(InputError, match="this user alone"):
        local_secret(ONE_HOST)


def test_a_runtime_folder_that_is_not_there_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    with pytest.raises(InputError, match="no folder for the secret"):
        local_secret(ONE_HOST)


def test_an_endpoint_is_believed_only_with_a_proof() -> None:
    sealed = seal_endpoint(b"secret", "job 1", "10.0.0.1:4000")
    assert unseal_endpoint(b"secret", "job 1", sealed) == "10.0.0.1:4000"
    forged = sealed.replace("10.0.0.1", "10.0.0.9")
    for secret, session, text in (
        (b"other", "job 1", sealed),
        (b"secret", "job 2", sealed),
        (b"secret", "job 1", forged),
        (b"secret", "job 1", "10.0.0.1:4000"),
        (b"secret", "job 1", "\ud800 \ud800"),
    ):
        assert unseal_endpoint(secret, session, text) is None


def test_the_proof_of_an_endpoint_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(b)) or compare(a, b))
    assert unseal_endpoint(b"secret", "job", seal_endpoint(b"secret", "job", "10.0.0.1:4000")) == "10.0.0.1:4000"
    assert compared == [64]


def test_a_secret_may_hold_bytes_that_are_no_text() -> None:
    assert given_secret({"PACELINE_SECRET": "\udcff" * 16}) == b"\xff" * 16


def test_an_agent_with_the_number_of_an_earlier_one_has_another_secret(
    runtime_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the agent is often process 1 again, and the folder is that of the host."""
    first = local_secret(ONE_HOST)
    assert local_secret(ONE_HOST) == first
    monkeypatch.setattr("paceline.runtime.members.secret._start_of", lambda process: "12345")
    assert local_secret(ONE_HOST) != first
    assert _start_of(os.getpid()) == Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]


def test_only_rank_zero_removes_the_secret_when_it_ends(runtime_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may still read it: they begin later."""
    at_exit = []
    monkeypatch.setattr("paceline.runtime.members.secret.atexit.register", lambda *given, **_: at_exit.append(given))
    local_secret({**ONE_HOST, "RANK": "1"})
    assert at_exit == []
    local_secret({**ONE_HOST, "RANK": "0"})
    assert len(at_exit) == 1


def test_ranks_of_several_hosts_are_not_those_of_one(runtime_folder: Path) -> None:
    for local, world in (("2", "4"), ("4", "8"), ("8", "2")):
        with pytest.raises(InputError, match="several hosts"):
            local_secret({**ONE_HOST, "LOCAL_WORLD_SIZE": local, "WORLD_SIZE": world})


@pytest.mark.parametrize(("length", "taken"), [(15, False), (16, True)])
def test_a_secret_is_long_enough_not_to_be_guessed(length: int, taken: bool) -> None:
    env = {"PACELINE_SECRET": "x" * length}
    if taken:
        assert given_secret(env) == b"x" * length
    else:
        with pytest.raises(InputError, match="has 15 characters, at least 16"):
            given_secret(env)


def test_an_endpoint_is_sealed_for_one_session_with_one_secret() -> None:
    sealed = seal_endpoint(b"s" * 16, "job", "10.0.0.1:4000")
    assert unseal_endpoint(b"s" * 16, "job", sealed) == "10.0.0.1:4000"
    assert unseal_endpoint(b"s" * 16, "another job", sealed) is None
    assert unseal_endpoint(b"t" * 16, "job", sealed) is None
    assert unseal_endpoint(b"s" * 16, "job", sealed.replace("4000", "4001")) is None


def test_a_link_is_no_file_of_the_user_alone(tmp_path: Path) -> None:
    """Whoever may write the folder could let it lead to another secret."""
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InputError, match="cannot be read"):
        given_secret({"PACELINE_SECRET_FILE": str(tmp_path / "link")})


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if nobody else can read it: its owner can, and can change it."""
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    of_another = os.stat_result((0o100600, 1, 1, 1, 4711, 0, 16, 0, 0, 0))
    monkeypatch.setattr("paceline.runtime.members.secret.os.fstat", lambda descriptor: of_another)
    with pytest.raises(InputError, match="others can read or change it"):
        given_secret({"PACELINE_SECRET_FILE": str(path)})


def test_a_proof_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the time of a refusal tells how many characters of a guess are right."""
    compared = []
    kept = hmac.compare_digest
    monkeypatch.setattr(
        "paceline.runtime.members.secret.hmac.compare_digest",
        lambda given, right: compared.append((len(given), len(right))) or kept(given, right),
    )
    sealed = seal_endpoint(b"s" * 16, "job", "10.0.0.1:4000")
    assert unseal_endpoint(b"s" * 16, "job", sealed) == "10.0.0.1:4000"
    assert unseal_endpoint(b"s" * 16, "job", "10.0.0.1:4000 x") is None
    assert compared == [(64, 64), (1, 64)]
