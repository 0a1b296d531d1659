"""One launch of a case: threads, passes, variables and cores of its ranks, its end, and the run that is stored."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline import variables
from paceline.bench import job, launch
from paceline.bench.collect import RankReport
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.site import Process, Rendezvous
from paceline.catalog import shipped_catalog
from paceline.measurements.run import Failure, Span, Step
from paceline.spec.cluster import Cluster, Device, Emulation, Host, place
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case, Protocol
from tests.made import LINK
from tests.unit.test_store import machine


def case(hosts: int = 2, each: int = 2, ranks: int = 4, device: Device | None = None, **changes: Any) -> Case:
    made = tuple(
        Host(name=f"h{n}", devices=(device or Device(name="d"),) * each, inside=LINK, link=LINK) for n in range(hosts)
    )
    known = {
        "network": shipped_catalog().network("lenet"), "cluster": Cluster(name="made", hosts=made), "ranks": ranks,
        "framework": "pytorch/ddp", "strategy": Strategy(), "batch": 8, "scaling": "weak", "placement": "packed",
        "input": "resident", "threads": None,
    }  # fmt: skip
    return Case(**{**known, **changes})


def prepared(one: Case, folder: Path, *, threads: int = 1, **changes: Any) -> CaseLaunch:
    known = {
        "placement": place(one.cluster, one.ranks, spread=one.placement == "spread"), "folder": folder,
        "python": Path("python"), "worker_path": Path("workers"), "token": "secret", "threads": threads,
        "rendezvous": Rendezvous("10.0.0.1", (1, 2, 3), interface="eth7", dilation=4.0),
    }  # fmt: skip
    return CaseLaunch(case=one, **{**known, **changes})


@pytest.mark.parametrize(
    ("changes", "cores", "one_machine", "threads"),
    [
        ({}, 8, True, 2), ({}, 8, False, 4), ({"threads": 3}, 8, True, 3), ({}, 2, True, 1),
        ({"ranks": 3}, 8, False, 4), ({"ranks": 2, "placement": "spread"}, 8, False, 8), ({"ranks": 2}, 8, False, 4),
    ],
)  # fmt: skip
def test_ranks_share_the_cores_of_their_host_evenly(
    changes: dict[str, Any], cores: int, one_machine: bool, threads: int
) -> None:
    assert launch.threads_of(case(**changes), cores, one_machine=one_machine) == threads


def test_every_pass_has_one_more_part_of_the_step() -> None:
    assert launch.passes_of(case()) == ["forward", "compute", "exchange", "resident"]
    assert launch.passes_of(case(ranks=1, input="copied")) == ["forward", "compute", "resident", "copied"]
    assert launch.passes_of(case(input="files"))[-3:] == ["resident", "copied", "full"]


def test_a_worker_is_told_the_case_and_the_protocol(tmp_path: Path) -> None:
    protocol = Protocol(
        warmup=7, steps=11, width=0.06, launch_budget=9.0, phase_steps=5, timeout=99.0, seed=4, phases=False
    )
    told = launch.job_document(prepared(case(), tmp_path, threads=3), protocol)
    assert {name: told[name] for name in ("framework", "mode", "ranks", "batch", "input", "threads", "dilation")} == {
        "framework": "pytorch", "mode": "ddp", "ranks": 4, "batch": 8, "input": "resident", "threads": 3,
        "dilation": 4.0,
    }  # fmt: skip
    named = ("warmup", "steps", "launch_budget", "phase_steps", "timeout", "seed", "phases")
    assert [told[name] for name in named] == [7, 11, 9.0, 5, 99.0, 4, False]
    assert told["tolerance"] == pytest.approx(0.03)  # half of the width
    assert (told["data"], told["emulation"], told["accelerator"], told["script"]) == (None, None, "cuda", None)
    processor = launch.job_document(prepared(case(device=Device(name="c", kind="cpu")), tmp_path), protocol)
    assert processor["accelerator"] == "none"
    first, *others = prepared(case(), tmp_path).placement
    placement = [first.model_copy(update={"device": Device(name="c", kind="cpu")}), *others]
    mixed = launch.job_document(prepared(case(), tmp_path, placement=placement), protocol)
    assert mixed["accelerator"] == "none", "not all ranks have one"
    copied = launch.job_document(prepared(case(input="copied"), tmp_path), protocol)
    assert copied["data"] is None, "files are made for the input that reads them"
    emulated = case(device=Device(name="e", emulation=Emulation(forward=0.1)))
    assert launch.job_document(prepared(emulated, tmp_path), protocol)["accelerator"] == "none"


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Four cores, of which the first is not ours."""
    usable = {1, 2, 3, 5}
    monkeypatch.setattr(job.os, "sched_getaffinity", lambda _: usable)
    return usable


