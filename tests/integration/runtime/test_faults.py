"""Members die, hang, wake up and come back: training goes on, every sample of an epoch is used exactly once."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.runtime.conftest import Ranks, StartRanks

pytestmark = pytest.mark.alone

EPOCHS, SAMPLES, BATCH = 12, 120, 30
STEPS = EPOCHS * SAMPLES // BATCH
OPTIONS: dict[str, Any] = {"epochs": EPOCHS, "samples": SAMPLES, "batch": BATCH, "per_sample": 0.006}


def until(job: Ranks, rank: int, step: int, timeout: float = 60.0) -> None:
    """Wait until a rank has committed so many steps."""
    deadline = time.monotonic() + timeout
    while not any(record["step"] >= step for record in job.steps(rank)):
        assert time.monotonic() < deadline, f"rank {rank} did not reach step {step}:\n{job.log(rank)}"
        assert job.processes[rank].poll() is None, job.log(rank)
        time.sleep(0.02)


def check_accounting(job: Ranks, survivor: int, others: list[int], *, lost_shares: int) -> None:
    """Steps of the survivor have no gap; nobody's committed samples overlap; only shares of the dead are unrecorded."""
    mine = {record["step"]: record for record in job.steps(survivor)}
    assert sorted(mine) == list(range(1, STEPS + 1))
    uses: Counter[tuple[int, int]] = Counter()
    for rank in [survivor, *others]:
        kept = [record for record in job.steps(rank) if mine[record["step"]]["hash"] == record["hash"]]
        uses.update((record["epoch"], sample) for record in kept for sample in record["samples"])
    assert set(uses.values()) == {1}
    assert EPOCHS * SAMPLES - len(uses) <= lost_shares * BATCH


@pytest.mark.parametrize("victim", [0, pytest.param(2, marks=pytest.mark.full)], ids=["leader", "follower"])
def test_a_killed_rank_is_left_behind(ranks: StartRanks, victim: int) -> None:
    job = ranks("epochs", 3, **OPTIONS)
    until(job, 1, 6)
    killed_at = time.monotonic()
    job.processes[victim].kill()
    survivors = [rank for rank in range(3) if rank != victim]
    found = job.wait(*survivors)
    assert found[0]["hash"] == found[1]["hash"]
    resumed = next(record for record in job.steps(survivors[0]) if record["at"] > killed_at and record["size"] == 2)
    assert resumed["at"] - killed_at < 2.0
    check_accounting(job, survivors[0], [survivors[1], victim], lost_shares=1)


@pytest.mark.full
@pytest.mark.parametrize("victim", [0, 2], ids=["leader", "follower"])
def test_a_hung_rank_is_left_behind_and_comes_back(ranks: StartRanks, victim: int) -> None:
    job = ranks("epochs", 3, **{**OPTIONS, "per_sample": 0.01})
    until(job, 1, 6)
    job.processes[victim].send_signal(signal.SIGSTOP)
    stopped = len(job.steps(1))
    until(job, 1, stopped + 8)
    job.processes[victim].send_signal(signal.SIGCONT)
    found = job.wait()
    assert len({result["hash"] for result in found}) == 1
    assert {result["steps"] for result in found} == {STEPS}
    sizes = [view[1] for view in found[1]["views"]]
    assert sizes[0] == 3
    assert 2 in sizes
    assert sizes[-1] == 3, "the one that woke up is part of the group again"


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.full)], ids=["first-leader", "follower"])
def test_a_killed_rank_comes_back(ranks: StartRanks, victim: int) -> None:
    job = ranks("epochs", 2, **{**OPTIONS, "per_sample": 0.012})
    until(job, 1 - victim, 6)
    job.processes[victim].kill()
    job.processes[victim].wait()
    job.start(victim, late=True)
    found = job.wait()
    assert found[0]["hash"] == found[1]["hash"]
    assert found[victim]["used"], "the one that came back has trained"
    check_accounting(job, 1 - victim, [victim], lost_shares=1)


@pytest.mark.full
def test_the_last_one_goes_on_alone(ranks: StartRanks) -> None:
    job = ranks("epochs", 3, **OPTIONS)
    until(job, 2, 6)
    job.processes[0].kill()
    job.processes[1].kill()
    (found,) = job.wait(2)
    assert found["steps"] == STEPS
    check_accounting(job, 2, [0, 1], lost_shares=2)


def test_a_checkpoint_resumes_on_another_number_of_ranks(ranks: StartRanks, tmp_path: Path) -> None:
    options = {**OPTIONS, "per_sample": 0.002, "checkpoint": str(tmp_path / "state.safetensors"), "every": 4}
    first = ranks("epochs", 2, **options)
    until(first, 0, 14)
    for process in first.processes.values():
        process.kill()
    (found,) = ranks("epochs", 1, **options).wait()
    steps = [use["step"] for use in found["used"]]
    assert 12 < steps[0] <= 14 + 5
    assert (steps[0] - 1) % 4 == 0
    assert found["steps"] == STEPS


@pytest.mark.full
def test_a_stranger_is_refused_and_logged(ranks: StartRanks) -> None:
    job = ranks("epochs", 2, **OPTIONS)
    until(job, 0, 2)
    with socket.create_connection(("127.0.0.1", job.port), timeout=5) as stranger:
        stranger.recv(1000)
        text = b'{"kind":"response","nonce":"00","proof":"00"}'
        stranger.sendall(struct.pack(">I", len(text)) + text)
        assert stranger.recv(1000) == b""
    with socket.create_connection(("127.0.0.1", job.port), timeout=5) as stranger:
        stranger.sendall(b"\xff" * 64)
        with contextlib.suppress(ConnectionResetError):
            stranger.recv(1000)
    found = job.wait()
    assert found[0]["steps"] == STEPS
    assert job.log(0).count("refused a connection from 127.0.0.1") == 2


def test_a_meeting_point_that_somebody_else_holds_is_an_error_not_a_training_alone(ranks: StartRanks) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        job = ranks("epochs", 2, env={"PACELINE_JOIN": f"127.0.0.1:{port}"}, **OPTIONS)
        assert job.processes[0].wait(60) != 0
    assert f"the rendezvous of the ranks is 127.0.0.1:{port}, where this process cannot listen" in job.log(0)


@pytest.mark.full
def test_a_rank_that_is_started_again_when_training_is_over_exits_cleanly(ranks: StartRanks) -> None:
    job = ranks("epochs", 2, **{**OPTIONS, "epochs": 1})
    job.wait()
    assert job.start(1, late=True).wait(60) == 0
    assert "training was over" in job.log(1)
