"""Streams whose samples nobody has counted: every sample counts once, through kills, late joiners and restarts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.integration.runtime.conftest import Ranks, StartRanks

EVERY_SAMPLE = {(epoch, sample): 1 for epoch in range(2) for sample in range(90)}


def uses(*jobs: Ranks) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch was in a committed step."""
    records = [record for job in jobs for rank in range(job.size) for record in job.steps(rank)]
    return Counter((record["epoch"], sample) for record in records for sample in record["samples"])


@pytest.mark.full
def test_every_sample_of_a_stream_counts_once_and_ranks_stay_alike(ranks: StartRanks) -> None:
    job = ranks("stream", 3, chunk=3)
    first, *others = job.wait()
    assert uses(job) == EVERY_SAMPLE
    assert all(other == first for other in others)
    sizes = [record["size"] for record in job.steps(0) if record["epoch"] == 0]
    assert sum(sizes) == 90
    assert sizes[0] == 12


@pytest.mark.full
def test_the_shards_of_a_killed_rank_are_read_on_by_the_others(ranks: StartRanks) -> None:
    job = ranks("stream", 3, kill=[1, 3])
    first, last = job.wait(0, 2)
    assert job.processes[1].wait() == -9
    assert uses(job) == EVERY_SAMPLE
    assert first == last
    assert max(record["step"] for record in job.steps(1)) == 3


@pytest.mark.full
def test_a_late_joiner_takes_shards_that_nobody_has_read(ranks: StartRanks, tmp_path: Path) -> None:
    others = {"pause": 0.3, "awaits": str(tmp_path / "late")}
    job = ranks("stream", 2, kill=[1, 2], **others)
    job.processes[1].wait()
    job.options = others
    job.start(1, late=True)
    first, second = job.wait()
    assert uses(job) == EVERY_SAMPLE
    assert first == second
    assert any(record["samples"] for record in job.steps(1) if record["step"] > 3), "it has had samples again"


@pytest.mark.full
def test_streams_go_on_on_another_number_of_ranks(ranks: StartRanks, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "state.safetensors")
    first = ranks("stream", 2, checkpoint=checkpoint, leave=4)
    first.wait()
    second = ranks("stream", 3, checkpoint=checkpoint, workers=0)
    second.wait()
    assert uses(first, second) == EVERY_SAMPLE
    assert min(record["step"] for record in second.steps(0)) == 5


@pytest.mark.full
def test_more_ranks_than_shards_train_with_what_there_is(ranks: StartRanks) -> None:
    job = ranks("stream", 2, shards=1, batch=4, workers=1)
    job.wait()
    assert uses(job) == {(epoch, sample): 1 for epoch in range(2) for sample in range(9)}


@pytest.mark.full
def test_a_rank_with_a_slow_stream_takes_fewer_samples(ranks: StartRanks) -> None:
    job = ranks("stream", 2, {"SLOW_1": "0.02"}, workers=1)
    job.wait()
    assert uses(job) == EVERY_SAMPLE
    later = [record["shares"] for record in job.steps(0) if record["epoch"] == 1][:3]
    assert all(fast > 2 * slow for fast, slow in later), later
