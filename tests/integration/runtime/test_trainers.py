"""Trainers of others over the runtime: an uneven split trains what one process trains; a killed rank is survived."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench.environments import worker_path
from paceline.bench.sites.local import free_ports

WORKER = Path(__file__).with_name("trainer_worker.py")
PYTHON = Path(sys.prefix) / "trainers" / "bin" / "python"
pytestmark = [
    pytest.mark.full,  # imports of lightning and transformers take seconds
    pytest.mark.skipif(not PYTHON.exists(), reason=f"{PYTHON} is not there: make trainers"),
]


def train(folder: Path, trainer: str, killed: int | None) -> list[dict[str, Any]]:
    base = {
        **os.environ,
        "PYTHONPATH": str(worker_path()),
        "OMP_NUM_THREADS": "1",
        "PACELINE_SIZE": "2",
        "LOCAL_RANK": "0",  # as `paceline train` says it
        "PACELINE_JOIN": f"127.0.0.1:{free_ports(1)[0]}",
        "PACELINE_SECRET": secrets.token_hex(16),
    }
    processes = []
    for rank in range(2):
        argv = [str(PYTHON), str(WORKER), trainer, json.dumps(killed), str(folder / f"{rank}.json")]
        with (folder / f"{rank}.log").open("wb") as log:
            env = {**base, "PACELINE_RANK": str(rank)}
            processes.append(subprocess.Popen(argv, env=env, stdout=log, stderr=log))
    for rank, process in enumerate(processes):
        expected = 9 if rank == 1 and killed is not None else 0
        assert process.wait() == expected, (folder / f"{rank}.log").read_text()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(1 if killed is not None else 2)]


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_an_uneven_split_trains_what_one_process_trains(trainer: str, tmp_path: Path) -> None:
    first, second = train(tmp_path, trainer, None)
    assert first["values"] == second["values"]
    assert np.allclose(first["values"], first["alone"], atol=2e-6)
    assert (first["steps"], first["ranks"]) == (9, 2), "three steps in each of three epochs"
    assert (bool(first["written"]), second["written"]) == (True, []), "one rank writes checkpoints"
    assert first["refused"].startswith("the loader's WeightedRandomSampler chooses samples")


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_the_other_goes_on_without_a_killed_rank(trainer: str, tmp_path: Path) -> None:
    (left,) = train(tmp_path, trainer, 4)
    assert np.allclose(left["values"], left["alone"], atol=2e-6), "the step that broke was done with all samples"
    assert (left["steps"], left["ranks"]) == (9, 1)


@pytest.mark.parametrize("trainer", ["lightning", "transformers"])
def test_they_resume_in_the_middle_of_an_epoch(trainer: str, tmp_path: Path) -> None:
    train(tmp_path, trainer, None)
    first, second = train(tmp_path, trainer, None)
    assert (first["trained"], first["steps"]) == (5, 9), "the checkpoint was written after four steps"
    assert first["values"] == second["values"]
    assert np.allclose(first["values"], first["alone"], atol=2e-6), "no sample came twice, and none was left out"
