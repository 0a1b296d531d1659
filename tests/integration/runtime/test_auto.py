"""scheme="auto" on real processes: what it picks where the answer is clear, why, and what it does under drift."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.bench.environments import worker_path
from paceline.bench.sites.local import free_ports
from paceline.bench.virtual.layout import lay_out
from paceline.bench.virtual.lifecycle import VirtualCluster, bring_up, take_down
from paceline.bench.virtual.namespaces import on_network
from paceline.bench.virtual.shaping import shape
from paceline.spec.cluster import Cluster, Device, Host, Link

pytestmark = pytest.mark.alone

WORKER = Path(__file__).with_name("auto_worker.py")


class Job:
    """Ranks on this machine, or one on each host of a virtual cluster."""

    def __init__(self, python: Path, folder: Path, options: dict[str, Any], up: VirtualCluster | None = None) -> None:
        self._python, self._folder, self._options, self._up = python, folder, options, up
        self._size = len(options["speeds"])
        self._hosts = up.layout.seats if up is not None else ()
        port = 21000 + secrets.randbelow(5000) if self._hosts else free_ports(1)[0]
        self._meet = f"{self._hosts[0].address if self._hosts else '127.0.0.1'}:{port}"
        self._secret = secrets.token_hex(16)
        self.processes = [self._start(rank) for rank in range(self._size)]

    def _start(self, rank: int, **more: str) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "PYTHONPATH": str(worker_path()),
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "WORLD_SIZE": str(self._size),
            "PACELINE_JOIN": self._meet,
            "PACELINE_SECRET": self._secret,
            "PACELINE_ROSTER": str(self._folder / "roster.json"),
            **more,
        }
        argv = [str(self._python), str(WORKER), json.dumps(self._options), str(self._folder / f"rank-{rank}.json")]
        if self._up is not None:
            seat = self._hosts[rank * len(self._hosts) // self._size]
            argv = on_network(self._up.pid_of(seat.name), argv)
        with (self._folder / f"rank-{rank}.log").open("ab") as log:
            return subprocess.Popen(argv, env=env, stdout=log, stderr=log)

    def kill_and_start_again(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].wait()
        self.processes[rank] = self._start(rank, PACELINE_LATE="1")

    def log(self, rank: int) -> str:
        return (self._folder / f"rank-{rank}.log").read_text(errors="replace")

    def step(self) -> int:
        path = self._folder / "rank-0.step"
        text = path.read_text() if path.exists() else ""
        return int(text or 0)

    def wait(self, timeout: float = 100.0) -> list[dict[str, Any]]:
        for rank, process in enumerate(self.processes):
            code = process.wait(timeout)
            assert code == 0, f"rank {rank} ended with {code}:\n{self.log(rank)}"
        return [json.loads((self._folder / f"rank-{rank}.json").read_text()) for rank in range(self._size)]

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture
def start(torch_python: Path, tmp_path: Path) -> Iterator[Any]:
    jobs: list[Job] = []

    def run(up: VirtualCluster | None = None, **options: Any) -> Job:
        jobs.append(Job(torch_python, tmp_path, options, up))
        return jobs[-1]

    yield run
    for job in jobs:
        job.stop()


def check_samples(found: list[dict[str, Any]], *, epochs: int, samples: int) -> None:
    uses = Counter(tuple(use) for rank in found for use in rank["used"])
    assert set(uses) == {(epoch, sample) for epoch in range(epochs) for sample in range(samples)}
    assert set(uses.values()) == {1}


@pytest.mark.full
def test_unequal_devices_on_one_machine_stay_one_balanced_group(start: Any) -> None:
    found = start(speeds=[4.0, 1.0], epochs=3, batch=40).wait()
    check_samples(found, epochs=3, samples=240)
    assert {size for _, size, _, _ in found[0]["seen"]} == {2}
    assert len(found[0]["reasons"]) == 1
    assert found[0]["reasons"][0].startswith("one balanced group, because a sample costs")
    assert found[1]["reasons"] == []


@pytest.fixture(scope="module")
def slow_link() -> Iterator[VirtualCluster]:
    """Two hosts of one device each, 100 Mbit/s apart; its tests are marked full, since namespaces need root."""
    link, bus = Link(name="way", bandwidth=12.5e6), Link(name="bus", bandwidth=1e11)
    devices = (Device(name="cpu", kind="cpu"),)
    hosts = tuple(Host(name=f"a{n}", devices=devices, inside=bus, link=link) for n in range(2))
    up = bring_up(Cluster(name="apart", hosts=hosts), owner=os.getpid())
    yield up
    take_down(up.home)


@pytest.mark.full
def test_a_slow_link_makes_two_groups_that_exchange_rarely(start: Any, slow_link: VirtualCluster) -> None:
    job = start(slow_link, speeds=[1.0, 1.0], epochs=8, width=700)
    found = job.wait()
    check_samples(found, epochs=8, samples=240)
    sizes = [size for _, size, _, _ in found[0]["seen"]]
    assert sizes[0] == 2
    assert sizes[-1] == 1
    assert found[0]["reasons"][0].startswith("2 groups exchanging every")
    assert "the slowest link carries 1" in found[0]["reasons"][0]
    assert found[0]["parameters"] == found[1]["parameters"], "the last common parameters are everybody's"


@pytest.mark.full
def test_groups_come_together_again_with_every_sample_used_once(start: Any, slow_link: VirtualCluster) -> None:
    found = start(slow_link, speeds=[2.0, 1.0], epochs=30, width=700, merge_after=2).wait()
    check_samples(found, epochs=30, samples=240)
    for rank in found:
        sizes = [size for _, size, _, _ in rank["seen"]]
        changes = [after for before, after in itertools.pairwise(sizes) if before != after]
        assert changes[:2] == [1, 2]
    assert found[0]["parameters"] == found[1]["parameters"]


@pytest.mark.full
@pytest.mark.parametrize(("ranks", "killed"), [(2, 1), (4, 3)], ids=["the-whole-group", "one-of-its-group"])
def test_a_rank_killed_after_the_split_comes_back_to_its_group(
    start: Any, slow_link: VirtualCluster, ranks: int, killed: int
) -> None:
    job = start(slow_link, speeds=[1.0] * ranks, epochs=24, width=700, per_sample=0.002)
    until(lambda: "2 groups exchanging" in job.log(0), job)
    until_step(job, job.step() + 8)
    job.kill_and_start_again(killed)
    found = job.wait()
    uses = {tuple(use) for rank in found for use in rank["used"]}
    assert found[killed]["used"], "it trained again"
    assert found[killed]["seen"][0][1] == ranks // 2, "in its own group"
    assert all(rank["parameters"] == found[0]["parameters"] for rank in found)
    missing = {(epoch, sample) for epoch in range(24) for sample in range(240)} - uses
    assert not {use for use in missing if use[0] >= 12}, "only what the killed rank did before is not in the books"


@pytest.mark.full
def test_a_link_that_becomes_slow_splits_the_group(start: Any, slow_link: VirtualCluster) -> None:
    """Gradients are small enough for the link at first; then it becomes thirty times slower."""
    job = start(slow_link, speeds=[1.0, 1.0], epochs=16, per_sample=0.004, width=120)
    until_step(job, 20)
    play_links(slow_link, slower=30.0)
    try:
        found = job.wait()
    finally:
        play_links(slow_link, slower=1.0)
    check_samples(found, epochs=16, samples=240)
    assert found[0]["reasons"][0].startswith("one balanced group")
    assert any(reason.startswith("2 groups") for reason in found[0]["reasons"][1:])
    assert found[0]["seen"][-1][1] == 1


def play_links(up: VirtualCluster, *, slower: float) -> None:
    """Reshape links that are in use, which therefore cannot be proved."""
    layout = lay_out(up.cluster, instance=up.home.name, dilation=slower)
    shape(layout, keeper=up.processes.keeper, hosts=up.processes.hosts)


@pytest.mark.full
def test_stragglers_split_the_group(start: Any) -> None:
    found = start(speeds=[1.0, 1.0, 1.0], straggle=0.12, epochs=16).wait()
    check_samples(found, epochs=16, samples=240)
    reasons = [reason for rank in found for reason in rank["reasons"]]
    assert reasons[0].startswith("one balanced group")
    assert any(reason.startswith("3 groups") and "straggle" in reason for reason in reasons)


@pytest.mark.full
def test_a_rank_that_becomes_slow_is_planned_for_again(start: Any) -> None:
    change = {"step": 20, "rank": 1, "speed": 0.25}
    found = start(speeds=[1.0, 1.0], epochs=8, changes=[change]).wait()
    check_samples(found, epochs=8, samples=240)
    assert len(found[0]["reasons"]) >= 2
    assert found[0]["seen"][-1][1] == 2


def until_step(job: Job, step: int) -> None:
    until(lambda: job.step() >= step, job)


def until(reached: Callable[[], bool], job: Job) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if reached():
            return
        time.sleep(0.05)
    raise AssertionError(f"it did not come to that:\n{job.log(0)}")
