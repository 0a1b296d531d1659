"""Groups that exchange through the syncer: every sample once, no committed update lost, staleness as asked."""

from __future__ import annotations

import signal
from collections import Counter
from typing import Any

import pytest

from tests.integration.runtime.conftest import Ranks, StartRanks, StartSyncers
from tests.integration.runtime.test_faults import until

EPOCHS, SAMPLES = 6, 120
OPTIONS: dict[str, Any] = {"epochs": EPOCHS, "samples": SAMPLES, "batch": 24, "per_sample": 0.004}


def check_samples(jobs: list[Ranks], sizes: list[int]) -> None:
    """Every sample of every epoch was used by exactly one group."""
    uses: Counter[tuple[int, int]] = Counter()
    for job, size in zip(jobs, sizes, strict=True):
        for rank in range(size):
            uses.update((record["epoch"], sample) for record in job.steps(rank) for sample in record["samples"])
    assert set(uses) == {(epoch, sample) for epoch in range(EPOCHS) for sample in range(SAMPLES)}
    assert set(uses.values()) == {1}


def steps_while_both_work(fast: Ranks, slow: Ranks) -> tuple[int, int]:
    """How many steps each did while the other was there too: processes do not start at the same moment."""
    moments = [[record["at"] for record in job.steps(0)] for job in (fast, slow)]
    begin, end = max(at[0] for at in moments), min(at[-1] for at in moments)
    first, second = (sum(begin <= moment <= end for moment in at) for at in moments)
    return first, second


@pytest.mark.parametrize(
    ("quorum", "local_steps", "compress"),
    [
        pytest.param(1, 1, "none", marks=pytest.mark.full),
        (2, 1, "int8"),
        pytest.param(2, 4, "none", marks=pytest.mark.full),
        pytest.param(1, 4, "int8", marks=pytest.mark.full),
    ],
)
def test_two_groups_use_every_sample_once(
    ranks: StartRanks, syncers: StartSyncers, quorum: int, local_steps: int, compress: str
) -> None:
    syncer = syncers(2, groups=2, quorum=quorum)
    more = {"PACELINE_LOCAL_STEPS": local_steps, "PACELINE_GROUP_SHARE": 0.5}
    options = {**OPTIONS, "per_sample": 0.01, "compress": compress}
    fast = ranks("epochs", 1, env=syncer.env("fast", **more), **{**options, "speeds": [4.0]})
    slow = ranks("epochs", 1, env=syncer.env("slow", **more), **{**options, "speeds": [1.0]})
    fast.wait()
    slow.wait()
    check_samples([fast, slow], [1, 1])
    if quorum == 1:
        taken, left = steps_while_both_work(fast, slow)
        assert taken > 1.5 * left, "a group that is four times as fast takes more of the queue"


@pytest.mark.full
@pytest.mark.parametrize(("rule", "drops"), [({"name": "discard", "limit": 0}, True), ({"name": "keep"}, False)])
def test_the_staleness_rule_of_the_settings_holds(
    ranks: StartRanks, syncers: StartSyncers, rule: dict[str, Any], drops: bool
) -> None:
    syncer = syncers(1, groups=2, quorum=1)
    options = {**OPTIONS, "staleness": rule}
    env = {"PACELINE_GROUP_SHARE": 0.5}
    fast = ranks("epochs", 1, env=syncer.env("fast", **env), **{**options, "speeds": [4.0]})
    slow = ranks("epochs", 1, env=syncer.env("slow", **env), **{**options, "speeds": [1.0]})
    facts = [job.wait()[0]["syncer"] for job in (fast, slow)]
    assert any(fact["dropped"] > 0 for fact in facts) == drops
    assert any(fact["largest_staleness"] > 0 for fact in facts) != drops


def test_a_killed_shard_comes_back_without_loss(ranks: StartRanks, syncers: StartSyncers) -> None:
    syncer = syncers(2, groups=2, quorum=1)
    more = {"PACELINE_LOCAL_STEPS": 2, "PACELINE_GROUP_SHARE": 0.5}
    jobs = [ranks("epochs", 1, env=syncer.env(name, **more), **OPTIONS) for name in ("a", "b")]
    until(jobs[0], 0, 3)
    for index in (0, 1):
        syncer.processes[index].kill()
        syncer.processes[index].wait()
        syncer.start(index)
    for job in jobs:
        job.wait()
    check_samples(jobs, [1, 1])


@pytest.mark.full
def test_a_group_survives_the_death_of_the_rank_that_speaks(ranks: StartRanks, syncers: StartSyncers) -> None:
    syncer = syncers(1, groups=2, quorum=2)
    more = {"PACELINE_LOCAL_STEPS": 2, "PACELINE_GROUP_SHARE": 0.5}
    pair = ranks("epochs", 2, env=syncer.env("pair", **more), **OPTIONS)
    single = ranks("epochs", 1, env=syncer.env("single", **more), **OPTIONS)
    until(pair, 1, 3)
    pair.processes[0].kill()
    found = pair.wait(1)[0]
    single.wait()
    assert found["views"][-1][1] == 1


@pytest.mark.full  # without training: test_shard.py
def test_a_dead_group_gives_its_samples_back(ranks: StartRanks, syncers: StartSyncers) -> None:
    syncer = syncers(1, groups=2, quorum=1, heartbeat_timeout=1.0)
    more = {"PACELINE_LOCAL_STEPS": 2, "PACELINE_GROUP_SHARE": 0.5}
    jobs = [ranks("epochs", 1, env=syncer.env(name, **more), **OPTIONS) for name in ("a", "b")]
    until(jobs[0], 0, 3)
    jobs[1].processes[0].kill()
    jobs[0].wait()
    uses = {(r["epoch"], sample) for job in jobs for r in job.steps(0) for sample in r["samples"]}
    assert uses == {(epoch, sample) for epoch in range(EPOCHS) for sample in range(SAMPLES)}


@pytest.mark.full
def test_a_group_that_hangs_is_not_waited_for_and_comes_back(ranks: StartRanks, syncers: StartSyncers) -> None:
    syncer = syncers(2, groups=2, quorum=2, heartbeat_timeout=1.0)
    more = {"PACELINE_LOCAL_STEPS": 2, "PACELINE_GROUP_SHARE": 0.5}
    options = {**OPTIONS, "epochs": 12}
    stays, hangs = (ranks("epochs", 1, env=syncer.env(name, **more), **options) for name in ("stays", "hangs"))
    until(stays, 0, 3)
    until(hangs, 0, 3)
    hangs.processes[0].send_signal(signal.SIGSTOP)
    until(stays, 0, len(stays.steps(0)) + 12, timeout=20)
    hangs.processes[0].send_signal(signal.SIGCONT)
    found = [job.wait()[0] for job in (stays, hangs)]
    assert found[0]["hash"] == found[1]["hash"], "both end with the common parameters"
    assert "other groups have its samples" in hangs.log(0)
    used = {(r["epoch"], sample) for job in (stays, hangs) for r in job.steps(0) for sample in r["samples"]}
    assert used == {(epoch, sample) for epoch in range(12) for sample in range(SAMPLES)}
