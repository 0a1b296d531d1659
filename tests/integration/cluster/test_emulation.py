"""Emulated devices with real PyTorch: times follow the closed form, limits hold, unfaithful runs are no results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from paceline.bench.launch import LaunchKey, launch_case
from paceline.bench.machine import describe_machine
from paceline.bench.sites.virtual import VirtualLauncher
from paceline.measurements.run import RunData
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case, Protocol

FORWARD, BACKWARD = 0.1, 0.2


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory, pytorch: Path) -> Iterator[VirtualLauncher]:
    """One for all, so that its hosts are made once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        with VirtualLauncher() as made:
            yield made


def case(*devices: Device, framework: str = "pytorch/ddp", bandwidth: float = 5e7) -> Case:
    from paceline.catalog import network

    link, inside = Link(name="way", bandwidth=bandwidth), Link(name="bus", bandwidth=1e12)
    hosts = tuple(Host(name=f"h{n}", devices=(d,), inside=inside, link=link) for n, d in enumerate(devices))
    return Case(
        network=network("lenet"),
        cluster=Cluster(name="emulated", hosts=hosts),
        framework=framework,
        strategy=Strategy(),
        ranks=len(devices),
        batch=8,
        scaling="weak",
        placement="packed",
        input="resident",
        threads=1,
    )


def accelerator(**changes: float) -> Device:
    memory = changes.pop("memory", None)
    return Device(name="d", memory=memory, emulation=Emulation(forward=FORWARD, backward=BACKWARD, **changes))


def run(launcher: VirtualLauncher, asked: Case, *, steps: int = 6, budget: float = 1.0) -> RunData:
    protocol = Protocol(launches=1, warmup=2, steps=steps, launch_budget=budget, phases=False, timeout=120.0)
    return launch_case(LaunchKey("test", "emulation", asked, 0), protocol, launcher, describe_machine(()))


def step_times(data: RunData) -> list[float]:
    slowest: dict[int, float] = defaultdict(float)
    for step in data.steps:
        if not step.warmup:
            slowest[step.step] = max(slowest[step.step], step.seconds)
    return list(slowest.values())


@pytest.mark.parametrize("framework", ["pytorch/ddp", "pytorch/fsdp2"])
def test_a_step_takes_as_long_as_its_slowest_device(launcher: VirtualLauncher, framework: str) -> None:
    data = run(launcher, case(accelerator(), accelerator(speed=0.5), framework=framework))
    assert "emulated device" in data.run.labels
    assert data.run.dilation >= 1
    # On a busy machine the run may be refused, but its times must never be faster than the devices.
    assert median(step_times(data)) >= 2 * (FORWARD + BACKWARD) * 0.999
    if data.run.outcome == "ok" and framework == "pytorch/ddp":
        assert median(step_times(data)) == pytest.approx(2 * (FORWARD + BACKWARD), rel=0.03)
    elif data.run.failure:
        assert data.run.failure.reason == "unsustained"


def test_too_little_memory_is_a_stored_failure(launcher: VirtualLauncher) -> None:
    data = run(launcher, case(accelerator(), accelerator(memory=1e5)))
    assert data.run.failure is not None
    assert data.run.failure.reason == "out_of_memory"


def test_stragglers_show(launcher: VirtualLauncher) -> None:
    data = run(launcher, case(accelerator(straggle=0.4, straggle_factor=3.0), accelerator()), steps=12, budget=12.0)
    times = step_times(data)
    assert min(times) >= (FORWARD + BACKWARD) * 0.999
    assert max(times) > 2.5 * (FORWARD + BACKWARD)


def test_what_the_machine_cannot_sustain_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four ranks, each with half a millisecond of compute and a fast link, undilated, cannot be right; it is said."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    fast = Device(name="d", emulation=Emulation(forward=2e-4, backward=4e-4))
    with VirtualLauncher(dilation=1.0) as launcher:
        data = run(launcher, case(*[fast] * 4, bandwidth=1e9))
    assert data.run.outcome == "failed"
    assert data.run.failure is not None
    assert data.run.failure.reason == "unsustained"
    assert "off by up to" in data.run.failure.message
