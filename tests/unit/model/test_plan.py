"""What the planner chooses where the right answer is known."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline import catalog
from paceline.errors import InputError, Unsupported
from paceline.measurements.profile import Profile, ProfiledLayer, write_profile
from paceline.model.calibration import AS_STATED, CATALOG_ONLY, Uncertain, write_calibration
from paceline.model.measured.points import read_points
from paceline.model.plan.file import read_plan, write_plan
from paceline.model.plan.make import Plan, _Pricer, make_plan
from paceline.model.question import Question, works_of
from paceline.model.scaling import predict_curve
from paceline.model.step import NOMINAL
from paceline.model.sweep import CollectiveFit
from paceline.report.figures.predictions import plan_bars
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link
from paceline.spec.strategy import Strategy
from tests.conftest import ROOT, Command

FAST = Link(name="fast", bandwidth=1e10, latency=1e-5)
SLOW = Link(name="slow", bandwidth=12.5e6, latency=1e-4)
RESNET = catalog.network("resnet50")


def device(speed: float = 1.0, **more: Any) -> Device:
    given = {"name": f"speed-{speed:g}", "peak": {"float32": 1e13 * speed}, "memory_bandwidth": 1e12 * speed}
    return Device(**{**given, **more})


def emulated(speed: float, *, straggle: float = 0.0) -> Device:
    emulation = Emulation(forward=0.1, backward=0.2, speed=speed, straggle=straggle)
    return Device(name=f"emulated-{speed:g}", emulation=emulation)


def cluster(*hosts: tuple[Device, ...], link: Link = FAST) -> Cluster:
    made = [Host(name=f"h{i}", devices=devices, inside=FAST, link=link) for i, devices in enumerate(hosts)]
    return Cluster(name="c", hosts=tuple(made))


def ask(where: Cluster, **more: Any) -> Question:
    return Question(**{"cluster": where, "framework": "paceline", "batch": 8, "network": RESNET, **more})


def plan(*hosts: tuple[Device, ...], link: Link = FAST, batch: int = 512, **more: Any) -> Plan:
    return make_plan(ask(cluster(*hosts, link=link), **more), global_batch=batch, calibration=AS_STATED)


def profile(**changes: Any) -> Profile:
    layers = (
        ProfiledLayer(name="a", forward=0.01, backward=0.02, gradients=(4e6,)),
        ProfiledLayer(name="b", forward=0.02, backward=0.03, gradients=(8e6, 4e3)),
    )
    return Profile(**{"network": "mine", "batch": 8, "layers": layers, "update": 0.003, **changes})


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
    best = plan((device(),) * 4, (device(),) * 4, link=SLOW, batch=8192).best
    assert best.kind == "local"
    assert best.local_steps > 1
    assert len(best.groups) == 2


def test_stragglers_make_groups_that_do_not_wait() -> None:
    hosts = [(emulated(1.0, straggle=0.05),) for _ in range(8)]
    best = plan(*hosts).best
    assert best.kind != "synchronous"
    assert best.quorum < len(best.groups)


def test_a_device_that_only_costs_is_left_out() -> None:
    far = Host(name="far", devices=(device(0.01),), inside=FAST, link=Link(name="l", bandwidth=1e4))
    good = Host(name="good", devices=(device(),) * 4, inside=FAST, link=FAST)
    best = make_plan(ask(Cluster(name="c", hosts=(good, far))), global_batch=256, calibration=AS_STATED).best
    assert best.groups == ((0, 1, 2, 3),)


def test_figures_of_every_candidate_are_consistent() -> None:
    made = make_plan(ask(cluster((device(2.0), device(1.0)), (device(0.5),))), global_batch=512)
    for candidate in made.ranked:
        assert 0 < candidate.predicted_utilisation <= 1.0 + 1e-9
        assert candidate.predicted_step == pytest.approx(512 / candidate.predicted_throughput)
        assert 0 < candidate.efficiency <= 1
        assert candidate.interval_50 is not None
        assert candidate.interval_90 is not None
        low, high = candidate.interval_90
        assert low < candidate.interval_50[0] < candidate.predicted_throughput < candidate.interval_50[1] < high
    scores = [candidate.score for candidate in made.ranked]
    assert scores == sorted(scores, reverse=True)


def test_a_sweep_of_a_fast_link_makes_no_other_link_faster_than_it_is() -> None:
    fast = CollectiveFit("all_reduce", 2, "additive", 1e-5, 1e-11, 0.0, 0.0, 1e3, 1e9)
    asked = ask(cluster((device(),), (device(),), link=SLOW))
    made = make_plan(asked, global_batch=64, calibration=replace(AS_STATED, collectives=(fast,)))
    assert {one.link[0] for one in made.devices} == {SLOW.bandwidth}
    slow = replace(fast, per_byte=1e-6)
    made = make_plan(asked, global_batch=64, calibration=replace(AS_STATED, collectives=(slow,)))
    assert [one.link[0] for one in made.devices] == pytest.approx([1e6, 1e6], rel=0.01)


def test_equal_devices_cost_more_where_more_of_them_share_the_cores_of_a_host() -> None:
    cpu = device(kind="cpu")
    hosts = tuple(Host(name=f"h{n}", devices=(cpu,) * n, inside=FAST, link=FAST, cores=1) for n in (1, 3))
    asked = ask(Cluster(name="c", hosts=hosts), threads=1)
    pricer = _Pricer(asked, 4, AS_STATED, works_of(asked), NOMINAL)
    everyone = (0, 1, 2, 3)
    alone, shared = (pricer.price((i,), 1, everyone).seconds for i in (0, 1))
    assert shared > 2 * alone
    assert pricer.price((1,), 1, (1,)).seconds == pytest.approx(alone)


def test_groups_share_the_batch_exactly() -> None:
    for batch in (3, 100, 128):
        made = plan((device(3.0), device(1.0)), (device(0.7),), link=SLOW, batch=batch)
        assert {sum(map(sum, one.shares)) for one in made.ranked} == {batch}


def test_memory_makes_chunks_and_a_network_that_does_not_fit_is_refused() -> None:
    roomy, tight = device(), device(name="tight", memory=4e9)
    (chunked,) = (one for one in plan((roomy,), (tight,)).ranked if one.shares[0] and len(one.groups[0]) == 2)
    (whole,) = (one for one in plan((roomy,), (roomy,)).ranked if len(one.groups[0]) == 2)
    assert chunked.predicted_step > whole.predicted_step
    with pytest.raises(Unsupported, match="does not fit"):
        plan((device(memory=1e9),))


@pytest.mark.parametrize(
    ("given", "missing"),
    [(Device(name="unknown"), "peak rate"), (Device(name="unknown", peak={"float32": 1e13}), "memory bandwidth")],
)
def test_a_device_of_which_too_little_is_known_is_refused_with_a_hint(given: Device, missing: str) -> None:
    with pytest.raises(Unsupported, match=f"'unknown' cannot be predicted: its {missing}"):
        plan((given,))


def test_a_thousand_unequal_devices_take_less_than_five_seconds_of_processor_time() -> None:
    kinds = [device(1 + n / 3) for n in range(11)]
    hosts = [tuple(kinds[(i * 7 + j) % 11] for j in range(8)) for i in range(125)]
    begin = time.process_time()
    made = plan(*hosts, batch=65536)
    assert time.process_time() - begin < 5.0
    assert sum(map(sum, made.best.shares)) == 65536


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_small_batches_and_odd_clusters_have_a_plan(batch: int) -> None:
    free = Link(name="free", bandwidth=1e10)
    for hosts in (((device(),),), ((device(), device()), (device(2.0),))):
        made = plan(*hosts, link=free, batch=batch)
        assert {sum(map(sum, one.shares)) for one in made.ranked} == {batch}


def test_a_plan_rests_on_a_profile_and_a_calibration() -> None:
    where = cluster((device(),) * 2, (device(),), link=SLOW)
    asked = ask(where, network=None, profile=profile(), batch=8)
    usual = make_plan(asked)
    assert usual.global_batch == 24
    assert any("8 samples on each of 3 devices" in line for line in usual.basis)
    assert any("profile of mine" in line for line in usual.basis)
    known = replace(CATALOG_ONLY, source="swept here", reach=Uncertain(1.0, 0.01))
    surer = make_plan(asked, calibration=known)
    assert "swept here" in surer.basis
    both = [next(one for one in made.ranked if one.kind == "synchronous") for made in (usual, surer)]
    assert both[1].predicted_throughput > both[0].predicted_throughput


def test_measured_points_move_a_plan_and_narrow_it(tmp_path: Path) -> None:
    asked = ask(cluster((device(),) * 4), batch=64)
    before = make_plan(asked)
    predicted = predict_curve(asked, (1, 2, 4)).predictions
    path = tmp_path / "points.csv"
    head = "network,framework,device,link,devices_per_host,devices,batch_per_device,samples_per_s"
    rows = [f"ResNet-50,paceline,speed-1,fast,4,{p.devices},64,{p.samples_per_s.value / 2}" for p in predicted]
    path.write_text("\n".join([head, *rows]) + "\n")
    after = make_plan(asked, measured=read_points(path))
    assert after.best.predicted_throughput == pytest.approx(before.best.predicted_throughput / 2, rel=0.1)
    assert after.best.interval_90 is not None
    low, high = after.best.interval_90
    assert low < before.best.predicted_throughput / 2 < high
    assert high / low < 1.3
    assert any("3 measured points" in line for line in after.basis)
    with pytest.raises(InputError, match="no measured point is of lenet"):
        make_plan(replace(asked, network=catalog.network("lenet")), measured=read_points(path))


def test_questions_that_no_plan_answers() -> None:
    where = cluster((device(),))
    with pytest.raises(InputError, match="no sample"):
        make_plan(ask(where), global_batch=0)
    with pytest.raises(InputError, match="accumulated"):
        make_plan(ask(where, strategy=Strategy(accumulate=2)))
    with pytest.raises(InputError, match="step together"):
        make_plan(ask(where, framework="mxnet/dist_async"))
    with pytest.raises(InputError, match="either a network or a profile"):
        make_plan(ask(where, profile=profile()))


def test_a_plan_file_says_what_the_plan_says(tmp_path: Path) -> None:
    made = plan((emulated(4.0),), (emulated(1.0),), batch=500)
    write_plan(made, tmp_path / "plan.toml")
    again = read_plan(tmp_path / "plan.toml")
    assert [member.samples for member in again.group[0].members] == [400, 100]
    assert again.predicted_throughput == made.best.predicted_throughput
    assert again.basis == made.basis
    assert made.as_dict()["candidates"][0]["kind"] == again.kind


def test_the_command_explains_its_choice(paceline: Command, tmp_path: Path) -> None:
    where = tmp_path / "plan.toml"
    asked = ("--network", "resnet50", "--cluster", "mixed-lab", "--global-batch", "512")
    text = paceline("plan", *asked, "--output", str(where))
    assert "best:" in text
    assert "because" in text
    assert read_plan(where).global_batch == 512
    assert "rests on: catalog figures of links and start-up" in text
    best = paceline.json("plan", *asked)["candidates"][0]
    low, high = best["interval_90"]
    assert low < best["predicted_throughput"] < high
    assert best["step_s_interval_90"] == pytest.approx([512 / high, 512 / low])


def test_the_command_takes_a_profile_a_calibration_and_points(paceline: Command, tmp_path: Path) -> None:
    write_profile(profile(), tmp_path / "my.profile")
    write_calibration(replace(CATALOG_ONLY, source="swept here"), tmp_path / "c.json")
    asked = (
        "--profile",
        str(tmp_path / "my.profile"),
        "--calibration",
        str(tmp_path / "c.json"),
        "--cluster",
        "mixed-lab",
    )
    made = paceline.json("plan", *asked)
    assert made["global_batch"] == 8 * 6
    assert "swept here" in made["basis"]
    points = tmp_path / "points.csv"
    points.write_text(
        "network,framework,device,link,devices_per_host,devices,batch_per_device,samples_per_s\n"
        "mine,paceline,v100,10GbE,2,1,8,50\nmine,paceline,v100,10GbE,2,2,8,95\n"
    )
    corrected = paceline.json("plan", *asked, "--measured", str(points))
    assert any("2 measured points" in line for line in corrected["basis"])
    assert "either --network or --profile" in paceline("plan", "--cluster", "mixed-lab", code=2)


def test_wrong_names_are_one_clear_error(paceline: Command) -> None:
    error = paceline("plan", "--network", "resnet50", "--cluster", "mixd-lab", "--global-batch", "64", code=2)
    assert "did you mean 'mixed-lab'" in error
    error = paceline("train", "nothing.py", code=2)
    assert "is not a file" in error


def test_the_baseline_is_ddp_with_equal_shares_and_the_gain_is_over_it() -> None:
    found = plan((device(4.0),), (device(1.0),))
    assert found.baseline is not None
    low, high = found.baseline.gain.interval_90
    assert found.baseline.gain.value == pytest.approx(
        found.best.predicted_throughput / found.baseline.throughput.value - 1
    )
    assert 0.8 < found.baseline.gain.value < 2
    assert low <= found.baseline.gain.value <= high
    assert plan((device(),), (device(),), batch=1).baseline is None


def test_a_device_too_small_for_its_samples_takes_passes_that_cost_time() -> None:
    small = device(memory=4e9)
    found = plan((small,), batch=256)
    (load,) = found.loads
    assert load.passes > 1
    assert load.memory is not None
    assert load.memory <= 4e9
    assert load.samples == 256
    assert found.best.predicted_throughput < plan((device(),), batch=256).best.predicted_throughput


def test_a_plan_says_whether_asynchrony_pays() -> None:
    assert plan((device(1.0),), (device(1.0),)).asynchrony.startswith("Asynchrony does not pay")
    assert "nothing to offer" in plan((device(),)).asynchrony


def test_devices_without_samples_are_no_load(paceline: Command) -> None:
    found = paceline.json("plan", "--network", "gpt2", "--cluster", "8x a100", "--global-batch", "4")
    assert [(load["count"], load["samples"]) for load in found["loads"]] == [(4, 1)]


def test_a_plan_in_text_has_a_baseline_a_legend_and_loads(paceline: Command) -> None:
    text = paceline("plan", "--network", "gpt2", "--cluster", "mixed-lab", "--global-batch", "256")
    for words in ("baseline, DDP", "gain of the plan", "passes", "H: steps between", "Asynchrony", "precision:"):
        assert words in text
    found = paceline.json("plan", "--network", "gpt2", "--cluster", "mixed-lab", "--global-batch", "256", "--set",
                          "link.bandwidth=100Gb/s")  # fmt: skip
    assert found["baseline"]["gain_interval_90"][0] <= found["baseline"]["gain"]
    assert sum(load["count"] * load["samples"] for load in found["loads"]) == 256


@pytest.mark.parametrize("name", ["local", "unequal-cpus.toml", "inspected"])
def test_the_rates_of_this_machines_processor_are_measured(paceline: Command, tmp_path: Path, name: str) -> None:
    cluster = str(ROOT / "examples" / "clusters" / name) if name.endswith(".toml") else name
    if name == "inspected":
        cluster = str(tmp_path / "mine.toml")
        paceline("cluster", "inspect", "--out", cluster)
    made = paceline.json("plan", "--network", "lenet", "--cluster", cluster, "--global-batch", "40")
    shares = [member["samples"] for group in made["candidates"][0]["groups"] for member in group]
    assert sum(shares) == 40
    if name == "local":
        assert len(shares) <= len(os.sched_getaffinity(0)), "no more ranks than cores"
    if name == "unequal-cpus.toml":
        assert shares[0] > 2 * sum(shares[1:]), "a processor throttled to a quarter takes at most that of the other"


def test_ranks_on_one_processor_share_its_cores_also_when_they_are_groups_of_their_own() -> None:
    processor = device(0.05, name="cpu", kind="cpu")
    lonely, crowded = (cluster((processor,) * count, (device(0.05, name="gpu"),)).with_cores(4) for count in (1, 4))
    few, many = (make_plan(ask(where), global_batch=120, calibration=AS_STATED) for where in (lonely, crowded))
    assert few.devices[1].rate == pytest.approx(many.devices[4].rate)
    assert many.devices[0].rate < 0.4 * few.devices[0].rate, "four ranks of one thread, with a serial part each"
    groups = next(one for one in many.ranked if one.kind == "local" and len(one.groups) == 5)
    shares = [shares[0] for shares in groups.shares]
    assert shares[0] < 0.5 * shares[4], "a rank with a quarter of the cores has less to do than the device beside it"
    assert groups.predicted_throughput < 1.4 * few.devices[0].rate + few.devices[1].rate


def test_the_picture_shows_the_baseline_and_says_why_a_longer_bar_ranks_lower() -> None:
    found = plan((emulated(1.0, straggle=0.2),), (emulated(1.0),), (emulated(1.0),), batch=96)
    drawn = plan_bars(found)["data"][0]
    assert drawn["y"][0] == "baseline: DDP, equal shares"
    assert found.baseline is not None
    assert drawn["x"][0] == found.baseline.throughput.value
    assert drawn["y"][-1].startswith(f"1. {found.best.kind}, ")
    assert len(drawn["marker"]["color"]) == len(found.ranked) + 1
    stale = [name for name, one in zip(drawn["y"][:0:-1], found.ranked, strict=True) if one.efficiency < 0.995]
    assert stale
    assert all("a sample worth 0." in name for name in stale)


def test_the_baseline_gives_out_every_sample_of_a_batch_that_does_not_divide() -> None:
    found = plan((device(),), (device(),), batch=9).baseline
    whole = plan((device(),), (device(),), batch=10).baseline
    assert found is not None
    assert whole is not None
    assert found.throughput.value == pytest.approx(whole.throughput.value * 9 / 10)  # 5 + 4 take as long as 5 + 5
