"""`paceline watch` around real PyTorch trainings that know nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.bench.environments import environment_python
from tests.conftest import Command

SCRIPT = str(Path(__file__).parent / "watched_script.py")


def test_a_script_that_fails_keeps_its_exit_code_and_its_steps(paceline: Command, pytorch: Path) -> None:
    python = str(environment_python(pytorch))
    done = subprocess.run(
        [*paceline.prefix, "watch", "--name", "mine", "--json", "--", python, SCRIPT, "60", "fail"],
        env=paceline.env, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["exit_code"] == 7
    assert verdict["steps"] == 41 - 9
    assert verdict["ranks"] == 1
    (case,) = paceline.json("show", "mine")["cases"]
    assert case["batch"] == 64
    assert case["network"] == "Net"
    assert case["labels"] == ["the command ended with exit code 7"]
    assert min(case["phases_s"][name] for name in ("io", "forward", "backward", "update")) > 0
    assert case["phases_s"]["aggregate"] == 0
    layers = paceline.json("query", "SELECT DISTINCT name FROM spans WHERE phase = 'forward' ORDER BY name")
    assert [row[0] for row in layers["rows"]] == ["first", "last", "second"]


def test_a_command_without_steps_is_left_alone_and_said(paceline: Command) -> None:
    done = subprocess.run(
        [*paceline.prefix, "watch", "--", sys.executable, "-c", "print('hello'); raise SystemExit(3)"],
        env=paceline.env, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stdout.startswith("hello\n")
    assert "no training step was seen" in done.stdout
    assert "cannot run no-such-program" in paceline("watch", "--", "no-such-program", code=2)


@pytest.mark.full
def test_a_rank_that_becomes_slow_under_torchrun_is_named_with_its_step(paceline: Command, pytorch: Path) -> None:
    torchrun = str(environment_python(pytorch).parent / "torchrun")
    words = ["watch", "--name", "ddp", "--", torchrun, "--standalone", "--nproc-per-node", "2", SCRIPT, "140", "slow"]
    text = paceline(*words)
    assert "rank 1 trained 140 steps" in text
    assert "rank 1 holds up the others, mostly in outside of the phases, since step 60 (persistent)" in text
    (case,) = paceline.json("show", "ddp")["cases"]
    assert (case["ranks"], case["timed_steps"]) == (2, 131)
    assert case["phases_s"]["aggregate"] >= 0
    for verb in (
        ["explain", "ddp"],
        ["report", "ddp"],
        ["predict", "--from", "ddp", "--cluster", "local", "--devices", "1,2"],
    ):
        paceline(*verb)
