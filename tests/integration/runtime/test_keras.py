"""Keras in the runtime: any split trains what one process trains, on every backend, and a killed rank is survived."""

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
EXAMPLE = ROOT / "examples" / "training" / "keras_digits.py"
pytestmark = pytest.mark.full  # needs the environment with Keras, whose backends take seconds to import


FIT = {"do": "fit", "shares": [22, 8]}
ALONE = {"do": "alone"}
APART = {"do": "fit", "apart": True}


def train(folder: Path, ways: list[dict[str, Any]], backend: str, dead: int | None = None) -> list[dict[str, Any]]:
    """What each of two ranks wrote about the ways to train, one after the other; but for a rank that dies."""
    base = {
        **os.environ,
        "PYTHONPATH": str(worker_path()),
        "OMP_NUM_THREADS": "1",
        "KERAS_BACKEND": backend,
        "WORLD_SIZE": "2",
        "PACELINE_JOIN": f"127.0.0.1:{free_ports(1)[0]}",
        "PACELINE_SECRET": secrets.token_hex(16),
    }
    argv = [str(environment_python(prepare("keras"))), str(WORKER), json.dumps(ways)]
    processes = []
    for rank in range(2):
        with (folder / f"{rank}.log").open("wb") as log:
            env, command = {**base, "RANK": str(rank)}, [*argv, str(folder / f"{rank}.json")]
            processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
    for rank, process in enumerate(processes):
        assert (process.wait() == 0) == (rank != dead), (folder / f"{rank}.log").read_text()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2) if rank != dead]


WAYS: dict[str, list[dict[str, Any]]] = {
    "tensorflow": [
        {"do": "fit", "data": "dataset", "shares": [26, 4], "chunk": 16},
        {"do": "own step", "shares": [30, 0]},
    ],
    "torch": [{"do": "fit", "data": "loader", "shares": [11, 19]}, {"do": "train on", "shares": [0, 30]}],
    "jax": [{"do": "train on", "shares": [30, 0]}],
}


@pytest.mark.parametrize("backend", sorted(WAYS))
def test_every_way_and_every_split_trains_what_keras_alone_trains(backend: str, tmp_path: Path) -> None:
    ways = [FIT, *WAYS[backend]]
    first, second = train(tmp_path, [APART, *ways, ALONE], backend)
    words = "rates, momenta or decays of the optimizers of ranks [1] are not those of rank 0"
    assert [one[json.dumps(APART)]["error"] for one in (first, second)] == [words] * 2
    for way in map(json.dumps, ways):
        assert first[way]["values"] == second[way]["values"], f"{way}: ranks differ"
        assert np.allclose(first[way]["values"], first[json.dumps(ALONE)]["values"], atol=5e-6), way
    fitted = first[json.dumps(FIT)]
    assert [number for number, _, _ in fitted["steps"]] == list(range(1, 10)), "three steps in each of three epochs"
    assert fitted["losses"][-1] < fitted["losses"][0]


def test_the_other_goes_on_without_a_killed_rank(tmp_path: Path) -> None:
    way = {"do": "fit", "kill": [1, 4]}
    (left,) = train(tmp_path, [way, ALONE], "tensorflow", dead=1)
    fitted, alone = left[json.dumps(way)], left[json.dumps(ALONE)]
    assert np.allclose(fitted["values"], alone["values"], atol=5e-6), "the step that broke was done with all samples"
    assert sorted({number for number, _, _ in fitted["steps"]}) == list(range(1, 10))
    assert fitted["steps"][-1][1] == 1


def test_the_example_trains_by_paceline_train(tmp_path: Path) -> None:
    argv = [str(ROOT / ".venv" / "bin" / "python"), "-m", "paceline", "train", str(EXAMPLE), "--ranks", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([*argv, "--env", "keras", "--", "--epochs", "4"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split("accuracy ")[1].split()[0]) > 0.8
    assert "after 48 steps on 2 ranks" in done.stdout


REFUSED = """
import keras
import numpy as np
import paceline
from paceline.errors import InputError

data = np.zeros((8, 4), "float32"), np.zeros((8, 2), "float32")
inputs = keras.Input((4,))
out = keras.layers.Dense(2)(inputs)
masked = keras.layers.Dense(1)(keras.layers.Masking()(keras.layers.Reshape((2, 2))(inputs)))
norm = keras.Model(inputs, keras.layers.BatchNormalization()(out))
models = [
    (keras.Model(inputs, out), {}, {}),
    (norm, {"loss": "mse"}, {}),
    (keras.Model(inputs, out), {"loss": "mse", "steps_per_execution": 2}, {}),
    (keras.Model(inputs, out), {"loss": "mse"}, {"class_weight": {0: 1.0, 1: 2.0}, "y": np.zeros(8, "int32")}),
    (keras.Model(inputs, out), {"loss": ["mae", keras.losses.MeanSquaredError(reduction="sum")]}, {}),
    (keras.Model(inputs, out), {"loss": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")}, {}),
    (keras.Model(inputs, out), {"loss": keras.losses.SparseCategoricalCrossentropy(ignore_class=1)}, {}),
    (keras.Model(inputs, masked), {"loss": "mse"}, {}),
    (keras.Model(inputs, out), {"loss": "mse"}, {"x": ((data[0], data[1]) for _ in range(9)), "y": None}),
]
for model, given, options in models:
    model.compile("sgd", **given)
    try:
        join = paceline.keras.Join(4)
        model.fit(**{"x": data[0], "y": data[1], **options}, callbacks=[join], verbose=0)
    except InputError as error:
        print(error.message, "|", error.hint)
try:
    model.evaluate(*data, callbacks=[join], verbose=0)
    join.on_train_begin()
except InputError as error:
    print(error.message)
"""


def test_models_that_cannot_be_shared_are_refused_with_a_reason() -> None:
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "WORLD_SIZE": "2", "KERAS_BACKEND": "tensorflow"}
    argv = [str(environment_python(prepare("keras"))), "-c", REFUSED]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = [
        "the Keras model has no loss",
        "batch normalization (batch_normal",
        "steps_per_execution is 2",
        "class_weight is not supported",
        "MeanSquaredError has the reduction 'sum', the settings have 'mean'",
        "MeanSquaredError is the mean over weights",
        "SparseCategoricalCrossentropy leaves out targets (ignore_class)",
        "the loss of ",
        "fit() was given a generator without an end",
        "Join is a callback of model.fit()",
    ]
    for line, words in zip(done.stdout.splitlines(), expected, strict=True):
        assert line.startswith(words)
