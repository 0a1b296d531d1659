"""The runtime as a framework of a study, and under its own launcher."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.bench.environments import worker_path
from tests.conftest import ROOT, Command

STUDY = """
name = "own"
networks = ["lenet"]
frameworks = ["paceline/group", "paceline/hybrid"]
clusters = ["{cluster}"]
devices = [2]
batch = [8]

[protocol]
launches = 1
max_launches = 1
steps = 10
warmup = 5
"""

CLUSTER = """
name = "unequal"

[[host]]
name = "here"
devices = [
  { name = "fast", kind = "gpu", emulation = { forward = "20 ms", speed = 3.0 } },
  { name = "slow", kind = "gpu", emulation = { forward = "20 ms" } },
]
inside = "loopback"
link = "loopback"
"""


@pytest.mark.full
def test_a_study_measures_the_runtime_on_unequal_devices(
    paceline: Command, pytorch: Path, study_file: Callable[..., Path], tmp_path: Path
) -> None:
    cluster = tmp_path / "unequal.toml"
    cluster.write_text(CLUSTER)
    paceline("run", str(study_file(STUDY.format(cluster=cluster))))
    rows = paceline.json("query", "select framework, facts from runs")["rows"]
    assert {row["framework"] for row in rows} == {"paceline/group", "paceline/hybrid"}
    assert all("shares" in str(row) for row in rows)
    for row in rows:  # a disturbed launch is measured again
        assert ("mean_staleness" in str(row)) == (row["framework"] == "paceline/hybrid"), "the syncer's is in its run"


@pytest.mark.full
def test_training_goes_on_when_the_launcher_restarts_a_rank(paceline: Command, pytorch: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, torch\n"
        "from torch.utils.data import TensorDataset\n"
        "from paceline.runtime import Timeouts, Settings, join\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "settings = Settings(timeouts=Timeouts(heartbeat_timeout=2.0))\n"
        "with join(model, optimizer, TensorDataset(torch.randn(64, 4)), global_batch=8, settings=settings) as pace:\n"
        "    for batch in pace.batches(epochs=12):\n"
        "        first_life = os.environ['PACELINE_RANK'] == '1' and 'PACELINE_LATE' not in os.environ\n"
        "        if pace.position.step == 20 and first_life:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        import time; time.sleep(0.05 if pace.size == 2 or pace.position.step < 20 else 0.4)\n"
        "        pace.step(model(batch.inputs).square().mean())\n"
        "print('ended at step', pace.position.step)\n"
    )
    text = paceline("train", str(script), "--ranks", "2", "--restarts", "1")
    assert text.count("ended at step 96") == 2
    assert "started again" in text


def test_an_example_trains_under_torchrun(torch_python: Path) -> None:
    script = ROOT / "examples" / "training" / "train_gpt.py"
    argv = [str(torch_python), "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    argv += ["--epochs", "1", "--samples", "512"]
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    assert "after 4 steps" in result.stdout
    shares = result.stdout.split("shares (")[1].split(")")[0]
    assert len(shares.split(",")) == 2, "torchrun's store brought both ranks together"


@pytest.mark.full
def test_the_examples_train(paceline: Command, pytorch: Path) -> None:
    folder = ROOT / "examples" / "training"
    text = paceline("train", str(folder / "train_gpt.py"), "--ranks", "2", "--", "--epochs", "1", "--samples", "512")
    assert "after 4 steps" in text
    text = paceline("train", str(folder / "train_cifar.py"), "--ranks", "2", "--", "--epochs", "1", "--samples", "128")
    assert "after 2 steps" in text


PLAN = """
network = "script"
cluster = "unequal"
global_batch = 40
kind = "synchronous"
local_steps = 1
quorum = 1
predicted_step_s = 0.1
predicted_throughput = 400.0
predicted_utilisation = 1.0
staleness = 0.0
efficiency = 1.0
reason = "written by a test"
[[group]]
members = [{ rank = 0, device = "fast", samples = 30 }, { rank = 1, device = "slow", samples = 10 }]
"""


def test_training_takes_batch_and_split_of_a_plan_and_checks_it(
    paceline: Command, pytorch: Path, tmp_path: Path
) -> None:
    (tmp_path / "unequal.toml").write_text(CLUSTER)
    (tmp_path / "plan.toml").write_text(PLAN)
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "from torch.utils.data import TensorDataset\n"
        "from paceline.runtime import Settings, join\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.01)\n"
        "with join(model, optimizer, TensorDataset(torch.randn(80, 4)), global_batch=8) as pace:\n"
        "    for batch in pace.batches(steps=8):\n"
        "        pace.step(model(batch.inputs).square().mean())\n"
        "    print('first shares', pace.records[0].shares, 'of', pace.global_batch)\n"
    )
    asked = ("train", str(script), "--cluster", str(tmp_path / "unequal.toml"), "--plan", str(tmp_path / "plan.toml"))
    text = paceline(*asked)
    assert text.count("first shares (30, 10) of 40") == 2
    assert "predicted 400.0 samples/s" in text
    assert "the plan's global batch of 40 takes the place of 8" in text
    rate, low, high = (
        float(number.replace(",", ""))
        for number in re.search(
            r"reached ([\d.,]+): .*\nreached in the later half of the steps, 90 %: ([\d.,]+) to ([\d.,]+) ", text
        ).groups()
    )
    assert 0 < low <= rate <= high
    error = paceline(*asked[:3], "local", *asked[4:], code=2)
    assert "the plan is for cluster 'unequal', asked is 'local'" in error
