"""What the planner chooses where the right answer is known."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import Unsupported
from paceline.model.plan.cost import Workload, device_cost
from paceline.model.plan.file import plain_plan, read_plan, write_plan
from paceline.model.plan.search import Plan, make_plan
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link
from tests.conftest import Command

FAST = Link(name="fast", bandwidth=1e10, latency=1e-5)
SLOW = Link(name="slow", bandwidth=12.5e6, latency=1e-4)
WORK = Workload("toy", macs=1e9, layers=20, gradient_bytes=1e8, activation_bytes=1e6)


def device(speed: float = 1.0, **more: object) -> Device:
    return Device(name=f"speed-{speed:g}", peak={"float32": 1e13 * speed}, **more)  # type: ignore[arg-type]


def emulated(speed: float, *, straggle: float = 0.0) -> Device:
    emulation = Emulation(forward=0.1, backward=0.2, speed=speed, straggle=straggle)
    return Device(name=f"emulated-{speed:g}", emulation=emulation)


def cluster(*hosts: tuple[Device, ...], link: Link = FAST) -> Cluster:
    made = [Host(name=f"h{i}", devices=devices, inside=FAST, link=link) for i, devices in enumerate(hosts)]
    return Cluster(name="c", hosts=tuple(made))


def plan(*hosts: tuple[Device, ...], link: Link = FAST, batch: int = 512, work: Workload = WORK) -> Plan:
    return make_plan(cluster(*hosts, link=link), work, global_batch=batch)


def test_equal_devices_on_a_fast_network_are_one_group_with_equal_shares() -> None:
    best = plan((device(),) * 2, (device(),) * 2).best
    assert best.kind == "synchronous"
    assert best.shares == ((128, 128, 128, 128),)
    assert best.predicted_utilisation > 0.9


def test_unequal_devices_share_by_speed() -> None:
    best = plan((emulated(4.0),), (emulated(1.0),), batch=500).best
    assert best.kind == "synchronous"
    assert best.shares == ((400, 100),)


def test_a_slow_link_between_hosts_makes_groups_with_local_steps() -> None:
    heavy = replace(WORK, macs=1e11)
    best = plan((device(),) * 4, (device(),) * 4, link=SLOW, work=heavy).best
    assert best.kind == "local"
    assert best.local_steps > 1
    assert len(best.groups) == 2


def test_stragglers_make_groups_that_do_not_wait() -> None:
    hosts = [(emulated(1.0, straggle=0.05),) for _ in range(8)]
    best = plan(*hosts).best
    assert best.kind != "synchronous"
    assert best.quorum < len(best.groups)


def test_a_device_that_only_costs_is_left_out() -> None:
    crowd = tuple(device() for _ in range(4))
    best = make_plan(
        Cluster(
            name="c",
            hosts=(
                Host(name="good", devices=crowd, inside=FAST, link=FAST),
                Host(name="far", devices=(device(0.01),), inside=FAST, link=Link(name="l", bandwidth=1e4)),
            ),
        ),
        WORK,
        global_batch=256,
    ).best
    assert best.groups == ((0, 1, 2, 3),)


def test_terms_of_every_candidate_are_consistent() -> None:
    found = plan((device(2.0), device(1.0)), (device(0.5),))
    for candidate in found.ranked:
        assert 0 < candidate.predicted_utilisation <= 1.0 + 1e-9
        assert candidate.predicted_step == pytest.approx(512 / candidate.predicted_throughput)
        assert 0 < candidate.efficiency <= 1
    scores = [candidate.score for candidate in found.ranked]
    assert scores == sorted(scores, reverse=True)


def test_memory_limits_the_chunk_and_a_network_that_does_not_fit_is_refused() -> None:
    assert device_cost(device(memory=1e9), WORK, batch=64).chunk == 500
    with pytest.raises(Unsupported, match="does not fit"):
        device_cost(device(memory=4e8), WORK, batch=64)


def test_a_device_without_a_rate_is_refused_with_a_hint() -> None:
    with pytest.raises(Unsupported, match="no compute rate"):
        device_cost(Device(name="unknown"), WORK, batch=64)


def test_a_thousand_unequal_devices_take_less_than_five_seconds() -> None:
    hosts = [tuple(device(1 + (i * 7 + j) % 11 / 3) for j in range(8)) for i in range(125)]
    begin = time.monotonic()
    found = plan(*hosts, batch=65536)
    assert time.monotonic() - begin < 5.0
    assert sum(sum(shares) for shares in found.best.shares) == 65536


def test_a_plan_file_says_what_the_plan_says(tmp_path: Path) -> None:
    found = plan((emulated(4.0),), (emulated(1.0),), batch=500)
    write_plan(found, tmp_path / "plan.toml")
    again = read_plan(tmp_path / "plan.toml")
    assert [member.samples for member in again.group[0].members] == [400, 100]
    assert again.predicted_throughput == found.best.predicted_throughput
    assert plain_plan(found)["candidates"][0]["kind"] == again.kind


def test_the_command_explains_its_choice(paceline: Command, tmp_path: Path) -> None:
    where = tmp_path / "plan.toml"
    asked = ("--network", "resnet50", "--cluster", "mixed-lab", "--global-batch", "512")
    text = paceline("plan", *asked, "--output", str(where))
    assert "best:" in text
    assert "because" in text
    assert read_plan(where).global_batch == 512
    assert paceline.json("plan", *asked)["candidates"]


def test_wrong_names_are_one_clear_error(paceline: Command) -> None:
    error = paceline("plan", "--network", "resnet50", "--cluster", "mixedlab", "--global-batch", "64", code=2)
    assert "did you mean 'mixed-lab'" in error
    error = paceline("train", "nothing.py", code=2)
    assert "is not a file" in error
