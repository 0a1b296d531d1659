"""The syncer's server and client over real sockets, with a kill in between, without any training."""

from __future__ import annotations

import json
import os
import random
import resource
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench.sites.local import free_ports
from paceline.errors import TrainingLost
from paceline.runtime.syncer.connections import LeaseRevoked, ShardConnections, as_received
from paceline.runtime.syncer.rounds import StalenessRule
from paceline.runtime.syncer.shard import UNUSED

SECRET = secrets.token_hex(8)


class Syncer:
    def __init__(self, folder: Path, shards: int, **policy: Any) -> None:
        self.folder, self.ports = folder, free_ports(shards)
        self.processes: list[subprocess.Popen[bytes]] = []
        for index, port in enumerate(self.ports):
            settings = {"index": index, "folder": str(folder), "address": "127.0.0.1", "port": port, **policy}
            (folder / f"settings-{index}.json").write_text(json.dumps(settings))
            self.processes.append(self.start(index))

    def start(self, index: int) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "paceline.runtime.syncer.shard", str(self.folder / f"settings-{index}.json")]
        with (self.folder / f"{index}.log").open("ab") as log:
            return subprocess.Popen(argv, env={**os.environ, "PACELINE_SECRET": SECRET}, stdout=log, stderr=log)

    def restart(self, *chosen: int) -> None:
        for index in chosen or range(len(self.processes)):
            self.processes[index].kill()
            self.processes[index].wait()
            self.processes[index] = self.start(index)

    def client(self, group: str, timeout: float = 20.0) -> ShardConnections:
        return ShardConnections(
            [("127.0.0.1", port) for port in self.ports], SECRET.encode(), group=group, timeout=timeout
        )

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def syncer(tmp_path: Path) -> Iterator[Any]:
    made: list[Syncer] = []

    def make(shards: int, **policy: Any) -> Syncer:
        made.append(Syncer(tmp_path, shards, **policy))
        return made[-1]

    yield make
    for item in made:
        item.stop()


def start(client: ShardConnections, size: int = 10, rule: StalenessRule | None = None) -> tuple[np.ndarray, list[int]]:
    return client.start(np.zeros(size, dtype=np.float32), num_samples=100, epochs=1, rules=(rule, None))


def exchanged_once(made: Syncer) -> tuple[ShardConnections, np.ndarray, list[int]]:
    """A client whose first progress, of ones, has been acknowledged; the ones and the versions."""
    client, ones = made.client("a"), np.ones(10, dtype=np.float32)
    _, versions = start(client)
    return client, ones, client.exchange(ones, sequence=1, versions=versions, samples=10)[1]


def test_progress_moves_the_common_parameters_over_all_shards(syncer: Any) -> None:
    client = syncer(3, groups=1, quorum=1).client("a")
    _, versions = start(client)
    assert versions == [0, 0, 0]
    moved, versions = client.exchange(np.arange(10, dtype=np.float32), sequence=1, versions=versions, samples=10)
    assert moved == pytest.approx(-np.arange(10))
    assert versions == [1, 1, 1]
    assert client.facts().mean_staleness == 0
    client.close()


def test_a_quorum_of_all_waits_for_all(syncer: Any) -> None:
    made = syncer(1, groups=2, quorum=2)
    clients = [made.client(name) for name in "ab"]
    versions = [start(client)[1] for client in clients]
    results: dict[int, np.ndarray] = {}

    def push(index: int) -> None:
        progress = np.full(10, float(1 + index), dtype=np.float32)
        results[index] = clients[index].exchange(progress, sequence=1, versions=versions[index], samples=10)[0]

    first = threading.Thread(target=push, args=(0,))
    first.start()
    first.join(0.5)
    assert first.is_alive(), "the first waits for the second"
    push(1)
    first.join(5)
    assert results[0] == pytest.approx(results[1])
    assert results[0] == pytest.approx(np.full(10, -1.5))
    for client in clients:
        client.close()


def test_a_killed_syncer_loses_nothing_and_counts_nothing_twice(syncer: Any) -> None:
    made = syncer(2, groups=1, quorum=1)
    client, ones, versions = exchanged_once(made)
    lease = client.lease(2, 30)
    made.restart()
    theta, versions = client.exchange(ones, sequence=1, versions=versions, samples=10)
    assert theta == pytest.approx(-ones), "what was acknowledged is there, once"
    assert client.lease(2, 30) == lease
    theta, _ = client.exchange(ones, sequence=2, versions=versions, samples=10)
    assert theta == pytest.approx(-2 * ones)
    client.close()


