"""Groups of which some hold their model in shards, a syncer between them: what whole models compute, to the bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.runtime.samples import epoch_order
from tests.integration.runtime.conftest import Ranks, StartRanks, StartSyncers, Syncers

pytestmark = pytest.mark.full
PATIENCE = 600.0
SAMPLES, BATCH, RATE = 128, 16, 2.0**-8
Start = Any


@pytest.fixture
def start(ranks: StartRanks, tmp_path: Path) -> Start:
    """Starts the ranks of one group."""

    def run(syncer: Syncers, name: str, units: list[list[int]], *, local_steps: int = 1, **options: Any) -> Ranks:
        env = syncer.env(name, PACELINE_LOCAL_STEPS=local_steps, PACELINE_GROUP_SHARE=0.5)
        store = tmp_path / f"store-{name}-{len(list(tmp_path.iterdir()))}"
        sharded = {"units": units, "store": str(store)} if len(units) < max(map(max, units)) + 1 else {}
        return ranks("sharded_groups", sum(map(len, units)), env=env, **sharded, **options)

    return run


def by_hand(*, epochs: int, local_steps: int) -> np.ndarray:
    """Two groups that wait for each other, in float64: each round is the mean of what both came to."""
    inputs, targets = data()
    sizes = ((5, 6), (5,), (5, 6))
    theta = [(np.arange(np.prod(shape)) * (7 + number) % 5 - 2.0).reshape(shape) for number, shape in enumerate(sizes)]
    lease = BATCH * local_steps
    for epoch in range(epochs):
        order = epoch_order(SAMPLES, seed=0, epoch=epoch)
        for begin in range(0, SAMPLES, 2 * lease):
            ends = [
                local(theta, inputs, targets, order[at : at + lease].reshape(local_steps, BATCH))
                for at in (begin, begin + lease)
            ]
            theta = [(one + other) / 2 for one, other in zip(*ends, strict=True)]
    return np.concatenate([part.ravel() for part in theta])


def local(theta: list[np.ndarray], inputs: np.ndarray, targets: np.ndarray, steps: np.ndarray) -> list[np.ndarray]:
    """Some steps of one group."""
    weights, bias, squared = theta
    for batch in steps:
        x, wanted = inputs[batch], targets[batch]
        signs = np.sign(x @ weights.T + bias + x**2 @ squared.T - wanted)
        weights, bias, squared = (
            weights - RATE * signs.T @ x,
            bias - RATE * signs.sum(0),
            squared - RATE * signs.T @ x**2,
        )
    return [weights, bias, squared]


def data() -> tuple[np.ndarray, np.ndarray]:
    """The samples of the worker."""
    sample, column = np.arange(SAMPLES)[:, None], np.arange(6)
    inputs = (sample * 7 + column * 3 + sample * column) % 5 - 2.0
    return inputs, (sample * 11 + column[:5] * 5 + sample * column[:5] * 3) % 41 - 20.0


def uses(*jobs: Ranks) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch was used."""
    seen: Counter[tuple[int, int]] = Counter()
    for job in jobs:
        for rank in range(job.size):
            seen.update((record["epoch"], sample) for record in job.steps(rank) for sample in record["samples"])
    return seen


def every(epochs: int) -> set[tuple[int, int]]:
    return {(epoch, sample) for epoch in range(epochs) for sample in range(SAMPLES)}


@pytest.mark.parametrize(("local_steps", "other"), [(1, [[0]]), (2, [[0, 1]])], ids=["each-step", "local-steps"])
def test_groups_with_shards_equal_a_calculation_by_hand(
    start: Start, syncers: StartSyncers, local_steps: int, other: list[list[int]]
) -> None:
    """A sharded pair and a whole rank as one group; a whole rank, or another pair, as the other."""
    syncer = syncers(2, groups=2, quorum=2)
    jobs = [
        start(syncer, "mixed", [[0, 1], [2]], epochs=3, local_steps=local_steps),
        start(syncer, "other", other, epochs=3, local_steps=local_steps),
    ]
    found = [rank for job in jobs for rank in job.wait(timeout=PATIENCE)]
    for rank in found:
        assert np.array_equal(rank["parameters"], by_hand(epochs=3, local_steps=local_steps))
    assert uses(*jobs) == dict.fromkeys(every(3), 1)
    assert found[0]["held"] + found[1]["held"] == found[2]["held"] == 65


