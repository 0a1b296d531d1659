"""The doctor sees what would spoil a measurement."""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from paceline.bench import machine
from paceline.bench.machine import diagnose, probe_seconds, with_rates
from paceline.bench.sites.target import LaunchTarget
from paceline.measurements.run import Check
from paceline.spec.cluster import Device, Emulation
from tests.conftest import Command

GIB = 2**30


def statuses(store: Path, **options: int) -> dict[str, str]:
    return {check.name: check.status for check in diagnose(store, **options)}


def test_more_threads_than_cores_are_bad(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    assert statuses(tmp_path, ranks=1, threads=1)["threads against cores"] == "ok"
    assert statuses(tmp_path, ranks=cores + 1, threads=1)["threads against cores"] == "bad"
    assert machine._threads(1, cores).status == "ok"
    assert machine._threads(1, cores + 1).status == "bad"
    assert machine._threads(cores, None).saw == f"{cores} ranks x 1 threads on {cores} cores"


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


def clock(monkeypatch: pytest.MonkeyPatch, seconds: Iterable[float]) -> None:
    """Every second reading of the clock is this much later than the one before it."""
    now = itertools.accumulate(itertools.chain.from_iterable((0.0, each) for each in seconds))
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: next(now), sleep=lambda _: None))


@pytest.mark.parametrize(("busy", "status"), [(0.3, "ok"), (0.31, "warn"), (1.0, "warn"), (1.01, "bad")])
def test_load_is_counted_in_cores(monkeypatch: pytest.MonkeyPatch, busy: float, status: str) -> None:
    monkeypatch.setattr(machine.psutil, "cpu_count", lambda: 8)
    monkeypatch.setattr(machine.psutil, "cpu_percent", lambda interval: 100 * busy / 8)
    monkeypatch.setattr(machine, "_heaviest", lambda: " (most: burner)")
    found = machine._load()
    assert (found.status, found.saw) == (status, f"{busy:.2f} cores busy")
    assert ("burner" in found.fix) == (status != "ok")
    assert bool(found.fix) == (status != "ok"), "what is well needs no advice"


def test_the_heaviest_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(pid: int, name: str, share: float) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, info={"name": name}, cpu_percent=lambda interval: share)

    there = [
        process(os.getpid(), "pytest", 99.0),
        process(7, "idle", 0.0),
        process(8, "burner", 80.0),
        process(9, "sh", 3.0),
    ]
    monkeypatch.setattr(machine.psutil, "process_iter", lambda names: iter(there))
    assert machine._heaviest() == " (most: burner, pid 8)"
    del there[2:]
    assert machine._heaviest() == ""


@pytest.mark.parametrize(
    ("governors", "status", "saw"),
    [([], "ok", "not visible"), (["performance", "performance"], "ok", "performance"),
     (["performance", "powersave"], "warn", "performance, powersave"), (["powersave"], "warn", "powersave")],
)  # fmt: skip
def test_every_core_has_the_governor_of_performance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, governors: list[str], status: str, saw: str
) -> None:
    for number, name in enumerate(governors):
        (tmp_path / f"cpu{number}").write_text(f"{name}\n")
    monkeypatch.setattr(machine, "_GOVERNORS", f"{tmp_path}/cpu*")
    found = machine._governor()
    assert found.status == status
    assert saw in found.saw


@pytest.mark.parametrize(
    ("free", "swapped", "status"), [(2, 0.2, "ok"), (1.99, 0.0, "bad"), (2, 0.21, "warn"), (1.99, 0.9, "bad")]
)
def test_memory_is_free_and_not_swapped(
    monkeypatch: pytest.MonkeyPatch, free: float, swapped: float, status: str
) -> None:
    monkeypatch.setattr(machine.psutil, "virtual_memory", lambda: SimpleNamespace(available=free * GIB, total=64 * GIB))
    monkeypatch.setattr(machine.psutil, "swap_memory", lambda: SimpleNamespace(used=swapped * GIB, total=GIB))
    assert machine._memory().status == status
    monkeypatch.setattr(machine.psutil, "swap_memory", lambda: SimpleNamespace(used=0, total=0))
    assert machine._memory().status == ("bad" if free < 2 else "ok")


@pytest.mark.parametrize(
    ("what", "free", "writable", "status"),
    [("store", 1.0, True, "ok"), ("store", 0.99, True, "bad"), ("environments", 3.0, True, "ok"),
     ("environments", 2.99, True, "bad"), ("store", 9.0, False, "bad")],
)  # fmt: skip
def test_a_disk_has_space_and_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, free: float, writable: bool, status: str
) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(
        machine.shutil, "disk_usage", lambda path: asked.append(path) or SimpleNamespace(free=free * GIB)
    )
    monkeypatch.setattr(machine.os, "access", lambda path, mode: writable)
    found = machine._disk(what, tmp_path / "not" / "yet")
    assert (found.status, asked) == (status, [tmp_path]), "the folder that is there already"
    assert ("not writable" in found.saw) == (not writable)


