"""Keras on TensorFlow through the same runtime: any split trains what one process trains."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.bench.sites.local import free_ports
from tests.conftest import ROOT

WORKER = Path(__file__).with_name("keras_worker.py")


def train(folder: Path, size: int, shares: list[int] | None) -> list[dict[str, Any]]:
    folder.mkdir()
    base = {
        **os.environ,
        "PYTHONPATH": str(worker_path()),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": str(size),
        "PACELINE_JOIN": f"127.0.0.1:{free_ports(1)[0]}",
        "PACELINE_SECRET": secrets.token_hex(16),
    }
    options = json.dumps({"shares": shares, "steps": 6})
    python = environment_python(prepare("keras"))
    processes = [
        subprocess.Popen(
            [str(python), str(WORKER), options, str(folder / f"{rank}.json")],
            env={**base, "RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    for process in processes:
        errors = process.communicate(timeout=120)[1]
        assert process.returncode == 0, errors
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(size)]


@pytest.mark.full  # needs the TensorFlow environment
def test_an_uneven_split_trains_what_one_process_trains(tmp_path: Path) -> None:
    (alone,) = train(tmp_path / "one", 1, None)
    first, second = train(tmp_path / "two", 2, [22, 8])
    assert first["hash"] == second["hash"]
    assert np.allclose(first["values"], alone["values"], atol=2e-6)
    assert alone["losses"][-1] < alone["losses"][0]


@pytest.mark.full  # needs the TensorFlow environment
def test_the_keras_example_trains_under_torchrun() -> None:
    python, script = environment_python(prepare("keras")), ROOT / "examples" / "training" / "train_keras.py"
    argv = [str(python), "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script), "--epochs", "6"]
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    accuracy = float(result.stdout.split("accuracy ")[1].split()[0])
    assert accuracy > 0.9
    assert "after 96 steps on 2 ranks" in result.stdout


REFUSED = """
import keras
import numpy as np
from paceline.errors import InputError
from paceline.runtime.keras_binding import join_keras

data = np.zeros((8, 4), "float32"), np.zeros((8, 2), "float32")
inputs = keras.Input((4,))
hidden = keras.layers.Dense(3)(inputs)
out = keras.layers.Dense(2)(hidden)
models = {
    "no loss": (keras.Model(inputs, out), {}),
    "outputs": (keras.Model(inputs, [out, hidden]), {"loss": ["mse", None]}),
    "norm": (keras.Model(inputs, keras.layers.BatchNormalization()(out)), {"loss": "mse"}),
}
for model, given in models.values():
    model.compile("sgd", **given)
    try:
        join_keras(model, data, global_batch=4)
    except InputError as error:
        print(error.message, "|", error.hint)
"""


@pytest.mark.full  # needs the TensorFlow environment
def test_models_that_cannot_be_shared_are_refused_with_a_reason() -> None:
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "WORLD_SIZE": "2", "KERAS_BACKEND": "tensorflow"}
    argv = [str(environment_python(prepare("keras"))), "-c", REFUSED]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    expected = ["the Keras model has no loss", "the Keras model has 2 outputs", "batch normalization (batch_normal"]
    for line, words in zip(done.stdout.splitlines(), expected, strict=True):
        assert line.startswith(words)
