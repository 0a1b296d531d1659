"""DataLoaders with workers: every sample counts once, whatever the shares do, whoever dies, wherever it was stopped."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.environments import worker_path
from tests.integration.runtime.conftest import Ranks, StartRanks

CHECKS = Path(__file__).with_name("loader_checks.py")
EVERY_SAMPLE = {(epoch, sample): 1 for epoch in range(2) for sample in range(90)}


def uses(*jobs: Ranks) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch was in a committed step."""
    records = [record for job in jobs for rank in range(job.size) for record in job.steps(rank)]
    return Counter((record["epoch"], sample) for record in records for sample in record["samples"])


def sizes(job: Ranks, rank: int) -> Sequence[int]:
    return [len(record["samples"]) for record in job.steps(rank)]


@pytest.mark.full  # two processes with workers
def test_every_sample_counts_once_while_shares_change(ranks: StartRanks) -> None:
    job = ranks("loader", 2, chunk=4)
    job.wait()
    assert uses(job) == EVERY_SAMPLE
    assert len(set(sizes(job, 1))) > 4, "shares have changed"


STREAM = pytest.mark.parametrize("stream", [False, True], ids=["numbered", "shards"])


@pytest.mark.full
@STREAM
def test_what_a_killed_rank_had_prefetched_is_used_by_the_other(ranks: StartRanks, stream: bool) -> None:
    job = ranks("loader", 2, kill=[1, 6], stream=stream)
    job.wait(0)
    assert job.processes[1].wait() == -9
    assert uses(job) == EVERY_SAMPLE
    assert max(record["step"] for record in job.steps(1)) == 6


@pytest.mark.full
@STREAM
def test_one_rank_goes_on_where_two_stopped(ranks: StartRanks, tmp_path: Path, stream: bool) -> None:
    checkpoint = str(tmp_path / "state.safetensors")
    first = ranks("loader", 2, checkpoint=checkpoint, leave=6, stream=stream)
    first.wait()
    second = ranks("loader", 1, checkpoint=checkpoint, stream=stream)
    second.wait()
    assert uses(first, second) == EVERY_SAMPLE
    assert min(record["step"] for record in second.steps(0)) == 7


@pytest.mark.full
def test_a_loop_that_breaks_off_has_saved_its_last_step(ranks: StartRanks, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "state.safetensors")
    first = ranks("loader", 1, checkpoint=checkpoint, breaks=3)
    first.wait()
    second = ranks("loader", 1, checkpoint=checkpoint)
    second.wait()
    assert uses(first, second) == EVERY_SAMPLE
    assert min(record["step"] for record in second.steps(0)) == 4


@pytest.fixture(scope="module")
def found(torch_python: Path) -> Any:
    env = {**os.environ, "PYTHONPATH": str(worker_path())}
    done = subprocess.run([torch_python, CHECKS], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("loader", "def loaders(sampler)"),
        ("own_sampler", "does not use the sampler"),
        ("own_batch", "batch_size=2; a rank's share decides"),
        ("a_class", "the class Numbers"),
        ("iterable", "IterableDataset"),
        ("no_loader", "returned a list"),
        ("out_of_order", "in_order=False"),
        ("two_collates", "collate_fn"),
        ("empty", "the dataset is empty"),
    ],
)
def test_what_cannot_be_dealt_out_is_refused(found: Any, kind: str, words: str) -> None:
    assert words in found["refused"][kind]


def test_what_is_not_wanted_any_more_is_dropped_on_arrival(found: Any) -> None:
    assert found["dropped"] == [[0, 1], [2], [7, 8], [9], [3, 4], [5]]


def test_a_batch_is_what_the_collate_function_makes(found: Any) -> None:
    assert found["contents"] == {
        "pair": ["Tensor", "Tensor"],
        "named": ["Named", "NoneType"],
        "table": ["dict", "NoneType"],
    }


def test_work_of_the_workers_is_the_cost_of_input(found: Any) -> None:
    (work, waited), (alone, stood) = found["work"]
    assert 0.1 <= 2 * work <= waited, "two samples of 0.05 s each, and two workers that do as much beside each other"
    assert 0.1 <= alone == stood


def test_a_hidden_loader_costs_nothing_and_a_slow_one_hides_compute(found: Any) -> None:
    assert found["costs"] == [3.0, 5.0, 2.0]
