"""`paceline import` of what a real DDP training on two ranks recorded: profiles, and dumps of the flight recorder."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.environments import environment_python
from tests.conftest import Command

SCRIPT = str(Path(__file__).parent / "profiled_script.py")


def covered(events: list[dict[str, Any]], begin: float, end: float) -> float:
    """Seconds that events cover between two times, counted piece by piece."""
    total, reached = 0.0, begin
    for start, stop in sorted((event["ts"], event["ts"] + event["dur"]) for event in events):
        start, stop = max(start, reached), min(stop, end)
        total += max(0.0, stop - start)
        reached = max(reached, stop)
    return total / 1e6


@pytest.mark.full
@pytest.mark.timeout(300)
def test_a_profiled_training_and_its_dumps(paceline: Command, pytorch: Path, tmp_path: Path) -> None:
    launch = [str(environment_python(pytorch)), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**paceline.env, "TORCH_FR_BUFFER_SIZE": "200", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, SCRIPT, str(tmp_path)], env=env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr

    traces = [tmp_path / f"trace-rank{rank}.json" for rank in (0, 1)]
    found = json.loads(_run(paceline, "import", *map(str, traces), "--name", "mine", "--batch", "16", "--json"))
    assert {(one["rank"], one["step"]) for one in found["steps"]} == {(r, s) for r in (0, 1) for s in range(2, 7)}
    for one in found["steps"]:
        events = [e for e in json.loads(traces[one["rank"]].read_text())["traceEvents"] if e["ph"] == "X"]
        (mark,) = (event for event in events if event["name"] == f"ProfilerStep#{one['step']}")
        window = (mark["ts"], mark["ts"] + mark["dur"])
        exchanges = [event for event in events if event["name"] == "gloo:all_reduce"]
        backward = [event for event in events if event["name"].startswith("autograd::engine")]
        assert one["communication_s"] == pytest.approx(covered(exchanges, *window), abs=1e-6)
        assert one["phases"]["backward"] == pytest.approx(covered(backward, *window), abs=1e-6)
        assert one["communication_s"] == pytest.approx(one["overlap_s"] + one["exposed_s"], abs=1e-9)
        whole = (
            one["compute_s"]
            + one["exposed_s"]
            + one["phases"].get("io", 0.0)
            + one["idle_s"]
            + one["phases"].get("h2d", 0.0)
        )
        assert whole == pytest.approx(mark["dur"] / 1e6, abs=1e-6)

    shown = json.loads(_run(paceline, "show", "mine", "--json"))["cases"][0]
    assert (shown["ranks"], shown["batch"]) == (2, 16)
    assert _run(paceline, "explain", "mine")
    assert json.loads(_run(paceline, "export", "mine", "--to", "chrome", "-o", str(tmp_path / "back.json"), "--json"))
    again = json.loads(_run(paceline, "import", str(tmp_path / "dump_0"), str(tmp_path / "dump_1"), "--json"))
    (hang,) = again["hangs"]
    assert (hang["name"], hang["waiting"], hang["missing"], hang["culprits"]) == ("gloo:all_reduce", [0], [1], [1])


def _run(paceline: Command, *words: str) -> str:
    done = subprocess.run([*paceline.prefix, *words], env=paceline.env, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
