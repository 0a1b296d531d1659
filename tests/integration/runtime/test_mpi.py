"""A group over MPI: the gradients of one process, for two ranks of a real mpirun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench.environments import home, worker_path
from tests.integration.runtime.conftest import WORKER, StartRanks

MPI4PY = "mpi4py==4.1.2"
pytestmark = pytest.mark.full  # mpirun comes from a Debian package


@pytest.fixture(scope="module")
def mpi4py() -> Path:
    folder = home() / "cache" / MPI4PY
    if not (folder / "mpi4py").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), MPI4PY]
        subprocess.run(command, check=True, timeout=120)
    return folder


def run(python: Path, mpi4py: Path, options: dict[str, Any], results: str, *, ranks: int = 2) -> None:
    argv = [str(python), str(WORKER), "gradients", json.dumps(options), results]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *argv]
    env = {**os.environ, "PYTHONPATH": f"{worker_path()}:{mpi4py}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
def test_unequal_shares_over_mpi_give_the_gradients_of_one_process(
    torch_python: Path, mpi4py: Path, ranks: StartRanks, tmp_path: Path, norm: bool
) -> None:
    given = {"norm": norm, "steps": 2}
    alone = ranks("gradients", 1, **given).wait()[0]
    run(torch_python, mpi4py, {**given, "shares": [23, 7], "transport": "mpi"}, f"{tmp_path}/mpi-{{rank}}.json")
    found = [json.loads((tmp_path / f"mpi-{rank}.json").read_text()) for rank in range(2)]
    assert found[0]["hash"] == found[1]["hash"]
    assert np.abs(np.array(found[0]["parameters"]) - np.array(alone["parameters"])).max() < 1e-12


def test_without_an_address_ranks_of_mpirun_meet_over_mpi(
    torch_python: Path, mpi4py: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "PACELINE_SECRET"):
        monkeypatch.delenv(name, raising=False)
    run(torch_python, mpi4py, {"shares": [23, 7]}, f"{tmp_path}/meet-{{rank}}.json")
    found = [json.loads((tmp_path / f"meet-{rank}.json").read_text()) for rank in range(2)]
    assert found[0]["hash"] == found[1]["hash"], "the start differs between ranks, so equal means that they met"


def test_two_processes_of_another_mpi_do_not_train_alone(torch_python: Path, mpi4py: Path, tmp_path: Path) -> None:
    """What MPICH's mpirun says to a process whose mpi4py was built for Open MPI."""
    argv = [str(torch_python), str(WORKER), "gradients", json.dumps({"transport": "mpi"}), str(tmp_path / "alone.json")]
    env = {**os.environ, "PYTHONPATH": f"{worker_path()}:{mpi4py}", "PMI_SIZE": "2", "PMI_RANK": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode != 0
    assert "mpirun has started 2 processes, of which mpi4py sees 1" in done.stderr
