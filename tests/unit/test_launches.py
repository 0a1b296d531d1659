"""Whole launches of a case with small real processes in place of a framework: from the adapter to the stored run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.bench import launch
from paceline.bench.job import CaseLaunch, rank_processes
from paceline.bench.sites.local import LocalLauncher
from paceline.bench.sites.site import Process
from paceline.measurements.run import Failure, RunData
from paceline.spec.study import Case, Protocol
from tests.unit.test_launch_case import case
from tests.unit.test_store import machine

TOLD = """
import json, os, sys
rank = int(os.environ["RANK"])
job = json.load(open(os.environ["PACELINE_JOB"]))
with open(os.environ["PACELINE_EVENTS"], "w") as file:
    for event in json.loads(sys.argv[1])[rank]:
        print(json.dumps(event), file=file)
sys.exit(int(sys.argv[2]) if rank == 1 else 0)
"""


def events(rank: int, **facts: Any) -> list[dict[str, Any]]:
    rows = [[0.0, 0.1 + rank], [1.0, 0.2 + rank]]
    return [
        {"event": "phase", "phase": "measure"},
        {"event": "facts", "versions": {"made": str(rank)}, "facts": facts},
        {"event": "pass", "name": "clean", "warmup": 0, "rows": rows},
        {"event": "done"},
    ]


class Made:
    """An adapter whose ranks write these events; rank 1 ends with this code."""

    name = "made"

    def __init__(self, *written: list[dict[str, Any]], code: int = 0, refused: str | None = None) -> None:
        self.written, self.code, self.refused = written, code, refused
        self.launches: list[CaseLaunch] = []

    def environment(self, mode: str) -> str:
        return f"made-{mode}"

    def refusal(self, case: Case) -> str | None:
        return self.refused

    def processes(self, launch: CaseLaunch) -> list[Process]:
        self.launches.append(launch)
        argv = (sys.executable, "-S", "-c", TOLD, json.dumps(self.written), str(self.code))
        return [Process(one.name, one.host, argv, one.env, one.log, one.rank) for one in rank_processes(launch, "none")]


class Slowed(LocalLauncher):
    """Notes for which cases the machine was too slow."""

    def __init__(self) -> None:
        self.slower: list[Case] = []

    def slow_down(self, workload: Case) -> None:
        self.slower.append(workload)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., RunData]:
    monkeypatch.setattr(launch, "find_environment", lambda name: None if name == "made-lost" else name)
    monkeypatch.setattr(launch, "environment_python", lambda _: Path(sys.executable))
    monkeypatch.setattr(launch, "environment_variables", lambda name: {"OF": name})
    monkeypatch.setattr(launch, "worker_path", lambda *_: tmp_path)

    def launched(adapter: Made, *, launcher: Slowed | None = None, number: int = 0, **changes: Any) -> RunData:
        monkeypatch.setattr(launch, "adapter_of", lambda _: adapter)
        key = launch.LaunchKey("demo-1", "demo", case(hosts=1, ranks=2, **changes), number)
        return launch.launch_case(key, Protocol(timeout=30.0), launcher or Slowed(), machine())

    return launched


def test_a_launch_has_the_steps_of_all_ranks_and_leaves_nothing(launched: Callable[..., RunData]) -> None:
    adapter = Made(events(0, loss=1.0), events(1, loss=2.0))
    one, two = launched(adapter), launched(adapter, number=1)
    assert one.run.failure is None
    assert (one.run.outcome, one.run.launcher, one.run.launch, two.run.launch) == ("ok", "local", 0, 1)
    assert [(step.rank, step.seconds) for step in one.steps] == [(0, 0.1), (0, 0.2), (1, 1.1), (1, 1.2)]
    assert (one.run.facts["loss"], one.run.machine.versions) == (1.0, {"made": "0"})
    assert 0 < one.run.seconds < 30
    assert (one.run.machine.threads, adapter.launches[0].threads) == (1, 1)
    assert adapter.launches[0].env == {"OF": "made-ddp"}
    assert adapter.launches[0].token != adapter.launches[1].token
    assert min(len(prepared.token) for prepared in adapter.launches) >= 32
    assert not any(prepared.folder.exists() for prepared in adapter.launches)


def test_a_rank_that_fails_is_the_failure_of_the_run_and_the_steps_before_stay(
    launched: Callable[..., RunData],
) -> None:
    found = launched(Made(events(0), events(1)[:-1], code=3))
    assert found.run.outcome == "failed"
    assert found.run.failure is not None
    assert (found.run.failure.rank, found.run.failure.exit_code, found.run.failure.phase) == (1, 3, "measure")
    assert {step.rank for step in found.steps} == {0, 1}


def test_a_launch_that_the_machine_did_not_sustain_is_repeated_more_slowly(launched: Callable[..., RunData]) -> None:
    for late, slower in ((0.5, 1), (0.0, 0)):
        facts = {"keeping_up": {"late_share": late, "queued_share": 0.0}}
        launcher = Slowed()
        found = launched(Made(events(0, **facts), events(1)), launcher=launcher)
        assert len(launcher.slower) == slower
        assert (found.run.failure is not None and found.run.failure.reason == "unsustained") is bool(slower)
        assert found.run.facts["emulation_error"] == late


def test_what_is_refused_or_not_installed_starts_nothing(launched: Callable[..., RunData]) -> None:
    refused = Made(refused="no such layer")
    found = launched(refused).run.failure
    assert found is not None
    assert (found.phase, found.reason, found.message) == ("launch", "unsupported", "no such layer")
    absent = launched(Made(), framework="pytorch/lost").run.failure
    assert absent is not None
    assert (absent.phase, absent.reason) == ("launch", "crash")
    assert "the made-lost environment is not installed" in absent.message
    assert refused.launches == []


def test_a_rank_that_fails_is_no_machine_that_was_too_slow(
    launched: Callable[..., RunData], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Failure(phase="measure", reason="unsustained", message="too slow")
    monkeypatch.setattr(launch, "unfaithful", lambda reports, *, dilation: slow)
    failure = launched(Made(events(0), events(1), code=3)).run.failure
    assert failure is not None
    assert failure.reason == "crash"