def test_groups_that_do_not_wait_end_with_the_same_parameters(start: Start, syncers: StartSyncers) -> None:
    syncer = syncers(1, groups=2, quorum=1)
    jobs = [
        start(syncer, "shards", [[0, 1]], epochs=4, local_steps=2, compress="half"),
        start(syncer, "whole", [[0]], epochs=4, local_steps=2, compress="half"),
    ]
    found = [rank for job in jobs for rank in job.wait(timeout=PATIENCE)]
    assert len({rank["hash"] for rank in found}) == 1
    assert uses(*jobs) == dict.fromkeys(every(4), 1)


def test_a_job_goes_on_from_its_checkpoint_with_other_units(
    start: Start, syncers: StartSyncers, tmp_path: Path
) -> None:
    """The first job ends after two epochs; the second has a syncer of its own, and begins where the first was."""
    path = str(tmp_path / "state.safetensors")
    first, second = syncers(2, groups=2, quorum=2), syncers(1, groups=2, quorum=2)
    jobs = [
        start(first, "shards", [[0, 1]], epochs=2, checkpoint=path),
        start(first, "whole", [[0]], epochs=2, checkpoint=path),
    ]
    for job in jobs:
        job.wait(timeout=PATIENCE)
    assert sorted(one.name for one in tmp_path.glob("*.safetensors")) == [
        "state.of-shards.safetensors",
        "state.of-whole.safetensors",
    ]
    again = [
        start(second, "mixed", [[0, 1], [2]], epochs=4, checkpoint=path),
        start(second, "whole", [[0]], epochs=4, checkpoint=path),
    ]
    for rank in [rank for job in again for rank in job.wait(timeout=PATIENCE)]:
        assert np.array_equal(rank["parameters"], by_hand(epochs=4, local_steps=1))
    assert uses(*again) == dict.fromkeys(every(4) - every(2), 1)


def test_a_group_whose_unit_dies_goes_on_without_it(start: Start, syncers: StartSyncers) -> None:
    """The unit's first rank speaks for the group; the whole rank beside it takes that over."""
    syncer = syncers(1, groups=2, quorum=2, heartbeat_timeout=60.0)
    mixed = start(syncer, "mixed", [[0, 1], [2]], epochs=4, local_steps=2, dies=1, die_at=5)
    other = start(syncer, "other", [[0]], epochs=4, local_steps=2)
    mixed.processes[1].wait(PATIENCE)
    left, goes_on = mixed.wait(0, 2, timeout=PATIENCE)
    assert left["kind"] == "TrainingLost"
    assert goes_on["views"][-1] == 1
    for rank in (goes_on, *other.wait(timeout=PATIENCE)):
        assert np.array_equal(rank["parameters"], by_hand(epochs=4, local_steps=2))


def test_a_dead_unit_is_started_again_from_its_checkpoint(start: Start, syncers: StartSyncers, tmp_path: Path) -> None:
    """All ranks of a group die; the other group goes on with its samples, and in its twelfth step the group is back."""
    syncer = syncers(1, groups=2, quorum=2, heartbeat_timeout=5.0)
    checkpoint: dict[str, Any] = {"checkpoint": str(tmp_path / "state.safetensors"), "every": 2}
    back = str(tmp_path / "back")
    unit = start(syncer, "unit", [[0, 1]], epochs=4, dies=1, die_at=5, **checkpoint)
    other = start(syncer, "other", [[0]], epochs=4, waits_for=back, waits_at=12)
    assert unit.wait(0, timeout=PATIENCE)[0]["kind"] == "TrainingLost"
    again = start(syncer, "unit", [[0, 1]], epochs=4, says=back, **checkpoint)
    found = [rank for job in (again, other) for rank in job.wait(timeout=PATIENCE)]
    assert len({rank["hash"] for rank in found}) == 1
    assert len(again.steps(0)) > 1
    assert set(uses(unit, again, other)) == every(4)


def test_what_shards_cannot_have_is_refused(start: Start, syncers: StartSyncers) -> None:
    syncer = syncers(1, groups=1, quorum=1)
    for found in start(syncer, "unit", [[0, 1]], epochs=1, compress="int8").wait(timeout=PATIENCE):
        assert "int8" in found["error"]
        assert "half" in found["hint"]
