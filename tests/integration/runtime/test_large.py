"""The recipe for large batches with torch: LARS and LAMB by hand, rates, the noise scale over two ranks."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench.environments import worker_path
from paceline.bench.sites.local import free_ports
from tests.integration.runtime.large_worker_facts import BIAS, DIMENSIONS, GRADIENTS, SIGMA, WEIGHTS

WORKER = Path(__file__).with_name("large_worker.py")


@pytest.fixture(scope="module")
def found(torch_python: Path) -> list[dict[str, Any]]:
    """What each of two ranks saw."""
    env = {**os.environ, "PYTHONPATH": str(worker_path()), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    meet = {"PACELINE_JOIN": f"127.0.0.1:{free_ports(1)[0]}", "PACELINE_SECRET": secrets.token_hex(16)}
    ranks = [
        subprocess.Popen(
            [str(torch_python), str(WORKER)], env={**env, **meet, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=90)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_lars_is_its_equation(found: list[dict[str, Any]]) -> None:
    weights, bias = np.array(WEIGHTS), np.array(BIAS)
    velocity, plain = np.zeros((2, 2)), np.zeros(2)
    for of_weights, of_bias in GRADIENTS:
        slope = np.linalg.norm(of_weights) + 0.1 * np.linalg.norm(weights)
        local = 0.02 * np.linalg.norm(weights) / slope
        velocity = 0.9 * velocity + local * (np.array(of_weights) + 0.1 * weights)
        plain = 0.9 * plain + np.array(of_bias)
        weights, bias = weights - 0.5 * velocity, bias - 0.5 * plain
    assert found[0]["lars"][0] == pytest.approx(weights.ravel(), rel=1e-12)
    assert found[0]["lars"][1] == pytest.approx(bias, rel=1e-12)


def test_lars_moves_matrices_by_their_size_not_by_the_gradients(found: list[dict[str, Any]]) -> None:
    assert found[0]["lars_of_larger"][0] == pytest.approx(found[0]["lars_of_smaller"][0])
    assert found[0]["lars_of_larger"][1] != pytest.approx(found[0]["lars_of_smaller"][1])


def test_lamb_is_its_equation(found: list[dict[str, Any]]) -> None:
    values = [np.array(WEIGHTS), np.array(BIAS)]
    first, second = [np.zeros((2, 2)), np.zeros(2)], [np.zeros((2, 2)), np.zeros(2)]
    for step, pair in enumerate(GRADIENTS, start=1):
        for i, gradient in enumerate(np.array(part) for part in pair):
            first[i] = 0.9 * first[i] + 0.1 * gradient
            second[i] = 0.999 * second[i] + 0.001 * gradient**2
            move = (first[i] / (1 - 0.9**step)) / (np.sqrt(second[i] / (1 - 0.999**step)) + 1e-6)
            move = move + 0.1 * values[i]
            if values[i].ndim > 1:
                move = move * np.linalg.norm(values[i]) / np.linalg.norm(move)
            values[i] = values[i] - 0.1 * move
    assert found[0]["lamb"][0] == pytest.approx(values[0].ravel(), rel=1e-12)
    assert found[0]["lamb"][1] == pytest.approx(values[1], rel=1e-12)


def test_the_rate_of_each_step_follows_the_recipe_and_the_optimizers_own_stays(found: list[dict[str, Any]]) -> None:
    assert found[0]["steps"] == pytest.approx([0.1, 0.175, 0.25, 0.325, 0.4, 0.4, 0.1])
    assert "works on Adam and AdamW, this is SGD" in found[0]["refused"]


def test_the_noise_scale_is_that_of_all_ranks_and_the_same_on_all(found: list[dict[str, Any]]) -> None:
    assert found[0]["noise"] == found[1]["noise"] == pytest.approx(SIGMA**2 / 0.5**2, rel=0.25), DIMENSIONS