@pytest.mark.usefixtures("cores")
def test_every_rank_has_its_own_cores_and_its_place(tmp_path: Path) -> None:
    ranks = rank_processes(prepared(case(), tmp_path, threads=2), "worker", lambda placed: {"MORE": str(placed.host)})
    assert [one.env[variables.CORES] for one in ranks] == ["1,2", "3,5", "1,2", "3,5"]  # two hosts with these cores
    assert [(one.name, one.rank, one.host) for one in ranks] == [
        ("rank 0", 0, 0), ("rank 1", 1, 0), ("rank 2", 2, 1), ("rank 3", 3, 1),
    ]  # fmt: skip
    env = ranks[3].env
    assert ranks[3].argv == ("python", "-m", "worker")
    assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"], env["MORE"]) == ("3", "1", "4", "1")
    assert (env["MASTER_ADDR"], env["MASTER_PORT"], env[variables.RENDEZVOUS]) == ("10.0.0.1", "2", "10.0.0.1:1")
    assert {env[f"{name}_SOCKET_IFNAME"] for name in ("GLOO", "NCCL", "TP")} == {"eth7"}
    assert {env[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "OPENBLAS")} == {"2"}
    assert env[variables.EVENTS] == str(tmp_path / "rank-3.jsonl")
    assert env[variables.TOKEN] == "secret"
    assert "OMP_WAIT_POLICY" not in env


@pytest.mark.usefixtures("cores")
def test_ranks_with_too_few_cores_are_not_pinned_and_wait_passively(tmp_path: Path) -> None:
    one = rank_processes(prepared(case(), tmp_path, threads=2, one_machine=True), "worker")
    assert [(rank.env[variables.CORES], rank.env["OMP_WAIT_POLICY"]) for rank in one] == 4 * [("", "passive")]
    just = rank_processes(prepared(case(), tmp_path, one_machine=True), "worker")
    assert [rank.env[variables.CORES] for rank in just] == ["1", "2", "3", "5"]
    slowed = case(device=Device(name="q", kind="cpu", quota=0.5))
    emulated = case(device=Device(name="e", emulation=Emulation(forward=0.1)))
    for other in (slowed, emulated):
        ranks = rank_processes(prepared(other, tmp_path), "worker")
        assert {rank.env[variables.CORES] for rank in ranks} == {""}
        assert "OMP_WAIT_POLICY" not in ranks[0].env