@pytest.mark.parametrize(
    ("resolution", "reading", "status"), [(1e-6, 2e-6, "ok"), (2e-6, 1e-7, "warn"), (1e-9, 3e-6, "warn")]
)
def test_the_clock_is_fine_and_cheap(
    monkeypatch: pytest.MonkeyPatch, resolution: float, reading: float, status: str
) -> None:
    now = itertools.count()
    fake = SimpleNamespace(
        get_clock_info=lambda name: SimpleNamespace(resolution=resolution),
        perf_counter=lambda: next(now) * reading * 0.999,
    )
    monkeypatch.setattr(machine, "time", fake)
    found = machine._clock()
    assert found.status == status
    assert found.saw.endswith(f"reading takes {reading * 0.999e9:.0f} ns")


@pytest.mark.parametrize(
    ("devices", "driver", "status"), [(2, True, "ok"), (0, False, "ok"), (2, False, "warn"), (0, True, "warn")]
)
def test_devices_and_their_driver_are_both_there_or_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: int, driver: bool, status: str
) -> None:
    for number in range(devices):
        (tmp_path / f"nvidia{number}").touch()
    monkeypatch.setattr(machine, "Path", lambda place: tmp_path)
    monkeypatch.setattr(machine.shutil, "which", lambda name: "/bin/nvidia-smi" if driver else None)
    assert machine._accelerator().status == status


def test_one_of_several_interfaces_has_to_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    up = {"lo": True, "eth0": True, "eth1": False}
    monkeypatch.setattr(
        machine.psutil, "net_if_stats", lambda: {name: SimpleNamespace(isup=is_up) for name, is_up in up.items()}
    )
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert machine._interface().status == "ok"
    up["eth1"] = True
    found = machine._interface()
    assert (found.status, found.fix.split("=")[-1]) == ("warn", "eth0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    assert machine._interface().status == "ok"


def test_rates_are_those_of_the_shortest_run_and_count_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, [0.2, 0.05, 0.1, 0.1])
    assert machine._best(lambda: None) == pytest.approx(0.05)
    times = iter([2e-3, 5e-3])
    monkeypatch.setattr(machine, "_best", lambda action: next(times))
    machine._rates.cache_clear()
    flops, rate = machine._rates()
    machine._rates.cache_clear()
    assert flops == pytest.approx(2 * 768**3 / 2e-3), "a multiplication and an addition"
    assert rate == pytest.approx(2 * 64 * 2**20 / 5e-3)


def test_only_the_unknown_processor_gets_rates_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_rates", lambda: (1e11, 2e10))
    measured = with_rates(Device(name="host-cpu", kind="cpu"))
    assert (measured.peak, measured.memory_bandwidth) == ({"float32": 1e11}, 2e10)
    assert "100 GFLOP/s, 20.0 GB/s, measured here now" in measured.name
    for stays in (
        Device(name="epyc", kind="cpu"),
        Device(name="host-cpu", kind="cpu", peak={"float32": 5e11}),
        Device(name="host-cpu", kind="cpu", emulation=Emulation(forward=1.0)),
    ):
        assert with_rates(stays) is stays


def test_a_probe_is_not_moved_by_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, [1.0] * 25 + [50.0] * 15)
    assert probe_seconds() == 1.0


@pytest.mark.parametrize(("status", "code"), [("PASS", 0), ("FAIL", 1), ("UNDECIDED", 1)])
def test_links_that_are_not_shown_to_be_good_are_no_success(
    monkeypatch: pytest.MonkeyPatch, status: str, code: int
) -> None:
    verb = importlib.import_module("paceline.cli.doctor")
    monkeypatch.setattr(verb, "probe_target", lambda *_: SimpleNamespace(test=0, rates=0, cluster=0, known=True))
    monkeypatch.setattr(verb, "judge_fabric", lambda *_: SimpleNamespace(status=status))
    monkeypatch.setattr(verb, "show_fabric", lambda verdict, slurm: None)
    assert verb._test_hosts(LaunchTarget(on="ssh", hosts=("a",)), None, None, None, 0.7, as_json=False) == code


@pytest.mark.parametrize(("found", "code"), [(("ok", "warn"), 0), (("ok", "bad"), 1), (("bad",), 1)])
def test_one_bad_check_is_enough(monkeypatch: pytest.MonkeyPatch, found: tuple[str, ...], code: int) -> None:
    verb = importlib.import_module("paceline.cli.doctor")
    checks = tuple(Check(name=one, status=one, saw="", expected="") for one in found)  # type: ignore[arg-type]
    monkeypatch.setattr(verb, "diagnose", lambda *_, **__: checks)
    monkeypatch.setattr(verb, "cache_folders", list)
    monkeypatch.setattr(verb, "show_caches", print)
    assert CliRunner().invoke(verb.command, []).exit_code == code
