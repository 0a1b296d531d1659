"""The parts of a rank that need torch, with numbers worked out by hand, all in one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from paceline.bench.environments import worker_path

CHECKS = Path(__file__).with_name("parts_checks.py")
NAMES = re.findall(r"^def (check_\w+)", CHECKS.read_text(encoding="utf-8"), flags=re.M)


@pytest.fixture(scope="module")
def raised(torch_python: Path) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    done = subprocess.run([torch_python, CHECKS], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_part(raised: dict[str, str], name: str) -> None:
    assert raised[name] == "", raised[name]
