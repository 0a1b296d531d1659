"""`paceline train` on hosts: the same script by every engine, as one group and as two around a syncer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paceline.bench.virtual.namespaces import on_host
from tests.integration.cluster.conftest import Grounds
from tests.integration.cluster.test_sites import CLUSTER

SCRIPT = """
import os
import torch
from torch.utils.data import TensorDataset
from paceline.runtime import join

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with join(model, optimizer, TensorDataset(torch.randn(96, 4)), global_batch=32) as pace:
    for batch in pace.batches(epochs=4):
        pace.step(model(batch.inputs).square().mean())
    groups = pace.syncer_facts().get("syncer", {}).get("version", 0)
    print("host", os.uname().nodename, "rank", pace.rank, "of", pace.size, "version", groups > 0, flush=True)
os._exit(0)
"""
PLAN = """
network = "script"
cluster = "two"
global_batch = 32
kind = "hybrid"
local_steps = 2
quorum = 1
predicted_step_s = 0.1
predicted_throughput = 320.0
predicted_utilisation = 1.0
staleness = 0.0
efficiency = 1.0
reason = "written by a test"
[[group]]
members = [{ rank = 0, device = "plain", samples = 16 }]
[[group]]
members = [{ rank = 1, device = "plain", samples = 16 }]
"""


def train(place: Grounds, folder: Path, engine: str, *more: str) -> str:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "two.toml").write_text(CLUSTER)
    argv = [sys.executable, "-m", "paceline", "train", str(folder / "train.py"), "--cluster", str(folder / "two.toml")]
    argv += ["--on", engine, *more]
    if engine != "virtual":
        argv = on_host(place.up.pid_of("n0"), argv, directory=folder)
    done = subprocess.run(argv, env=place.env, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("engine", ["virtual", "ssh", "mpi", "slurm"])
def test_ranks_on_two_hosts_are_one_group(grounds: Grounds, tmp_path: Path, engine: str) -> None:
    said = train(grounds, tmp_path, engine)
    assert "host n1 rank 0 of 2" in said
    assert "host n2 rank 1 of 2" in said


@pytest.mark.parametrize("engine", ["virtual", "slurm"])
def test_a_plan_of_two_groups_has_a_shard_on_each_host(grounds: Grounds, tmp_path: Path, engine: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN)
    said = train(grounds, tmp_path, engine, "--plan", str(plan))
    assert "host n1 rank 0 of 1 version True" in said
    assert "host n2 rank 0 of 1 version True" in said


def test_wishes_that_a_launcher_cannot_fulfil_are_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    argv = [sys.executable, "-m", "paceline", "train", str(tmp_path / "train.py"), "--on", "slurm", "--dilation", "2"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "only a virtual cluster can dilate time" in done.stderr
    assert "Traceback" not in done.stderr
