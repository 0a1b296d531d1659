"""What virtual clusters compute before anything is started: layouts, waits, dilation, faithfulness, commands."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import variables
from paceline.bench.collectives import collective_times
from paceline.bench.sites.engines import Agents, MpiEngine, SshEngine
from paceline.bench.sites.schedulers import SlurmEngine
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.bench.virtual.clock import DeviceClock
from paceline.bench.virtual.dilation import ExchangeLoad, choose_dilation, judge
from paceline.bench.virtual.emulation import emulated_seconds, emulation_document, least_tail
from paceline.bench.virtual.layout import lay_out, path_latency, path_rate
from paceline.bench.virtual.shaping import compiled_helper, segment_bytes
from paceline.bench.virtual.verify import link_paths
from paceline.catalog import network
from paceline.cost.collective import bus_factor
from paceline.errors import InputError, UnknownName, Unsupported
from paceline.measurements.profile import Profile, ProfiledLayer, write_profile
from paceline.measurements.run import Span
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link
from paceline.spec.network import layer_costs
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case


def cluster(*rates: float, latency: float = 1e-3) -> Cluster:
    inside = Link(name="bus", bandwidth=1e11)
    hosts = [
        Host(
            name=f"h{number}",
            devices=(Device(name="d"),),
            inside=inside,
            link=Link(name="way", bandwidth=rate, latency=latency * (number + 1)),
        )
        for number, rate in enumerate(rates)
    ]
    return Cluster(name="c", hosts=tuple(hosts))


def test_dilation_slows_links_and_stretches_latency() -> None:
    plain, slow = (lay_out(cluster(1e9, 5e8), instance="x", dilation=factor) for factor in (1.0, 10.0))
    assert [seat.link.bandwidth for seat in slow.seats] == [1e8, 5e7]
    assert path_latency(*slow.seats) == pytest.approx(10 * path_latency(*plain.seats))
    assert path_latency(*plain.seats) == pytest.approx(1.5e-3)
    assert path_rate(plain.seats) == 5e8


def test_instances_do_not_share_a_network() -> None:
    found = {lay_out(cluster(1e9), instance=f"i{number}").seats[0].address for number in range(100)}
    assert len(found) > 95


def test_too_many_hosts_are_refused() -> None:
    with pytest.raises(Unsupported, match="at most"):
        lay_out(cluster(*([1e9] * 251)), instance="x")


def test_segments_are_short_on_slow_links_and_single_where_packets_are_lost() -> None:
    slow = lay_out(cluster(1e6, 1e6), instance="x")
    fast = lay_out(cluster(1e9, 1e9), instance="x")
    assert segment_bytes(slow, slow.seats[0]) < 2000 < 60000 < segment_bytes(fast, fast.seats[0]) <= 65536
    lossy = cluster(1e9, 1e9)
    link = lossy.hosts[0].link.model_copy(update={"loss": 0.01})
    layout = lay_out(
        lossy.model_copy(update={"hosts": tuple(h.model_copy(update={"link": link}) for h in lossy.hosts)}),
        instance="x",
    )
    assert segment_bytes(layout, layout.seats[0]) < 2000


def test_stated_times_are_spread_over_layers_by_work() -> None:
    device = Device(name="d", emulation=Emulation(forward=0.04, backward=0.06, speed=2.0))
    assert emulated_seconds(device, network("lenet"), batch=8).sum(axis=1) == pytest.approx([0.02, 0.03])
    for_eight = Device(name="d", emulation=Emulation(forward=0.04, backward=0.06, speed=2.0, batch=8))
    assert emulated_seconds(for_eight, network("lenet"), batch=16).sum(axis=1) == pytest.approx([0.04, 0.06])


def test_a_profile_gives_the_times_of_each_layer(tmp_path: Path) -> None:
    names = [cost.name for cost in layer_costs(network("lenet"))]
    layers = tuple(ProfiledLayer(name=name, forward=0.001 * n, backward=0.002 * n) for n, name in enumerate(names))
    write_profile(Profile(network="lenet", batch=4, layers=layers), tmp_path / "p.json")
    device = Device(name="d", emulation=Emulation(profile=str(tmp_path / "p.json"), speed=2.0))
    forward, backward = 2 * emulated_seconds(device, network("lenet"), batch=4)
    assert forward == pytest.approx([layer.forward for layer in layers])
    assert backward == pytest.approx([layer.backward for layer in layers])
    twice = 2 * emulated_seconds(device, network("lenet"), batch=8)[0]
    assert twice[-1] == pytest.approx(2 * layers[-1].forward - 8e-6), "the start of a kernel does not grow"
    with pytest.raises(Unsupported, match="no layer"):
        emulated_seconds(device, network("resnet20"), batch=8)


def test_a_device_of_which_nothing_is_known_cannot_be_emulated() -> None:
    device = Device(name="d", peak={"float32": 1e12}, memory_bandwidth=1e11, emulation=Emulation())
    with pytest.raises(Unsupported, match="no peak rate"):
        emulated_seconds(device, network("lenet"), batch=1, precision="float16")
    with pytest.raises(Unsupported, match="memory bandwidth is not known"):
        emulated_seconds(device.model_copy(update={"memory_bandwidth": None}), network("lenet"), batch=1)


def test_the_document_says_what_a_step_takes_and_needs() -> None:
    case = exchanging_case(1e9)
    device = case.cluster.hosts[0].devices[0].model_copy(update={"memory": 1e9, "memory_bandwidth": 1e11})
    (one,) = emulation_document([device], case)
    (large,) = emulation_document([device], case.model_copy(update={"batch": 4096}))
    assert sum(sum(layer) for layer in one["layers"]) == pytest.approx(0.3)
    assert one["update"] > 0
    assert one["needed_bytes"] < one["memory_bytes"] < large["needed_bytes"]
    (cpu,) = emulation_document([device.model_copy(update={"kind": "cpu"})], case)
    assert cpu["memory_bytes"] is None, "the host's memory is paged"
    with pytest.raises(Unsupported, match="is real"):
        emulation_document([Device(name="real"), device], case)


def exchange(ranks: int, rate: float, size: float) -> ExchangeLoad:
    return ExchangeLoad(ranks, (rate,) * ranks, (size / 8,) * 8, backward_s=0.08, step_s=0.12)


def test_every_link_is_measured_both_ways_at_its_full_rate() -> None:
    for rates in ((1e8,) * 2, (1e8,) * 7, (1e8, 5e6, 5e6), (5e6, 1e8, 1e8, 2e8), (3e8, 1e8, 2e8)):
        layout = lay_out(cluster(*rates), instance="x")
        seen = {seat.name: {"out": 0.0, "in": 0.0} for seat in layout.seats}
        for source, target in link_paths(layout):
            for seat, way in ((source, "out"), (target, "in")):
                seen[seat.name][way] = max(seen[seat.name][way], path_rate((source, target)))
        for number, rate in enumerate(rates):
            reachable = min(rate, max(other for index, other in enumerate(rates) if index != number))
            assert seen[f"h{number}"] == {"out": reachable, "in": reachable}


def test_more_load_never_means_less_dilation() -> None:
    for ranks, rate in itertools.product((2, 4, 8, 16), (1.25e8, 1.25e9, 1.25e10)):
        here = choose_dilation(exchange(ranks, rate, 1e7), cores=2)
        assert here <= choose_dilation(exchange(2 * ranks, rate, 1e7), cores=2)
        assert here <= choose_dilation(exchange(ranks, 10 * rate, 1e7), cores=2)
        assert here >= choose_dilation(exchange(ranks, rate, 1e7), cores=64) >= 1
        assert choose_dilation(exchange(ranks, rate, 1e7), cores=2, slower=2.5) > here
    assert choose_dilation(exchange(1, 1e9, 1e9), cores=2) == 1


def test_latencies_that_the_machine_cannot_hold_are_played_slower() -> None:
    plain = ExchangeLoad(2, (1.25e8, 1.25e8), (1e3,), backward_s=10.0, step_s=15.0)
    found = {
        latency: choose_dilation(replace(plain, latency=latency), cores=2) for latency in (0, 5e-5, 1e-4, 2e-4, 1e-3)
    }
    assert found == {0: 1, 5e-5: 1, 1e-4: 5, 2e-4: 2, 1e-3: 1}


def test_an_unfaithful_run_is_known_by_its_worst_rank() -> None:
    good, bad = {"late_share": 0.001, "queued_share": 0.004}, {"late_share": 0.02, "queued_share": 0.3}
    assert judge([good, good], dilation=2).holds
    verdict = judge([good, bad], dilation=2)
    assert not verdict.holds
    assert verdict.error == pytest.approx(0.32)


def test_threads_that_waited_behind_compute_did_no_harm() -> None:
    """Whatever was added to a step lies after the compute of the rank that waited least for the others."""
    first = {"late_share": 0.0, "queued_share": 0.3, "beyond_share": 0.02}
    second = {"late_share": 0.0, "queued_share": 0.3, "beyond_share": 0.4}
    verdict = judge([first, second], dilation=2)
    assert verdict.holds
    assert verdict.error == pytest.approx(0.02)
    assert "2.0 % longer" in str(verdict)
    assert not judge([second, second], dilation=2).holds


def test_the_last_gradient_takes_its_time_after_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime()
    monkeypatch.setattr("paceline.bench.virtual.clock.time", fake)
    clock = DeviceClock({"least_tail": 0.01}, dilation=2.0, seed=0)
    clock.begin_step()
    clock.run(0.1)
    fake.sleep(0.025)
    clock.end_compute()
    assert clock.beyond_s == pytest.approx(0.005)


def exchanging_case(link_rate: float, **emulation: float) -> Case:
    device = Device(name="d", emulation=Emulation(forward=0.1, backward=0.2, **emulation))
    link, inside = Link(name="way", bandwidth=link_rate, latency=1e-4), Link(name="bus", bandwidth=1e12)
    hosts = tuple(Host(name=f"h{n}", devices=(device,), inside=inside, link=link) for n in range(4))
    return Case(
        network=network("lenet"),
        cluster=Cluster(name="c", hosts=hosts),
        framework="pytorch/ddp",
        strategy=Strategy(),
        ranks=4,
        batch=8,
        scaling="weak",
        placement="packed",
        input="resident",
        threads=1,
    )


def test_least_tail_is_what_the_links_cannot_have_sent_yet() -> None:
    fast, slow, unsteady = exchanging_case(1e9), exchanging_case(1e4), exchanging_case(1e4, jitter=0.1)
    sizes = [4 * sum(tensor.elements for tensor in cost.tensors) for cost in layer_costs(fast.network)]
    device = fast.cluster.hosts[0].devices[0]
    backward = emulated_seconds(device, fast.network, batch=8)[1]
    last = next(number for number, size in reversed(list(enumerate(sizes))) if size)
    assert least_tail(fast, device) == pytest.approx(1.5 * sizes[0] / 1e9 + 6e-4)
    # Over a slow link everything is still outstanding but what left between the first gradient and the last compute.
    whole = 1.5 * sum(sizes) / 1e4 - backward[:last].sum()
    assert least_tail(slow, device) == pytest.approx(whole)
    assert least_tail(unsteady, unsteady.cluster.hosts[0].devices[0]) == pytest.approx(1.5 * sizes[0] / 1e4 + 6e-4)
    assert least_tail(fast.model_copy(update={"framework": "pytorch/fsdp2"}), device) is None
    assert least_tail(fast.model_copy(update={"ranks": 1}), device) == 0


class FakeTime:
    """A clock that only sleeping moves."""

    now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_the_device_clock_forgives_lateness_that_the_host_makes_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeTime()
    monkeypatch.setattr("paceline.bench.virtual.clock.time", fake)
    clock = DeviceClock({}, dilation=2.0, seed=0)
    clock.begin_step()
    for _ in range(10):
        clock.run(0.002)
        fake.sleep(0.0005)
    assert fake.now == pytest.approx(100.0405)
    clock.begin_step()
    assert clock.late_s == 0
    fake.sleep(0.05)
    clock.run(0.001)
    clock.begin_step()
    assert clock.late_s == pytest.approx(0.048)
    fake.sleep(0.05)
    clock.waited_for_data()
    clock.run(0.001)
    assert fake.now == pytest.approx(100.0405 + 0.05 + 0.05 + 0.002)
    clock.begin_step()
    assert clock.late_s == pytest.approx(0.048)


def test_stragglers_and_jitter_are_drawn_by_seed() -> None:
    settings = {"jitter": 0.0, "straggle": 0.5, "straggle_factor": 10.0}
    factors = []
    for seed in (1, 1, 2):
        clock = DeviceClock(settings, dilation=1.0, seed=seed)
        drawn = []
        for _ in range(40):
            clock.begin_step()
            drawn.append(clock._factor)
        factors.append(drawn)
    assert factors[0] == factors[1] != factors[2]
    assert 5 < factors[0].count(10.0) < 35


def test_engines_ask_for_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(("a", "a", "b"), ("python3", "-c", "x y"), tmp_path)
    commands = SshEngine(("-p", "22")).submission(agents).commands
    assert [words[-2] for words in commands.values()] == ["a", "a", "b"]
    assert commands["ssh 0"][-1] == "python3 -c 'x y'"
    with pytest.raises(InputError, match="--hosts"):
        SshEngine().submission(Agents(("",), ("python3",), tmp_path))
    for name in ("srun", "mpirun"):
        (tmp_path / name).write_text('#!/bin/sh\necho "mpirun (Open MPI) 4.1"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert "a:2,b:1" in MpiEngine().submission(agents).commands["mpirun"]
    words = SlurmEngine(("--partition=x",)).submission(agents).commands["slurm"]
    assert words[:3] == ["srun", "--kill-on-bad-exit=0", "--partition=x"]
    assert {"--ntasks=3", "--nodes=2"} <= set(words)
    assert SlurmEngine(kind="hetjob").submission(agents).commands["slurm"].count(":") == 1
    (odd := tmp_path / "a b;touch here").mkdir()
    script = SlurmEngine(kind="sbatch").submission(Agents(("a",), ("true",), odd)).commands["slurm"][-1]
    assert f"'--nodelist={odd}/machines'" in Path(script).read_text()
    anywhere = Agents(("", "", ""), agents.command, tmp_path)
    assert "--array=0-2" in SlurmEngine(kind="array").submission(anywhere).commands["slurm"]
    with pytest.raises(Unsupported, match="array"):
        SlurmEngine(kind="array").submission(agents)


def test_wrong_targets() -> None:
    with pytest.raises(UnknownName, match="slrum"):
        make_launcher(LaunchTarget(on="slrum"))
    with pytest.raises(InputError, match="dilate"):
        make_launcher(LaunchTarget(on="ssh", dilation=2.0))


def test_bus_bandwidth_as_nccl_tests_has_it() -> None:
    assert bus_factor("all_reduce", 4) == 1.5
    assert bus_factor("all_gather", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1.0
    spans = [
        Span(rank, step, "aggregate", "all_reduce", 0.0, seconds, 1000)
        for rank, step, seconds in ((0, 0, 1.0), (1, 0, 2.0), (0, 1, 4.0), (1, 1, 3.0), (0, 2, 2.0), (1, 2, 2.0))
    ]
    (found,) = collective_times(spans, 2)
    assert found.seconds == 2.0
    assert found.bus_bandwidth == 500.0


def test_a_target_as_arguments_of_the_command() -> None:
    assert LaunchTarget().arguments == ""
    target = LaunchTarget(on="ssh", hosts=("a", "b"), options=("-p 22",))
    assert target.arguments == " --on ssh --hosts a,b --engine '-p 22'"
    assert LaunchTarget(on="virtual", dilation=5.0).arguments == " --on virtual --dilation 5"


def test_the_delay_helper_is_compiled_into_the_cache_of_paceline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variables.HOME, str(tmp_path))
    monkeypatch.setattr("paceline.bench.virtual.shaping._compile", lambda source, program: program.touch())
    assert compiled_helper().parent == tmp_path / "cache"
