"""A store whose runs follow known costs gives them back."""

import json

import numpy as np
import pytest

from paceline import catalog
from paceline.errors import Unsupported
from paceline.measurements.foreign import nccl_tests
from paceline.measurements.results import load_launches
from paceline.measurements.run import RunData, Span, Step
from paceline.measurements.store import Store
from paceline.model.calibrate import calibrate_store, stored_sweeps, swept_calibration
from paceline.model.profiles import profile_of
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.strategy import Strategy
from tests.unit.test_store import machine, make_run

ONE_THREAD = machine().model_copy(update={"threads": 1, "cores": 2})

FORWARD, BACKWARD, UPDATE, CROWDING = 0.03, 0.06, 0.005, 0.1
GRADIENTS = {"conv1.weight": 4_000_000, "fc.weight": 40_000_000, "fc.bias": 4_000}


def case(bucket):
    cluster = catalog.cluster("local")
    hosts = (cluster.hosts[0].model_copy(update={"devices": cluster.hosts[0].devices[:2]}),)
    plain = cluster.model_copy(update={"hosts": hosts}).model_dump(mode="json")
    strategy = Strategy(bucket=bucket).model_dump(mode="json", exclude={"name"})
    return {"network": {"name": "mine"}, "cluster": plain, "strategy": strategy}


def steps(pass_name, seconds, ranks=1):
    return [Step(pass_name, rank, step, False, step * 1.0, seconds) for rank in range(ranks) for step in range(6)]


def one_rank(store, forward=FORWARD, compute=FORWARD + BACKWARD):
    spans = [
        Span(0, 0, "forward", "conv1", 0.0, 0.02, 10),
        Span(0, 0, "forward", "relu", 0.02, 0.004, 10),
        Span(0, 0, "forward", "fc", 0.03, 0.01, 10),
        Span(0, 0, "backward", "fc.bias", 0.05, 0.001, GRADIENTS["fc.bias"]),
        Span(0, 0, "backward", "fc.weight", 0.06, 0.02, GRADIENTS["fc.weight"]),
        Span(0, 0, "backward", "conv1.weight", 0.09, 0.05, GRADIENTS["conv1.weight"]),
    ]
    rows = steps("clean", FORWARD + BACKWARD + UPDATE) + steps("forward", forward) + steps("compute", compute)
    run = make_run("demo-1-one-000", case_id="one", ranks=1, network="mine", case=case(None), machine=ONE_THREAD)
    store.write(RunData(run, tuple(rows), tuple(spans)))


def two_ranks(store, bucket, seconds):
    name = f"two{bucket:.0f}"
    run = make_run(f"demo-1-{name}-000", case_id=name, ranks=2, network="mine", case=case(bucket), machine=ONE_THREAD)
    store.write(RunData(run, tuple(steps("clean", seconds, 2))))


def sweep(store):
    sizes = [2**k for k in range(10, 28)]
    times = [
        {"collective": "all_reduce", "ranks": 2, "size_bytes": n, "seconds": 2e-4 + 5e-10 * n, "bus_bandwidth": 1.0}
        for n in sizes
    ]
    run = make_run("c-1-s-000", campaign="c-1", study="collectives", case_id="s", facts={"collectives": times})
    store.write(RunData(run))


@pytest.fixture
def store(tmp_path):
    place = Store(tmp_path)
    document = {"campaign": "demo-1", "study": "demo", "started_at": "2026-01-01", "title": "", "launcher": "local"}
    place.write_campaign("demo-1", document)
    one_rank(place)
    sweep(place)
    return place


def test_nothing_to_calibrate_from_is_refused(tmp_path):
    with pytest.raises(Unsupported, match="neither"):
        calibrate_store(Store(tmp_path))


def test_a_profile_comes_from_spans_and_clean_passes(store):
    found = calibrate_store(store)
    (profile,) = found.profiles.values()
    assert sum(layer.forward for layer in profile.layers) == pytest.approx(FORWARD)
    assert sum(layer.backward for layer in profile.layers) == pytest.approx(BACKWARD)
    assert profile.update == pytest.approx(UPDATE)
    assert profile.ready[-2:] == ("fc", "conv1")
    assert {layer.name: layer.gradients for layer in profile.layers}["fc"] == (4_000.0, 40_000_000.0)
    assert found.calibration.collectives == stored_sweeps(store)


