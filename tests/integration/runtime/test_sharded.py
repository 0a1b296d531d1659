"""Ranks that hold one model together by FSDP2, beside ranks that hold it whole, compute what one process computes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.runtime.conftest import StartRanks

pytestmark = pytest.mark.full
PATIENCE = 600.0
"""Seconds for up to six processes on a busy machine."""


def test_a_sharded_pair_and_a_single_rank_equal_one_process(ranks: StartRanks, tmp_path: Path) -> None:
    alone = ranks("sharded", 1, steps=10).wait(timeout=PATIENCE)[0]
    found = ranks("sharded", 3, steps=10, units=[[0, 1], [2]], store=str(tmp_path / "store")).wait(timeout=PATIENCE)
    assert len({rank["hash"] for rank in found}) == 1
    difference = np.abs(np.array(found[0]["parameters"]) - np.array(alone["parameters"])).max()
    assert difference < 1e-12
    whole = len(alone["parameters"])
    assert found[2]["held"] == whole
    assert found[0]["held"] + found[1]["held"] == whole


def test_units_of_three_sizes_with_adam_and_clipping_equal_one_process(ranks: StartRanks, tmp_path: Path) -> None:
    """Three, two and one ranks: rows are cut at different places, and every part has its owners."""
    how: dict[str, Any] = {"optimizer": "adam", "clip": 0.5, "steps": 8}
    alone = ranks("sharded", 1, **how).wait(timeout=PATIENCE)[0]
    found = ranks("sharded", 6, units=[[0, 3, 4], [1, 5], [2]], store=str(tmp_path / "store"), **how).wait(
        timeout=PATIENCE
    )
    assert len({rank["hash"] for rank in found}) == 1
    difference = np.abs(np.array(found[0]["parameters"]) - np.array(alone["parameters"])).max()
    assert difference < 1e-10


def test_a_checkpoint_of_shards_is_whole_and_resumed_by_one_process(ranks: StartRanks, tmp_path: Path) -> None:
    path = str(tmp_path / "state.safetensors")
    alone = ranks("sharded", 1, steps=12).wait(timeout=PATIENCE)[0]
    ranks("sharded", 2, steps=5, units=[[0, 1]], store=str(tmp_path / "one"), checkpoint=path).wait(timeout=PATIENCE)
    ranks("sharded", 1, steps=9, checkpoint=path).wait(timeout=PATIENCE)
    found = ranks("sharded", 2, steps=12, units=[[0, 1]], store=str(tmp_path / "two"), checkpoint=path).wait(
        timeout=PATIENCE
    )
    assert found[0]["hash"] == found[1]["hash"]
    assert np.abs(np.array(found[0]["parameters"]) - np.array(alone["parameters"])).max() < 1e-12


def test_the_death_of_a_shard_ends_its_unit_and_the_others_go_on(ranks: StartRanks, tmp_path: Path) -> None:
    how: dict[str, Any] = {"units": [[0, 1], [2]], "store": str(tmp_path / "store"), "dies": 1, "die_at": 4}
    job = ranks("sharded", 3, steps=12, **how)
    job.processes[1].wait(PATIENCE)
    left, goes_on = job.wait(0, 2, timeout=PATIENCE)
    assert left["kind"] == "TrainingLost"
    assert "shards" in left["error"]
    alone = ranks("sharded", 1, steps=12).wait(timeout=PATIENCE)[0]
    assert np.abs(np.array(goes_on["parameters"]) - np.array(alone["parameters"])).max() < 1e-12
    assert goes_on["views"][-1] == 1
    uses = Counter(step for step, _, _ in goes_on["seen"])
    assert set(uses) == set(range(12))


def test_the_death_of_a_single_rank_leaves_the_unit(ranks: StartRanks, tmp_path: Path) -> None:
    how: dict[str, Any] = {"units": [[0, 1], [2]], "store": str(tmp_path / "store"), "dies": 2, "die_at": 4}
    job = ranks("sharded", 3, steps=12, **how)
    job.processes[2].wait(PATIENCE)
    found = job.wait(0, 1, timeout=PATIENCE)
    alone = ranks("sharded", 1, steps=12).wait(timeout=PATIENCE)[0]
    for rank in found:
        assert np.abs(np.array(rank["parameters"]) - np.array(alone["parameters"])).max() < 1e-12
    assert [rank["views"][-1] for rank in found] == [2, 2]


@pytest.mark.parametrize(
    ("units", "said"),
    [([[0, 1], [1]], "each of 2 ranks once"), ([[0], [2]], "each of 2 ranks once")],
    ids=["twice", "missing"],
)
def test_units_that_are_not_the_ranks_are_refused(ranks: StartRanks, tmp_path: Path, units: Any, said: str) -> None:
    for found in ranks("sharded", 2, steps=1, units=units, store=str(tmp_path / "store")).wait(timeout=PATIENCE):
        assert said in found["error"]


def test_without_torchrun_and_without_a_process_group_it_says_so(ranks: StartRanks) -> None:
    assert "torchrun" in ranks("sharded", 1, steps=1, units=[[0]]).wait(timeout=PATIENCE)[0]["hint"]
