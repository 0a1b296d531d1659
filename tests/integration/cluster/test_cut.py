"""A host whose link is cut: the others go on, it waits, and takes part again when the link works."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

FAULTS = Path(__file__).parents[3] / "benchmarks" / "faults.py"


def test_a_host_that_is_cut_off_is_left_behind_and_comes_back(tmp_path: Path) -> None:
    argv = [sys.executable, str(FAULTS), "--fault", "cut", "--times", "1", "--json", str(tmp_path / "result.json")]
    done = subprocess.run(
        [*argv, "--results", str(tmp_path / "faults.jsonl")], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "result.json").read_text())["turns"]["cut"]
    assert found["lost_steps"] == found["samples_used_twice"] == found["samples_left_out"] == 0
    assert found["go_on_s"]["max"] < 2.0
