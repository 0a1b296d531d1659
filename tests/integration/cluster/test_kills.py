"""kill -9 of any process of a running study, at any moment: no namespace, no stray process, no half run."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from paceline.measurements.store import Store
from paceline.measurements.tables import pass_times
from tests.integration.cluster.conftest import QUICK
from tests.integration.cluster.services import wait_until

CLUSTER = """
name = "pair"
[[host]]
name = "n"
count = 2
devices = [{ name = "plain", kind = "cpu" }]
inside = "loopback"
link = { name = "way", bandwidth = "100 Mb/s" }
"""
STUDY = """
name = "kills"
networks = ["lenet"]
frameworks = ["pytorch"]
clusters = ["pair.toml"]
devices = [2]
batch = [8, 16]
[protocol]
launches = 2
max_launches = 2
warmup = 1
steps = 5
phases = false
timeout = "1 min"
"""
COMMANDS, KILLS_EACH = 5, 3


def family(root: int) -> list[psutil.Process]:
    """The command, everything it started, and what holds its cluster."""
    processes = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "paceline.bench.virtual.holder" in words and words[-1] == str(root):
            processes += [process, *process.children(recursive=True)]
    return processes


def mine(token: str) -> list[psutil.Process]:
    """Processes that name this test's own folder, in their command line or environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("KILLS_TOKEN") == token:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def kill_one(processes: list[psutil.Process], dice: random.Random) -> bool:
    """Kill any but the command itself; says whether there was one."""
    if len(processes) < 2:
        return False
    try:
        dice.choice(processes[1:]).send_signal(signal.SIGKILL)
    except psutil.NoSuchProcess:
        return False
    return True


def test_kills_at_random_moments(tmp_path: Path) -> None:
    (tmp_path / "pair.toml").write_text(CLUSTER)
    (tmp_path / "study.toml").write_text(STUDY)
    token, store = tmp_path.name, tmp_path / "results"
    env = {**os.environ, "KILLS_TOKEN": token, "XDG_STATE_HOME": str(tmp_path / "state")}
    words = [sys.executable, str(QUICK), "run", str(tmp_path / "study.toml"), "--on", "virtual", "--store", str(store)]
    dice = random.Random(11)
    kills = 0
    for number in range(COMMANDS):
        command = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(KILLS_EACH):
            time.sleep(dice.uniform(0.5, 3.0))
            kills += command.poll() is None and kill_one(family(command.pid), dice)
        if number % 3:
            command.kill()
        command.wait(timeout=120)
        wait_until(lambda: not mine(token), "the end of all processes of the study", 20)
    assert kills >= COMMANDS
    runs = Store(store).read_all()
    good = [run.id for run in runs if run.outcome == "ok"]
    whole = {item.run for item in pass_times(Store(store), good) if item.pass_name == "clean" and item.num_steps == 5}
    assert whole == set(good), "a run that is called good has every step"
    reasons = {run.failure.reason for run in runs if run.failure is not None}
    assert reasons <= {"killed", "crash", "cancelled", "no_output"}, reasons
    assert not list((store / "runs").glob("*/*.part"))
    subprocess.run(words, env=env, check=True, capture_output=True, timeout=120)
    after = [run for run in Store(store).read_all() if run.id not in {run.id for run in runs}]
    assert [(run.batch, run.outcome) for run in sorted(after, key=lambda run: run.batch)] == [(8, "ok")] * 2 + [
        (16, "ok")
    ] * 2, "nothing that was killed disturbs the next study"
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
