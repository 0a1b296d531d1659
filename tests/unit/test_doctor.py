"""The doctor sees what would spoil a measurement."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paceline.bench.machine import diagnose
from tests.conftest import Command


def statuses(store: Path, **options: int) -> dict[str, str]:
    return {check.name: check.status for check in diagnose(store, **options)}


def test_more_threads_than_cores_are_bad(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert statuses(tmp_path, ranks=1, threads=1)["threads against cores"] == "ok"
    assert statuses(tmp_path, ranks=cores + 1, threads=1)["threads against cores"] == "bad"


def test_thread_variables_and_wrong_interfaces_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    found = {check.name: check for check in diagnose(tmp_path)}
    assert found["thread variables"].status == "warn"
    assert "OMP_NUM_THREADS" in found["thread variables"].fix
    assert found["network interface"].status == "bad"
    assert "nosuch0" in found["network interface"].fix


def test_every_problem_comes_with_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for check in diagnose(tmp_path, ranks=999):
        assert check.saw
        assert check.expected
        assert check.fix or check.status == "ok"


def test_the_verb_exits_by_what_it_saw(paceline: Command) -> None:
    process = paceline.start("doctor", "--ranks", "99", "--json")
    output, _ = process.communicate()
    document = json.loads(output)
    assert process.returncode == 1
    assert document["ok"] is False
    assert document["machine"]["cores"] >= 1


def test_an_unknown_link_is_said_before_hosts_are_asked(paceline: Command) -> None:
    message = paceline("doctor", "--on", "slurm", "--link", "nope", code=2)
    assert "no link is called 'nope'" in message
    assert "paceline catalog links" in message
