"""Callbacks in the trainers of other packages, in the environment with these packages (`make trainers`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.environments import worker_path
from tests.integration.trainers import ACCELERATE, LIGHTNING, RAY, TORCHTITAN, TRANSFORMERS
from tests.integration.trainjob import StatusServer

SCRIPTS = {"transformers": TRANSFORMERS, "lightning": LIGHTNING, "accelerate": ACCELERATE, "torchtitan": TORCHTITAN}


@pytest.fixture(scope="module")
def trainers() -> Path:
    python = Path(sys.prefix) / "trainers" / "bin" / "python"
    assert python.exists(), f"{python} is missing: make test-all makes it"
    return python


def run_script(python: Path, script: str, store: Path, **more: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(worker_path()), **more}
    command = [str(python), "-c", textwrap.dedent(script), str(store)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, cwd=store)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored_run(store: Path) -> dict[str, Any]:
    (path,) = (store / "runs").glob("*/run.json")
    run: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return run


@pytest.mark.full
@pytest.mark.parametrize("package", SCRIPTS)
def test_a_trainer_is_watched_by_its_callback(trainers: Path, tmp_path: Path, package: str) -> None:
    run_script(trainers, SCRIPTS[package], tmp_path)
    run = stored_run(tmp_path)
    assert (run["study"], run["ranks"], run["batch"]) == ("mine", 1, 4)
    assert run["launcher"] == "watch"


@pytest.mark.full
def test_the_workers_of_ray_train_are_watched(trainers: Path, tmp_path: Path) -> None:
    run_script(trainers, RAY, tmp_path)
    run = stored_run(tmp_path)
    assert (run["study"], run["ranks"], run["batch"]) == ("mine", 2, 4)
    assert run["facts"]["ddp"]["find_unused_parameters"] is False


@pytest.mark.full
def test_a_trainjob_hears_of_progress_and_time_left(trainers: Path, tmp_path: Path) -> None:
    with StatusServer(tmp_path) as server:
        run_script(trainers, TRANSFORMERS, tmp_path, **server.variables, PROGRESS="80")
    ours = [status for status in server.statuses if status.get("metrics", [{}])[0].get("name") == "step_seconds"]
    theirs = [status for status in server.statuses if status not in ours]
    assert server.tokens == {"Bearer secret"}
    assert theirs, "transformers itself reports to the server that it finds in the variables"
    last = ours[-1]
    assert last["progressPercentage"] == 50
    left, step_s = last["estimatedRemainingSeconds"], float(last["metrics"][0]["value"])
    assert left == round(40 * step_s)
    assert set(last) <= {"progressPercentage", "estimatedRemainingSeconds", "metrics", "lastUpdatedTime"}
    assert [status["progressPercentage"] for status in ours] == sorted(status["progressPercentage"] for status in ours)
    assert stored_run(tmp_path)["ranks"] == 1
