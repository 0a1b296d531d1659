"""Predictions on a host whose ranks share cores: threads of the profile, turns, words; profiles that change devices."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from paceline import catalog
from paceline.cost.host import SharingProbe, together
from paceline.errors import Unsupported
from paceline.measurements.profile import Profile, ProfiledHost, ProfiledLayer, write_profile
from paceline.model.calibration import AS_STATED, Calibration
from paceline.model.compute import counted_work, work_of_profile
from paceline.model.prediction import Prediction
from paceline.model.question import Question, works_of
from paceline.model.scaling import predict_curve
from paceline.model.simulate.scenario import Disturbance, simulate_question
from paceline.spec.strategy import Strategy
from tests.conftest import Command

HOST = ProfiledHost(cores=2, threads=2, peak=100e9, bandwidth=20e9, thread_gain=1.8)
LAYERS = (
    ProfiledLayer(name="a", forward=0.01, backward=0.02, gradients=(4e4,), kind="convolution", macs=1e7, moved=2e5),
    ProfiledLayer(name="b", forward=0.02, backward=0.04, gradients=(8e4,), kind="linear", macs=2e7, moved=1e5),
)
PROFILE = Profile(network="mine", device="host-cpu", batch=8, layers=LAYERS, update=0.01, host=HOST, jitter=0.0)
CALM = Calibration(**{**vars(AS_STATED), "jitter": 0.0})
LOCAL = catalog.cluster("local").with_cores(2)


def predicted(
    count: int, profile: Profile = PROFILE, *, threads: int | None = None, calibration: Calibration = CALM
) -> Prediction:
    question = Question(LOCAL, "pytorch", 8, profile=profile, threads=threads)
    return predict_curve(question, (count,), calibration=calibration).predictions[0]


def compute(prediction: Prediction) -> float:
    return sum(prediction.terms[name] for name in ("forward", "backward", "update"))


def test_one_rank_takes_what_was_measured() -> None:
    assert predicted(1).step_s.value == pytest.approx(PROFILE.step)


def test_two_ranks_of_one_thread_each_lose_what_two_threads_gained() -> None:
    assert compute(predicted(2)) == pytest.approx(1.8 * PROFILE.step)
    assert compute(predicted(1, threads=1)) == pytest.approx(1.8 * PROFILE.step)


def test_four_ranks_on_two_cores_take_turns() -> None:
    assert compute(predicted(4)) == pytest.approx(2 * 1.8 * PROFILE.step)
    four, eight = predicted(4), predicted(8)
    assert eight.samples_per_s.value < 1.05 * four.samples_per_s.value


def test_a_profile_of_one_thread_stays_on_one_thread() -> None:
    single = PROFILE.model_copy(update={"host": HOST.model_copy(update={"threads": 1, "thread_gain": None})})
    assert predicted(1, single).step_s.value == pytest.approx(PROFILE.step)
    assert compute(predicted(2, single)) == pytest.approx(PROFILE.step)
    assert compute(predicted(4, single)) == pytest.approx(2 * PROFILE.step)


def test_a_profile_taken_beside_others_holds_them_already() -> None:
    beside = PROFILE.model_copy(
        update={"crowd": 4, "host": HOST.model_copy(update={"threads": 1, "thread_gain": None})}
    )
    assert compute(predicted(4, beside)) == pytest.approx(PROFILE.step)
    assert compute(predicted(2, beside)) == pytest.approx(PROFILE.step / 2)


def test_a_profile_that_does_not_know_its_gain_is_less_certain_on_other_threads() -> None:
    unknown = PROFILE.model_copy(update={"host": HOST.model_copy(update={"thread_gain": None})})
    assert predicted(2, unknown).step_s.half_width > 2 * predicted(2).step_s.half_width
    assert predicted(1, unknown).step_s.half_width == pytest.approx(predicted(1).step_s.half_width)


def test_another_launch_on_a_host_differs_as_the_steps_of_one_do() -> None:
    shaky = PROFILE.model_copy(update={"jitter": 0.15, "uncertainty": 0.15})
    low, high = predicted(1, shaky).step_s.interval_90
    assert (high / low) ** 0.5 == pytest.approx(math.exp(1.645 * 0.15 * 2**0.5), rel=0.08)
    elsewhere = shaky.model_copy(update={"host": None})
    calm = work_of_profile(PROFILE.model_copy(update={"uncertainty": 0.02}))
    assert (work_of_profile(elsewhere).spread, calm.spread) == (0.15, 0.02), "a device of its own; steps all alike"


def test_a_probe_says_how_ranks_share() -> None:
    probed = Calibration(**{**vars(CALM), "sharing": (SharingProbe(2, 4, 1, 1.25),)})
    assert compute(predicted(4, calibration=probed)) == pytest.approx(2.5 * 1.8 * PROFILE.step)


def test_threads_that_meet_in_a_convolution_wait_for_a_core_and_others_do_not() -> None:
    apart = PROFILE.model_copy(update={"layers": (LAYERS[0].model_copy(update={"kind": "linear"}), LAYERS[1])})
    probed = Calibration(**{**vars(CALM), "sharing": (SharingProbe(2, 4, 2, 1.0, wait=5e-3),)})
    for calibration, wait in ((CALM, 3e-3), (probed, 5e-3)):
        met = predicted(4, threads=2, calibration=calibration)
        free = predicted(4, apart, threads=2, calibration=calibration)
        assert compute(met) - compute(free) == pytest.approx(2 * wait), "a turn of each of the ranks of a core"
    assert compute(predicted(4)) == compute(predicted(4, apart)), "one thread meets nobody"
    few = PROFILE.model_copy(update={"batch": 2})
    assert work_of_profile(few).at(2).meetings == 0, "of a small batch the channels are split"


@pytest.mark.parametrize(("threads", "excess"), [(1, 1.25), (2, 1.5)])
def test_a_probe_on_as_many_threads_counts(threads: int, excess: float) -> None:
    probes = (SharingProbe(2, 4, 1, 1.25), SharingProbe(2, 4, 2, 1.5, wait=0.0), SharingProbe(2, 2, 2, 9.0, wait=0.0))
    turns, _ = together(4, threads, 2, parallel=0.8)
    assert together(4, threads, 2, parallel=0.8, probes=probes)[0] == pytest.approx(excess * turns)


def test_a_simulation_shares_cores_like_a_prediction() -> None:
    question = Question(LOCAL, "pytorch", 8, profile=PROFILE)
    simulated = simulate_question(question, 4, Disturbance(steps=10), calibration=CALM)
    assert simulated.predicted_step_s == pytest.approx(predicted(4).step_s.value, rel=1e-6)


def test_the_command_says_who_shares_what(paceline: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.profile"
    write_profile(PROFILE, path)
    done = paceline("predict", "--profile", str(path), "--cluster", "local", "--devices", "1,64")
    assert "64 ranks share" in done
    plain = paceline.json("predict", "--profile", str(path), "--cluster", "local")
    assert any("rank" in note and "core" in note for note in plain["curves"][0]["notes"])


def test_a_captured_network_moves_to_a_gpu_by_what_it_computes_and_not_by_what_the_processor_reached() -> None:
    question = Question(catalog.cluster("dgx-a100"), "pytorch", 8, profile=PROFILE)
    curve = predict_curve(question, (1,))
    assert curve.predictions[0].step_s.value < PROFILE.step / 20
    assert "the profile gives layers, not their times" in curve.basis[0]
    slow = PROFILE.model_copy(update={"host": HOST.model_copy(update={"peak": 50e9, "bandwidth": 10e9})})
    again = predict_curve(Question(catalog.cluster("dgx-a100"), "pytorch", 8, profile=slow), (1,))
    assert again.predictions[0].step_s == curve.predictions[0].step_s


def test_a_profile_of_a_catalog_network_and_the_catalog_agree_on_a_gpu() -> None:
    cluster, network = catalog.cluster("v100-10gbe-8x4"), catalog.network("resnet20")
    layers = tuple(ProfiledLayer(name=layer.name, forward=2e-3, backward=4e-3) for layer in network.layers)
    profile = PROFILE.model_copy(update={"network": "resnet20", "batch": 16, "layers": layers, "ready": ()})
    ours = predict_curve(Question(cluster, "pytorch", 16, profile=profile), (4,)).predictions[0]
    catalogs = predict_curve(Question(cluster, "pytorch", 16, network=network), (4,)).predictions[0]
    assert ours.step_s.value == pytest.approx(catalogs.step_s.value)


def test_a_profile_keeps_its_precision_unless_another_is_asked(paceline: Command, tmp_path: Path) -> None:
    path = tmp_path / "mixed.profile"
    write_profile(PROFILE.model_copy(update={"device": "a100-40gb", "host": None, "precision": "amp"}), path)
    ask = ("predict", "--profile", str(path), "--cluster", "8x a100", "--devices", "1")
    ways: tuple[tuple[str, ...], ...] = ((), ("--precision", "amp"), ("--precision", "fp32"))
    kept, asked, other = (paceline.json(*ask, *way)["predictions"][0] for way in ways)
    assert kept == asked != other
    assert kept["step_s"] == pytest.approx(PROFILE.step)
    assert "precision: amp, that of the profile" in paceline(*ask)
    elsewhere = paceline("predict", "--profile", str(path), "--cluster", "8x h100", "--devices", "1")
    assert "precision: amp: float16" in elsewhere


def test_a_profile_moved_to_half_precision_exchanges_half_the_bytes() -> None:
    on = PROFILE.model_copy(update={"device": "a100-40gb", "host": None})
    cluster = catalog.cluster("a100 over 10gbe x 4")
    plain, half = (
        Question(cluster, "pytorch", 8, profile=on, strategy=Strategy.model_validate({"precision": name}))
        for name in ("float32", "bfloat16")
    )
    sent = [work(8).total_bytes for one in (plain, half) for work in works_of(one).values()]
    assert sent == [pytest.approx(12e4), pytest.approx(6e4)]


def test_bytes_counted_in_half_precision_are_those_of_float32_in_a_roofline() -> None:
    layers = tuple(
        layer.model_copy(update={"moved": layer.moved / 2, "gradients": tuple(size / 2 for size in layer.gradients)})
        for layer in LAYERS
        if layer.moved
    )
    half = PROFILE.model_copy(update={"layers": layers, "precision": "bfloat16"})
    device = catalog.device("a100-40gb")
    ours, whole = (counted_work(one, device, precision="float32") for one in (half, PROFILE))
    assert ours is not None
    assert whole is not None
    assert ours.at(8).total_bytes == whole.at(8).total_bytes
    assert ours.update == whole.update


def test_a_profile_without_counts_does_not_move() -> None:
    bare = PROFILE.model_copy(
        update={"layers": tuple(layer.model_copy(update={"macs": None}) for layer in PROFILE.layers)}
    )
    with pytest.raises(Unsupported, match="does not count multiply-adds"):
        predict_curve(Question(catalog.cluster("dgx-a100"), "pytorch", 8, profile=bare), (1,))