def test_a_syncer_that_cannot_write_acknowledges_nothing_and_goes_on_when_it_can(syncer: Any) -> None:
    made = syncer(1, groups=1, quorum=1)
    client, ones, versions = exchanged_once(made)
    (shard,) = made.processes
    resource.prlimit(shard.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))  # what a full disk does to writing
    answered: list[np.ndarray] = []
    asking = threading.Thread(
        target=lambda: answered.append(client.exchange(ones, sequence=2, versions=versions, samples=10)[0])
    )
    asking.start()
    assert shard.wait(10) == 1
    assert answered == []
    made.restart(0)
    asking.join(20)
    assert answered[0] == pytest.approx(-2 * ones), "the same progress was handed in again, and counts once"
    made.restart(0)
    theta, _ = client.exchange(ones, sequence=3, versions=[2], samples=10)
    assert theta == pytest.approx(-3 * ones), "what was acknowledged is on disk"
    client.close()


def test_no_acknowledged_progress_is_lost_or_counted_twice_by_kills_at_random_moments(syncer: Any) -> None:
    made = syncer(2, groups=1, quorum=1)
    client = made.client("a")
    theta, versions = start(client)
    generator, total = random.Random(5), np.zeros(10, dtype=np.float32)
    stop = threading.Event()

    def killer() -> None:
        for _ in range(6):
            time.sleep(generator.uniform(0.05, 0.3))
            made.restart(generator.randrange(2))
        stop.set()

    thread = threading.Thread(target=killer)
    thread.start()
    sequence = 0
    while not stop.is_set():
        sequence += 1
        progress = np.full(10, float(sequence % 7), dtype=np.float32)
        total += progress
        theta, versions = client.exchange(progress, sequence=sequence, versions=versions, samples=10)
        assert (theta == -total).all()
    thread.join(30)
    assert versions == [sequence, sequence]
    client.close()


RULES = {
    "keep": ({"name": "keep"}, -1.0 - 2.0),
    "divide": ({"name": "divide"}, -1.0 - 2.0 / 3),
    "gap": ({"name": "gap"}, -1.0 - 2.0 / 3),
    "compensate": ({"name": "compensate", "compensation": 0.25}, -1.0 - (2.0 - 0.25 * 4.0)),
    "discarded": ({"name": "discard", "limit": 1}, -1.0),
    "not-discarded": ({"name": "discard", "limit": 2}, -1.0 - 2.0),
}


@pytest.mark.parametrize(
    ("by", "name"),
    [
        *(("shard", name) for name in RULES),
        *(pytest.param("group", name, marks=[pytest.mark.full] * (name != "compensate")) for name in RULES),
    ],
)
def test_progress_that_is_two_versions_late_counts_as_the_rule_says(syncer: Any, by: str, name: str) -> None:
    """The rule is in the file that the shard is started with, or in the settings of the first group."""
    rule, expected = RULES[name]
    made = syncer(1, groups=2, quorum=1, **({"rule": rule} if by == "shard" else {}))
    quick, late = made.client("quick"), made.client("late")
    versions = start(quick, rule=StalenessRule(**rule) if by == "group" else None)[1]
    old = start(late)[1]
    ones = np.ones(10, dtype=np.float32)
    for sequence in (1, 2):
        _, versions = quick.exchange(ones / 2, sequence=sequence, versions=versions, samples=10)
    theta, _ = late.exchange(2 * ones, sequence=1, versions=old, samples=10)
    facts = late.facts()
    # With two groups of equal samples each moves the parameters by half of its progress once both are known.
    assert theta == pytest.approx(np.full(10, -1.0 + (expected + 1.0) / 2), abs=1e-6)
    assert facts.dropped == (1 if expected == -1.0 else 0)
    assert facts.largest_staleness == (0 if expected == -1.0 else 2)
    quick.close()
    late.close()


def test_packed_progress_arrives_in_full_with_time(syncer: Any) -> None:
    made = syncer(2, groups=1, quorum=1)
    client = made.client("a")
    theta, versions = start(client, 1000)
    generator = np.random.default_rng(3)
    total, owed = np.zeros(1000, dtype=np.float32), np.zeros(1000, dtype=np.float32)
    for sequence in range(1, 21):
        progress = generator.normal(size=1000).astype(np.float32)
        total += progress
        theta, versions = client.exchange(
            progress + owed, sequence=sequence, versions=versions, samples=10, packing="int8"
        )
        owed = progress + owed - as_received(progress + owed, 2, "int8")
    assert np.abs(theta + total).max() < 0.04, "one rounding, not twenty"
    client.close()


def test_a_group_that_left_before_a_restart_is_not_waited_for(syncer: Any) -> None:
    made = syncer(1, groups=2, quorum=2, heartbeat_timeout=0.5)
    left, stays = made.client("left"), made.client("stays")
    start(left)
    _, versions = start(stays)
    left.leave()
    made.restart()
    theta, _ = stays.exchange(np.ones(10, dtype=np.float32), sequence=1, versions=versions, samples=10)
    assert theta == pytest.approx(-np.ones(10))
    stays.close()


