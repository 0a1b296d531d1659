"""Any split of a batch computes what one process computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.runtime.conftest import Ranks, StartRanks, StartSyncers


@pytest.mark.parametrize(
    ("shares", "chunk"),
    [
        ([25, 5], None),
        pytest.param([29, 1], None, marks=pytest.mark.full),
        ([30, 0], None),
        pytest.param([0, 30], None, marks=pytest.mark.full),
        pytest.param([25, 5], 4, marks=pytest.mark.full),
        pytest.param([17, 9, 4], None, marks=pytest.mark.full),
    ],
    ids=["uneven", "one-sample", "nothing", "nothing-on-rank-0", "chunks", "three"],
)
def test_gradients_of_any_split_equal_one_process(ranks: StartRanks, shares: list[int], chunk: int | None) -> None:
    alone = ranks("gradients", 1, steps=2).wait()[0]
    together = ranks("gradients", len(shares), shares=shares, chunk=chunk, steps=2).wait()
    assert len({found["hash"] for found in together}) == 1
    difference = np.abs(np.array(together[0]["parameters"]) - np.array(alone["parameters"])).max()
    assert difference < 1e-12


@pytest.mark.parametrize(("chunk", "norm"), [(4, False), pytest.param(None, True, marks=pytest.mark.full)])
def test_a_mean_over_counted_items_equals_one_process(ranks: StartRanks, chunk: int | None, norm: bool) -> None:
    """Classes that count differently or not at all, as tokens and their padding: ranks have different sums of them."""
    options: dict[str, Any] = {"weights": [1.0, 5.0, 0.0, 0.5, 2.0], "steps": 2, "norm": norm}
    alone = ranks("gradients", 1, **options).wait()[0]
    for found in ranks("gradients", 3, shares=[27, 1, 2], chunk=chunk, **options).wait():
        assert np.abs(np.array(found["parameters"]) - np.array(alone["parameters"])).max() < 1e-10


def test_synchronised_batchnorm_equals_one_process(ranks: StartRanks) -> None:
    alone = ranks("gradients", 1, norm=True, steps=2).wait()[0]
    together = ranks("gradients", 2, norm=True, steps=2, shares=[23, 7]).wait()
    for found in together:
        for name in ("parameters", "buffers"):
            assert np.abs(np.array(found[name]) - np.array(alone[name])).max() < 1e-10, name
    assert alone["buffers"][-1] == 2, "batches that the running mean and variance have seen"


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.full)])
def test_equal_split_equals_ddp_bit_for_bit(ranks: StartRanks, tmp_path: Path, size: int) -> None:
    found = ranks("against_ddp", size, steps=8, store=str(tmp_path / "store")).wait()
    hashes = {value for result in found for value in result.values()}
    assert len(hashes) == 1, found


def test_groups_that_all_exchange_after_every_step_equal_one_process(ranks: StartRanks, syncers: StartSyncers) -> None:
    """Hierarchical synchronous training; progress is a difference of parameters, so equal up to float32 rounding."""
    alone = ranks("hierarchy", 1).wait()[0]
    syncer = syncers(2, groups=2, quorum=2)
    more = {"PACELINE_LOCAL_STEPS": 1, "PACELINE_GROUP_SHARE": 0.5}
    jobs = [ranks("hierarchy", 1, env=syncer.env(name, **more)) for name in ("a", "b")]
    for job in jobs:
        assert job.wait()[0] == pytest.approx(alone, abs=2e-6)


@pytest.fixture(scope="module")
def unequal(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What two ranks saw that trained four epochs, one three times as fast as the other."""
    options = {"epochs": 4, "samples": 100, "batch": 32, "speeds": [3.0, 1.0], "per_sample": 0.003}
    job = Ranks(torch_python, tmp_path_factory.mktemp("unequal"), "epochs", options, 2, {})
    try:
        yield job.wait()
    finally:
        job.stop()


def test_every_sample_once_per_epoch_while_shares_change(unequal: list[dict[str, Any]]) -> None:
    uses = Counter((use["epoch"], sample) for result in unequal for use in result["used"] for sample in use["samples"])
    assert set(uses) == {(epoch, sample) for epoch in range(4) for sample in range(100)}
    assert set(uses.values()) == {1}
    assert len(set(unequal[0]["shares"])) == 2, "shares of unequal devices do not stay equal"


def test_ranks_hold_equal_parameters_after_every_step(unequal: list[dict[str, Any]]) -> None:
    hashes = [{use["step"]: use["hash"] for use in result["used"]} for result in unequal]
    common = set(hashes[0]) & set(hashes[1])
    assert len(common) >= 4
    assert all(hashes[0][step] == hashes[1][step] for step in common)
