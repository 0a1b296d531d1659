"""A captured loop becomes a profile that the model can use; ranks that exchange nothing are profiled side by side."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.environments import environment_python, worker_path
from paceline.measurements.profile import read_profile
from tests.conftest import Command

LOOP = """
import sys, time, torch, paceline
from torch import nn
from paceline.errors import InputError

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.body = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
        self.frozen = nn.Linear(64, 64).requires_grad_(False)
        self.head = nn.Linear(64, 10)
    def forward(self, x):
        return self.head(self.frozen(self.body(x * self.scale)))

model = Mixed()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
x, y = torch.randn(32, 64), torch.randint(10, (32,))

def steps(count):
    for _ in range(count):
        time.sleep(0.002)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

with paceline.capture(model, optimizer, path=sys.argv[1], name="mine") as found:
    steps(14)
assert found.profile["network"] == "mine"
try:
    with paceline.capture(model, optimizer):
        steps(3)
except InputError as error:
    print(error)
"""
STUDY = """
name = "beside"
networks = ["lenet"]
frameworks = ["pytorch"]
devices = [2]
batch = [8]
[[strategy]]
name = "alone"
aggregation = "none"
[protocol]
launches = 1
max_launches = 1
steps = 8
warmup = 2
threads = 1
"""


def test_a_loop_is_captured_and_predicted(pytorch: Path, paceline: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.profile"
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    argv = [str(environment_python(pytorch)), "-c", LOOP, str(path)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=True)
    assert "3 steps were captured, too few" in done.stdout
    profile = read_profile(path)
    layers = {layer.name: layer for layer in profile.layers}
    assert profile.batch == 32
    assert profile.device == "host-cpu"
    assert sorted(layers["body.0"].gradients) == [512 * 4.0, 512 * 64 * 4.0]
    assert layers["frozen"].gradients == layers["body.1"].gradients == ()
    assert profile.ready.index("head") < profile.ready.index("body.0")
    assert "whole model" in layers, "a parameter of the model itself"
    assert profile.io > 0.0015
    assert all(layer.forward >= 0 and layer.backward >= 0 for layer in profile.layers)
    found = paceline.json("predict", "--profile", str(path), "--cluster", "local", "--devices", "1,2")
    assert found["predictions"][0]["step_s"] == pytest.approx(profile.step)


@pytest.mark.full
def test_ranks_that_exchange_nothing_make_a_profile(
    pytorch: Path, paceline: Command, study_file: Callable[..., Path], tmp_path: Path
) -> None:
    paceline("run", str(study_file(STUDY)))
    folder = tmp_path / "profiles"
    paceline("calibrate", "--profiles", str(folder), "--output", str(tmp_path / "calibration.json"))
    (path,) = folder.iterdir()
    plain = json.loads(path.read_text())
    assert plain["crowd"] == 2
    assert read_profile(path).step > 0