def test_samples_of_a_group_that_is_gone_are_handed_out_again(syncer: Any) -> None:
    made = syncer(1, groups=2, quorum=1, heartbeat_timeout=0.3)
    gone, stays = made.client("gone"), made.client("stays")
    start(gone)
    start(stays)
    lost = gone.lease(1, 60)
    gone.close()
    taken = [stays.lease(number, 60) for number in (1, 2, 3)]
    assert lost in taken
    assert taken[-1] is None
    stays.close()


def test_what_a_group_handed_in_before_it_died_is_not_done_again(syncer: Any) -> None:
    made = syncer(1, groups=2, quorum=1, heartbeat_timeout=0.3)
    gone, stays = made.client("gone"), made.client("stays")
    versions = start(gone)[1]
    start(stays)
    done = gone.lease(1, 60)
    gone.exchange(np.ones(10, dtype=np.float32), sequence=1, versions=versions, samples=60)
    gone.close()
    time.sleep(0.6)
    taken = [stays.lease(number, 60) for number in (1, 2)]
    assert done not in taken
    assert taken[-1] is None
    stays.close()


def test_samples_of_a_group_that_died_before_a_restart_are_handed_out_again(syncer: Any) -> None:
    made = syncer(1, groups=2, quorum=1, heartbeat_timeout=0.5)
    gone, stays = made.client("gone"), made.client("stays")
    start(gone)
    start(stays)
    lost = gone.lease(1, 60)
    gone.close()
    made.restart()
    taken = [stays.lease(number, 60) for number in (1, 2, 3)]
    assert lost in taken
    assert taken[-1] is None
    stays.close()


def test_a_group_that_hangs_is_not_waited_for_and_may_come_back(syncer: Any) -> None:
    made = syncer(2, groups=2, quorum=2, heartbeat_timeout=0.5)
    hung, stays = made.client("hung"), made.client("stays")
    old, versions = start(hung)[1], start(stays)[1]
    ones = np.ones(10, dtype=np.float32)
    lost, mine = hung.lease(1, 25), stays.lease(1, 25)
    hung._heartbeats.stop()  # connected, but as silent as a process that was stopped
    begun = time.monotonic()
    theta, versions = stays.exchange(ones, sequence=1, versions=versions, samples=25)
    assert time.monotonic() - begun < UNUSED / 2, "groups are waited for only before they have connected"
    assert theta == pytest.approx(-ones)
    assert stays.lease(2, 25) == lost != mine
    with pytest.raises(LeaseRevoked):
        hung.exchange(100 * ones, sequence=1, versions=old, samples=25)
    theta, versions = hung.come_back()
    assert theta == pytest.approx(-ones), "what others do now it has not done"
    again = hung.lease(2, 25)
    assert again is not None
    assert again.begin == 50
    for client in (hung, stays):
        client.close()


def test_a_group_that_died_and_begins_anew_counts_again_and_its_samples_are_free(syncer: Any) -> None:
    made = syncer(2, groups=1, quorum=1)
    before = made.client("a")
    _, versions = start(before)
    before.lease(1, 60)
    _, versions = before.exchange(np.ones(10, dtype=np.float32), sequence=1, versions=versions, samples=60)
    lost = before.lease(2, 60)
    before.close()
    again = made.client("a")
    theta, versions = start(again)
    assert theta == pytest.approx(-np.ones(10)), "what it had handed in stays"
    assert again.lease(1, 60) == lost
    made.restart()
    theta, _ = again.exchange(np.ones(10, dtype=np.float32), sequence=1, versions=versions, samples=60)
    assert theta == pytest.approx(-2 * np.ones(10))
    again.close()


def test_a_syncer_that_is_not_there_is_an_error_not_a_hang(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    client = ShardConnections([("127.0.0.1", port)], b"x", group="a", timeout=0.3)
    with pytest.raises(TrainingLost, match="does not answer"):
        start(client)
    client.close()


def test_a_stranger_is_refused_and_logged_and_changes_nothing(syncer: Any) -> None:
    made = syncer(1, groups=1, quorum=1)
    client = made.client("a")
    _, versions = start(client)
    places = [("127.0.0.1", made.ports[0])]
    stranger = ShardConnections(places, b"a guess", group="a", timeout=0.3)
    with pytest.raises(TrainingLost, match="does not answer"):
        stranger.exchange(np.ones(10, dtype=np.float32), sequence=1, versions=[0], samples=10)
    stranger.close()
    theta, versions = client.exchange(np.zeros(10, dtype=np.float32), sequence=1, versions=versions, samples=10)
    assert theta == pytest.approx(np.zeros(10))
    assert versions == [1]
    assert "refused a connection from 127.0.0.1" in (made.folder / "0.log").read_text()
    client.close()