def test_costs_of_being_distributed_are_found_again(store):
    (profile,) = calibrate_store(store).profiles.values()
    base = calibrate_store(store).calibration
    truth = {}
    for bucket in (1e6, 25e6):
        strategy = Strategy(bucket=bucket)
        question = Question(catalog.cluster("local"), "pytorch", 8, profile=profile, strategy=strategy)
        plain = predict_curve(question, (2,), calibration=base).predictions[0].terms
        aggregate = plain["aggregate"]
        truth[bucket] = FORWARD + BACKWARD + UPDATE + aggregate + CROWDING * (FORWARD + BACKWARD)
        two_ranks(store, bucket, truth[bucket])
    found = calibrate_store(store)
    assert len(found.fitted) == 2
    for one in found.fitted:
        assert one.predicted_s == pytest.approx(one.measured_s, rel=0.02)
    assert 0.05 < found.calibration.crowding < 0.15
    question = Question(catalog.cluster("local"), "pytorch", 8, profile=profile, strategy=Strategy(bucket=1e6))
    step = predict_curve(question, (2,), calibration=found.calibration).predictions[0].step_s
    assert step.value == pytest.approx(truth[1e6], rel=0.03)


def test_the_verb_writes_a_calibration_and_profiles(store, paceline, tmp_path):
    out, folder = tmp_path / "cal.json", tmp_path / "profiles"
    args = ("calibrate", "--store", str(store.root), "--output", str(out), "--profiles", str(folder))
    found = paceline.json(*args)
    assert found["schema"] == "paceline.calibrate/1"
    assert json.loads(out.read_text())["schema"] == "paceline.calibration/1"
    (profile,) = folder.iterdir()
    ask = ("predict", "--profile", str(profile), "--cluster", "local", "--devices", "1,2", "--calibration", str(out))
    one, two = paceline.json(*ask)["predictions"]
    assert one["step_s"] == pytest.approx(FORWARD + BACKWARD + UPDATE)
    assert two["step_s"] > one["step_s"]
    assert "collectives" in paceline(*args)
    assert np.isfinite(two["interval_90"]).all()


def test_a_disturbed_forward_pass_gives_a_profile_that_spans_split_and_that_is_doubted(tmp_path):
    store = Store(tmp_path)
    one_rank(store, forward=2 * (FORWARD + BACKWARD))
    (launches,) = load_launches(store, "demo-1")
    profile = profile_of(store, launches)
    forward, backward = (sum(getattr(layer, name) for layer in profile.layers) for name in ("forward", "backward"))
    spans = (0.02 + 0.004 + 0.01, 0.001 + 0.02 + 0.05)
    assert forward + backward == pytest.approx(FORWARD + BACKWARD)
    assert forward / backward == pytest.approx(spans[0] / spans[1])
    assert "not to be trusted" in profile.source


def test_parts_that_took_longer_than_the_whole_step_are_scaled_to_it(tmp_path):
    store = Store(tmp_path)
    whole = FORWARD + BACKWARD + UPDATE
    one_rank(store, forward=FORWARD, compute=1.25 * whole)
    profile = profile_of(store, load_launches(store, "demo-1")[0])
    assert sum(layer.forward for layer in profile.layers) == pytest.approx(FORWARD / 1.25)
    assert sum(layer.forward + layer.backward for layer in profile.layers) == pytest.approx(whole)
    assert profile.update == 0.0


def test_a_quiet_profile_is_split_by_its_passes_and_not_doubted(tmp_path):
    store = Store(tmp_path)
    one_rank(store)
    profile = profile_of(store, load_launches(store, "demo-1")[0])
    assert sum(layer.forward for layer in profile.layers) == pytest.approx(FORWARD)
    assert sum(layer.backward for layer in profile.layers) == pytest.approx(BACKWARD)
    assert "not to be trusted" not in profile.source


@pytest.mark.parametrize(("compute", "rate", "lost"), [((0.9, 0.7, 0.8), 0.6, 0.2), ((1.2, 1.1, 1.3), 0.6, 0.0)])
def test_sweeps_tell_what_exchange_and_compute_leave_of_each_other(tmp_path, compute, rate, lost):
    store = Store(tmp_path)
    sizes = tuple(nccl_tests.TestedSize(size, 1e-4 + 1e-6 * size, 1e6, 0) for size in (1000, 10_000, 100_000))
    for kept, exchange, copied in zip(compute, (0.8, 0.6, 0.5), (1e9, 3e9, 2e9), strict=True):
        run = nccl_tests.sweep_of(nccl_tests.CollectiveTest("made", "all_reduce", 2, ("node",), "", sizes), "made").run
        facts = {**run.facts, "overlap": {"compute": kept, "exchange": exchange}, "copy_bytes_per_s": copied}
        store.write(RunData(run.model_copy(update={"facts": facts})))
    found = swept_calibration(store)
    assert (found.overlap_rate, found.slowdown.value) == (rate, pytest.approx(lost / rate))
    assert found.copy_per_byte == pytest.approx(1 / 2e9)
    assert len(found.collectives) == len(stored_sweeps(store)) > 0
    assert swept_calibration(store, "elsewhere").collectives == ()
