"""Kills, crashes, hangs and crowds: nothing is lost, nothing is half there, nothing is repeated."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from paceline import variables
from paceline.bench.campaign import MAX_AGAIN
from paceline.measurements.store import Store
from tests.conftest import Command

STUDY = """
name = "quick"
networks = ["lenet"]
frameworks = ["pytorch"]
devices = [1, 2]
batch = [{batch}]
[protocol]
launches = {launches}
max_launches = {launches}
warmup = 1
steps = 5
phase_steps = 1
timeout = "{timeout}"
"""


def text(batch: str = "8, 16", launches: int = 3, timeout: str = "1 min") -> str:
    return STUDY.format(batch=batch, launches=launches, timeout=timeout)


def kill_tree(process: subprocess.Popen[str]) -> None:
    """kill -9 of the command alone; its ranks must follow by themselves."""
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def workers(command: Command) -> list[psutil.Process]:
    """Ranks of this command that still run: other tests may have theirs."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if any("quick_worker.py" in part for part in process.info["cmdline"] or ()):
                found += [process] if process.environ().get(variables.STORE) == str(command.store) else []
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kills", "launches"), [(3, 2), pytest.param(100, 12, marks=pytest.mark.full)])
def test_kills_at_random_moments(quick: Command, study_file: Callable[[str], Path], kills: int, launches: int) -> None:
    path = str(study_file(text(batch="8, 16, 24, 32, 40", launches=launches)))
    generator = random.Random(7)
    store = Store(quick.store)
    seen: dict[str, bytes] = {}
    for _ in range(kills):
        process = quick.start("run", path, "--resume")
        time.sleep(generator.uniform(0.05, 1.2))
        kill_tree(process)
        seen = check_whole(store, seen)
    quick("run", path, "--resume")
    runs = store.read_all()
    assert len({run.campaign for run in runs}) == 1
    assert 10 * launches <= len(runs) <= 10 * (launches + MAX_AGAIN)
    assert {run.outcome for run in runs} == {"ok"}
    check_whole(store, seen)
    before = len(runs)
    quick("run", path, "--resume")
    assert len(store.read_all()) == before
    wait_for(lambda: not workers(quick))
    store.clean()
    assert not list((quick.store / "tmp").iterdir())


def check_whole(store: Store, seen: dict[str, bytes]) -> dict[str, bytes]:
    """Every run is complete and readable, and none that was there has changed."""
    now = {}
    for folder in store.runs.iterdir() if store.runs.is_dir() else []:
        assert {item.name for item in folder.iterdir()} == {"run.json", "steps.parquet", "spans.parquet", "SHA256SUMS"}
        store.read(folder.name)
        now[folder.name] = (folder / "run.json").read_bytes()
    assert all(now[name] == content for name, content in seen.items())
    return now


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_interrupt_from_the_keyboard_keeps_what_is_finished(quick: Command, study_file: Callable[[str], Path]) -> None:
    path = str(study_file(text(launches=30)))
    process = quick.start("run", path)
    store = Store(quick.store)
    wait_for(lambda: len(store.read_all()) >= 2, seconds=30)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert "--resume" in errors
    wait_for(lambda: not workers(quick))


@pytest.mark.parametrize(
    ("batch", "reason", "words"),
    [
        pytest.param(1001, "timeout", "time ran out", marks=pytest.mark.full),
        (1002, "crash", "planted crash"),
        (1003, "out_of_memory", "memory"),
    ],
)
def test_a_rank_that_fails_is_stored_and_the_study_goes_on(
    quick: Command, study_file: Callable[[str], Path], batch: int, reason: str, words: str
) -> None:
    document = quick.json("run", str(study_file(text(batch=f"8, {batch}", launches=1, timeout="3 s"))))
    cases = {(case["ranks"], case["batch"]): case for case in document["cases"]}
    assert cases[1, 8]["failed"] == cases[2, 8]["failed"] == 0
    for ranks in (1, 2):
        failure = cases[ranks, batch]["failure"]
        assert (failure["phase"], failure["reason"]) == ("measure", reason)
        assert words in failure["message"]
        if reason != "timeout":
            assert failure["rank"] == ranks - 1
            assert "planted" in failure["log_tail"]
    assert words in " ".join(quick("show").split())


def test_a_killed_rank_is_stored(quick: Command, study_file: Callable[[str], Path]) -> None:
    process = quick.start("run", str(study_file(text(batch="1001", launches=1))))
    wait_for(lambda: len(workers(quick)) >= 1, seconds=20)
    time.sleep(0.5)
    for worker in workers(quick)[:1]:
        worker.kill()
    wait_for(lambda: len(Store(quick.store).read_all()) >= 1, seconds=30)
    process.kill()
    process.communicate()
    failure = Store(quick.store).read_all()[0].failure
    assert failure is not None
    assert failure.reason == "killed"
    assert failure.exit_code == -9


@pytest.mark.full
def test_two_studies_and_a_reader_share_one_store(quick: Command, study_file: Callable[[str], Path]) -> None:
    path = str(study_file(text(launches=6)))
    writers = [quick.start("run", path, "--json") for _ in range(2)]
    answers = []
    while any(writer.poll() is None for writer in writers):
        rows = quick.json("query", "SELECT count(*) AS n, count(DISTINCT campaign) AS c FROM launches")["rows"]
        answers.append((rows[0]["n"], rows[0]["c"]))
    outputs = [writer.communicate() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], outputs
    documents = [json.loads(output) for output, _ in outputs]
    assert documents[0]["campaign"] != documents[1]["campaign"]
    assert answers == sorted(answers)
    assert 2 * 4 * 6 <= len(Store(quick.store).read_all()) <= 2 * 4 * (6 + MAX_AGAIN)


def test_one_campaign_is_not_run_twice_at_once(quick: Command, study_file: Callable[[str], Path]) -> None:
    path = str(study_file(text(launches=20)))
    first = quick.start("run", path)
    wait_for(lambda: bool(Store(quick.store).read_all()), seconds=20)
    message = quick("run", path, "--resume", code=2)
    assert "another process" in message
    first.kill()
    first.communicate()
