"""Shards that are read from their beginning on, as numbered samples."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator

import pytest

from paceline.errors import InputError
from paceline.runtime.data.stream import ShardedSamples

COUNTS = {"a": 3, "none": 0, "b": 4, "c": 1}
OPENED: list[str] = []


def read(shard: str) -> Iterator[str]:
    OPENED.append(shard)
    return (f"{shard}{number}" for number in range(COUNTS[shard]))


@pytest.fixture(autouse=True)
def _fresh() -> None:
    OPENED.clear()


def test_samples_have_numbers_and_a_shard_is_opened_once_in_order() -> None:
    samples = ShardedSamples(COUNTS, read, str.upper)
    assert [samples[number] for number in range(len(samples))] == ["A0", "A1", "A2", "B0", "B1", "B2", "B3", "C0"]
    assert OPENED == ["a", "b", "c"]


def test_reading_on_passes_over_samples_and_reading_back_opens_anew() -> None:
    decoded: list[str] = []
    samples = ShardedSamples(COUNTS, read, lambda found: decoded.append(found) or found)
    assert [samples[number] for number in (3, 5, 6, 6, 4)] == ["b0", "b2", "b3", "b3", "b1"]
    assert OPENED == ["b", "b", "b"]
    assert decoded == ["b0", "b2", "b3", "b3", "b1"], "only what was asked for"


def test_an_epoch_has_every_sample_once_and_shards_together_in_another_order_each_time() -> None:
    samples = ShardedSamples(COUNTS, read)
    orders = {tuple(samples.epoch_order(seed=seed, epoch=epoch).tolist()) for seed in (0, 1) for epoch in range(9)}
    assert 2 < len(orders) <= 6
    for order in orders:
        assert sorted(order) == list(range(8))
        assert "".join(map(str, order)).count("012") == "".join(map(str, order)).count("3456") == 1
    again = ShardedSamples(COUNTS, read).epoch_order(seed=1, epoch=8)
    assert again.tolist() == samples.epoch_order(seed=1, epoch=8).tolist()


def test_another_process_opens_shards_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = ShardedSamples(COUNTS, read)
    assert samples[3] == "b0"
    assert pickle.loads(pickle.dumps(samples))[4] == "b1"
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert samples[4] == "b1"
    assert OPENED == ["b", "b", "b"]


@pytest.mark.parametrize("index", [-1, 8])
def test_no_sample_has_a_number_outside(index: int) -> None:
    with pytest.raises(IndexError):
        ShardedSamples(COUNTS, read)[index]


def test_a_shard_with_fewer_samples_than_announced_is_one_clear_error() -> None:
    with pytest.raises(InputError, match="c ends before its sample 2, expected 2 samples"):
        ShardedSamples({**COUNTS, "c": 2}, read)[8]