class Polled:
    """Processes whose exit codes are known by the second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ends: tuple[float, int]) -> None:
        self.now, self.ends, self.kills = 100.0, ends, [0]
        fake = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(launch, "time", fake)
        monkeypatch.setattr(launch, "_oom_kills", lambda: self.kills[-1])

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def poll(self) -> dict[str, int | None]:
        return {name: code if self.now >= 100 + at else None for name, (at, code) in self.ends.items()}

    def wait(self, timeout: float = 60.0) -> launch.Ending:
        names = [name for name in self.ends if name.startswith("rank")]
        known = [Process(name, 0, (), {}, Path("log"), int(name[-1])) for name in names]
        helpers = [Process(name, 0, (), {}, Path("log")) for name in self.ends if name not in names]
        return launch.wait_for_ranks(self, [*known, *helpers], timeout)  # type: ignore[arg-type]


def test_a_launch_ends_with_its_ranks_or_five_seconds_after_a_failure_or_at_its_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = Polled(monkeypatch, rank0=(10, 0), rank1=(20, 0), server=(1000, 0))
    ending = good.wait()
    assert (ending.first_failed, ending.timed_out, ending.oom_killed) == ((), False, False)
    assert good.now == pytest.approx(120, abs=0.1)
    failed = Polled(monkeypatch, rank0=(10, 1), rank1=(11, 1), rank2=(1000, 0))
    ending = failed.wait()
    assert (ending.first_failed, ending.timed_out) == (("rank0",), False)
    assert ending.codes == {"rank0": 1, "rank1": 1, "rank2": None}
    assert failed.now == pytest.approx(115, abs=0.11)
    late = Polled(monkeypatch, rank0=(10, 0), rank1=(1000, 0))
    ending = late.wait()
    assert (ending.first_failed, ending.timed_out, ending.codes["rank1"]) == ((), True, None)
    assert late.now == pytest.approx(160, abs=0.11)


def test_a_failure_near_the_timeout_does_not_prolong_it(monkeypatch: pytest.MonkeyPatch) -> None:
    polled = Polled(monkeypatch, rank0=(58, 1), rank1=(1000, 0))
    ending = polled.wait()
    assert (ending.timed_out, ending.first_failed) == (False, ("rank0",))
    assert polled.now == pytest.approx(160, abs=0.11)


def test_a_kill_by_the_kernel_for_lack_of_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    polled = Polled(monkeypatch, rank0=(1, -9))
    for after, noticed in ((4, True), (3, False)):
        kills = iter([3, after])
        monkeypatch.setattr(launch, "_oom_kills", lambda kills=kills: next(kills))
        assert polled.wait().oom_killed is noticed


def test_a_run_has_the_case_its_reports_and_what_the_site_says() -> None:
    one = case(ranks=2)
    reports = [
        RankReport(0, versions={"torch": "2"}, labels=("l",), warmup={"clean": 5}, timers={"update": 0.1},
                   facts={"loss": 1.0}, steps=[Step("clean", 0, 0, False, 0.0, 0.1)],
                   spans=[Span(0, 0, "io", "b", 0.0, 1.0)]),
        RankReport(1, facts={"loss": 2.0}, steps=[Step("clean", 1, 0, False, 0.0, 0.2)]),
    ]  # fmt: skip
    site = Rendezvous("a", (1, 2), dilation=2.0, facts={"where": "here", "loss": 9.0})
    outcome = launch.LaunchOutcome(reports, None, site, "2026-01-01T00:00:00+00:00", 12.5)
    key = launch.LaunchKey("demo-1", "demo", one, 7, probe_s=0.3, drift_limit=0.05, pilot=3)
    data = launch._run_data(key, SimpleNamespace(name="local"), outcome, machine())  # type: ignore[arg-type]
    run = data.run
    assert (run.id, run.launch, run.outcome, run.seconds) == (f"demo-1-{one.id}-007", 7, "ok", 12.5)
    assert (run.probe_s, run.drift_limit, run.pilot, run.dilation) == (0.3, 0.05, 3, 2.0)
    assert (run.machine.versions, run.labels, run.warmup, run.timers) == (
        {"torch": "2"}, ("l",), {"clean": 5}, {"update": 0.1},
    )  # fmt: skip
    assert run.facts == {"loss": 9.0, "where": "here", "pid": os.getpid()}
    assert [(step.rank, step.seconds) for step in data.steps] == [(0, 0.1), (1, 0.2)]
    assert len(data.spans) == 1
    failure = Failure(phase="measure", reason="crash", message="m")
    failed = launch._run_data(
        key, SimpleNamespace(name="local"), launch.LaunchOutcome([], failure, site, run.started_at), machine()
    )  # type: ignore[arg-type]
    assert (failed.run.outcome, failed.run.failure, failed.steps) == ("failed", failure, ())
