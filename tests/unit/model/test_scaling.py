from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline import catalog
from paceline.cost.memory import memory_of
from paceline.errors import InputError, UnknownName, Unsupported
from paceline.measurements.profile import Profile, ProfiledLayer, read_profile, write_profile
from paceline.model.calibration import CATALOG_ONLY, Uncertain, read_calibration, write_calibration
from paceline.model.changes import changed, parse_changes
from paceline.model.question import Question, device_key, works_of
from paceline.model.scaling import predict_curve, spreads_of
from paceline.model.sweep import CollectiveFit
from paceline.report.words import common_label, dominant_words
from paceline.spec.cluster import Cluster, Device, Emulation
from paceline.spec.strategy import Strategy
from tests.unit.model.clusters import V100, cluster

COUNTS = (1, 2, 4, 8, 16)


def ask(**changes):
    given = {"cluster": cluster(), "framework": "pytorch", "batch": 32, "network": catalog.network("resnet50")}
    return Question(**{**given, **changes})


def steps(question, counts=COUNTS, **options):
    return [p.step_s.value for p in predict_curve(question, counts, **options).predictions]


def test_a_curve_has_intervals_terms_knee_and_advice():
    curve = predict_curve(ask(), COUNTS)
    for prediction in curve.predictions:
        assert sum(prediction.terms.values()) == pytest.approx(prediction.step_s.value)
        (low90, high90), (low50, high50) = prediction.samples_per_s.interval_90, prediction.samples_per_s.interval_50
        assert low90 <= low50 <= prediction.samples_per_s.value <= high50 <= high90
        assert prediction.cost is not None
    first = curve.predictions[0]
    assert first.efficiency == 1.0
    assert [first.terms[name] for name in ("aggregate", "waiting", "fixed")] == pytest.approx([0.0] * 3, abs=1e-12)
    assert curve.knee == 4
    assert curve.predictions[-1].beside_compute[0] == "aggregate"
    assert "bench-collectives" in curve.advice


def test_the_knee_does_not_depend_on_the_counts_that_are_asked():
    asked = [(1,), (1, 16), (3, 7), (2, 8, 16), COUNTS]
    assert {predict_curve(ask(), counts).knee for counts in asked} == {4}
    assert predict_curve(ask(cluster=cluster(1, 2)), (1, 2)).knee is None


def test_dominant_is_the_largest_part_of_the_step():
    for prediction in predict_curve(ask(), COUNTS).predictions:
        parts = {name: s for name, s in prediction.terms.items() if name not in ("forward", "backward")}
        name, share = prediction.beside_compute
        assert parts[name] == max(parts.values()) == pytest.approx(share * prediction.step_s.value)
        compute = prediction.terms["forward"] + prediction.terms["backward"]
        assert prediction.dominant == ("compute" if compute > parts[name] else name)
    one = predict_curve(ask(), (1,)).predictions[0]
    assert (one.dominant, one.beside_compute[0]) == ("compute", "update")
    assert dominant_words(one) == "compute"


def test_a_prediction_from_a_profile_does_not_claim_to_rest_on_the_catalog_only():
    basis = predict_curve(ask(network=None, profile=profile(), batch=8), (1, 2)).basis
    assert any("profile of mine" in line for line in basis)
    assert not any("only" in line for line in basis)


def test_the_best_fusion_is_told():
    fusion = predict_curve(ask(), COUNTS).detail["fusion"]
    assert fusion["optimal"]["exposed_s"] <= min(fusion["policy"]["exposed_s"], fusion["mgwfbp"]["exposed_s"]) + 1e-12
    last = predict_curve(ask(), COUNTS).predictions[-1]
    assert fusion["policy"]["exposed_s"] == pytest.approx(last.terms["aggregate"], rel=0.1)
    assert fusion["policy"]["exposed_s"] >= last.terms["aggregate"], "a slower backward hides more"
    assert predict_curve(ask(framework="cntk"), COUNTS).detail["fusion"] == {}


def test_frameworks_differ_by_their_policy():
    overlapped, after, servers = (steps(ask(framework=name))[-1] for name in ("pytorch", "cntk", "mxnet"))
    assert overlapped < after
    assert overlapped < servers


@pytest.mark.parametrize("framework", ["pytorch/fsdp2", "horovod", "caffe-mpi", "tensorflow/parameter_server", "jax"])
def test_every_policy_can_be_asked(framework):
    found = steps(ask(framework=framework))
    assert found == sorted(found), "more devices never make a step shorter"
    assert found[-1] > 1.05 * found[0]


def test_strategies_change_the_exchange():
    plain = steps(ask())[-1]
    assert steps(ask(strategy=Strategy(compression="float16")))[-1] < plain
    assert steps(ask(strategy=Strategy(algorithm="hierarchical")))[-1] > 0
    slow = predict_curve(ask(strategy=Strategy(accumulate=4)), (16,)).predictions[0]
    assert slow.samples_per_s.value > 16 * 32 / plain


def test_a_slower_device_makes_the_others_wait():
    slow = Device(**{**V100.model_dump(), "name": "old", "peak": {"float32": 8e12}})
    even = cluster(1, 2)
    mixed = Cluster(name="m", hosts=(even.hosts[0].model_copy(update={"devices": (V100, slow)}),))
    assert predict_curve(ask(cluster=mixed), (2,)).predictions[0].terms["waiting"] > 0.01
    assert predict_curve(ask(cluster=even), (2,)).predictions[0].terms["waiting"] < 0.005
    free = ask(cluster=mixed, strategy=Strategy(synchrony="asynchronous"))
    assert steps(free, (2,))[0] < steps(ask(cluster=mixed), (2,))[0]


def test_input_is_hidden_until_it_is_too_slow():
    host = cluster(1, 4).hosts[0]
    fast, slow = (Cluster(name="d", hosts=(host.model_copy(update={"disk": rate}),)) for rate in (5e9, 20e6))
    assert predict_curve(ask(cluster=fast, input="files"), (4,)).predictions[0].terms["io"] == 0.0
    assert predict_curve(ask(cluster=slow, input="files"), (4,)).predictions[0].dominant == "io"
    with pytest.raises(Unsupported, match="disk"):
        predict_curve(ask(input="files"), (4,))


def profile(**changes):
    layers = (
        ProfiledLayer(name="a", forward=0.01, backward=0.02, gradients=(4e6,)),
        ProfiledLayer(name="relu", forward=0.001, backward=0.002),
        ProfiledLayer(name="b", forward=0.02, backward=0.03, gradients=(8e6, 4e3)),
    )
    return Profile(**{"network": "mine", "batch": 8, "layers": layers, "update": 0.003, **changes})


def test_a_profile_predicts_its_own_step(tmp_path):
    path = tmp_path / "x.profile"
    write_profile(profile(), path)
    assert read_profile(path) == profile()
    question = ask(network=None, profile=profile(), batch=8)
    found = predict_curve(question, (1, 8)).predictions
    assert found[0].step_s.value == pytest.approx(profile().step)
    assert found[0].step_s.half_width < 0.05
    assert steps(replace(question, batch=16), (1,))[0] == pytest.approx(2 * 0.083 + 0.003, rel=0.01)


def test_a_profile_moves_to_another_device_by_rooflines():
    where = catalog.cluster("v100-10gbe-8x4")
    known = profile(network="lenet", device="p100-pcie")
    moved = predict_curve(ask(cluster=where, network=None, profile=known, batch=8), (1,))
    assert moved.predictions[0].step_s.value < known.step
    assert "ratio of rooflines" in moved.basis[0]
    other = predict_curve(ask(cluster=where, network=None, profile=profile(network="lenet", device="host-cpu")), (1,))
    assert "cannot be moved" in other.basis[0]


def test_a_profile_of_an_unknown_network_is_refused_elsewhere():
    with pytest.raises(Unsupported, match="cannot say how they compare"):
        predict_curve(ask(network=None, profile=profile(device="something"), batch=8), (2,))


def test_what_nothing_supports_is_refused():
    unknown = cluster(device=Device(name="mystery"))
    with pytest.raises(Unsupported, match="mystery"):
        predict_curve(ask(cluster=unknown), (2,))
    with pytest.raises(Unsupported, match="one device only"):
        predict_curve(ask(framework="caffe"), (2,))


@pytest.mark.parametrize(
    ("changes", "counts", "words"),
    [
        ({}, (0,), "at least 1"),
        ({}, (64,), "has 16"),
        ({"batch": 0}, (1,), "no batch"),
        ({"network": None}, (1,), "either a network or a profile"),
        ({"batch": 2000}, (1,), "too much"),
    ],
)
def test_wrong_questions_are_refused(changes, counts, words):
    with pytest.raises(InputError, match=words):
        predict_curve(ask(**changes), counts)


def test_memory_counts_sharding_once():
    whole, shared = (memory_of(catalog.network("resnet50"), 32, shards=(stage, 8)) for stage in (0, 3))
    assert shared.weights == pytest.approx(whole.weights / 8)
    assert shared.activations == whole.activations


def test_changes_are_checked_like_files():
    faster = changed(ask(), parse_changes(("link.bandwidth=100Gb/s", "strategy.bucket=64MiB", "host.nics=2")))
    assert faster.cluster.hosts[0].link.bandwidth == 12.5e9
    assert faster.strategy.bucket == 64 * 2**20
    assert faster.cluster.hosts[0].nics == 2
    assert steps(faster)[-1] < steps(ask())[-1]
    with pytest.raises(InputError, match="greater than or equal to"):
        changed(ask(), {"link.bandwidth": "-1 Gb/s"})
    with pytest.raises(InputError, match="bandwidth"):
        changed(ask(), {"link.bandwidth": "3 s"})
    with pytest.raises(UnknownName, match="linc"):
        changed(ask(), {"linc.bandwidth": "1 Gb/s"})
    with pytest.raises(UnknownName, match="bandwith"):
        changed(ask(), {"link.bandwith": "1 Gb/s"})
    with pytest.raises(InputError, match="key=value"):
        parse_changes(("link.bandwidth",))


def test_a_calibration_is_written_and_read(tmp_path):
    path = tmp_path / "c.json"
    known = replace(CATALOG_ONLY, slowdown=Uncertain(0.2, 0.1), crowding=0.1)
    write_calibration(known, path)
    assert read_calibration(path) == known
    path.write_text('{"schema": "other"}')
    with pytest.raises(InputError, match="schema"):
        read_calibration(path)
    assert steps(ask(), calibration=known)[1] > steps(ask())[1]


def test_neighbours_of_the_profile_are_not_counted_twice():
    crowded = replace(CATALOG_ONLY, crowding=0.2)
    alone, beside = (ask(network=None, profile=profile(crowd=n), cluster=catalog.cluster("local")) for n in (1, 2))
    one, two = (predict_curve(beside, (n,), calibration=crowded).predictions[0].terms for n in (1, 2))
    assert two["forward"] == pytest.approx(1.2 * one["forward"])
    assert two["slowdown"] < predict_curve(alone, (2,), calibration=crowded).predictions[0].terms["slowdown"]


def test_exchange_and_compute_slow_each_other():
    asked = ask(network=None, profile=profile(), cluster=catalog.cluster("local"))
    free = replace(CATALOG_ONLY, slowdown=Uncertain(0.0, 0.1))
    shared = replace(free, slowdown=Uncertain(0.5, 0.1), overlap_rate=0.5)
    calm, busy = (predict_curve(asked, (2,), calibration=one).predictions[0] for one in (free, shared))
    assert busy.terms["slowdown"] > calm.terms["slowdown"] == 0
    assert busy.step_s.value > calm.step_s.value
    nothing = replace(asked, strategy=Strategy(overlap=False))
    after = [predict_curve(nothing, (2,), calibration=one).predictions[0].step_s.value for one in (free, shared)]
    assert after[0] == after[1], "what does not overlap is not slowed"


def test_a_sweep_tells_how_sure_bytes_and_starts_are_and_the_least_known_device_how_sure_compute_is():
    works = [SimpleNamespace(spread=spread, jitter_spread=spread / 2) for spread in (0.1, 0.3)]
    swept = CollectiveFit("all_reduce", 2, "additive", 1e-4, 1e-9, 0.0, 0.07, 1e3, 1e8)
    usual = spreads_of(works, 2, CATALOG_ONLY)
    assert usual == {
        "compute": 0.3, "bandwidth": CATALOG_ONLY.reach.spread, "latency": CATALOG_ONLY.latency.spread,
        "fixed": CATALOG_ONLY.fixed_per_gradient.spread, "slowdown": CATALOG_ONLY.slowdown.spread, "sharing": 1.0,
        "waiting": 0.15,
    }  # fmt: skip
    known = spreads_of(works, 2, replace(CATALOG_ONLY, collectives=(swept,)))
    assert known == {**usual, "bandwidth": 0.07, "latency": 0.07}
    assert spreads_of(works, 2, replace(CATALOG_ONLY, jitter=0.02)) == {**usual, "waiting": 0.0}, "it was measured"


def test_words_name_the_largest_part_beside_compute_only_where_compute_dominates():
    one = predict_curve(ask(), (8,)).predictions[0]
    shares = {"forward": 0.2, "backward": 0.2, "aggregate": 0.5, "update": 0.1}
    step = one.step_s.value
    of = [replace(one, terms={name: step * share for name, share in {**shares, **more}.items()}) for more in (
        {}, {"backward": 0.5, "aggregate": 0.2}, {"backward": 0.79, "aggregate": 0.005, "update": 0.004})]  # fmt: skip
    assert [dominant_words(each) for each in of] == ["aggregate", "compute, then aggregate 20 %", "compute"]


def test_a_plot_of_several_curves_is_called_by_what_all_of_them_have():
    curve = predict_curve(ask(), (1,))
    labels = ("lenet, pytorch/ddp, batch 8", "lenet, mxnet, batch 8", "lenet, pytorch/ddp, batch 16")
    named = [replace(curve, label=label) for label in labels]
    assert common_label(named) == "lenet"
    assert common_label(named[:2]) == "lenet, batch 8"
    assert common_label([named[0], replace(curve, label="gpt2, jax")]) == "predictions"


def test_a_value_of_a_change_may_have_an_equals_sign():
    assert parse_changes(("a.b= c=d", "batch=8")) == {"a.b": "c=d", "batch": "8"}
    for wrong in ("0", "-1", "8.0"):
        with pytest.raises(InputError, match="expected a whole number from 1"):
            changed(ask(), {"batch": wrong})


def test_money_is_told_only_if_every_device_has_a_price():
    assert predict_curve(ask(), (1,)).predictions[0].cost is not None
    free = V100.model_copy(update={"price": None})
    hosts = (*cluster(1, 1).hosts, cluster(1, 1, device=free).hosts[0].model_copy(update={"name": "other"}))
    mixed = Cluster(name="mixed", hosts=hosts)
    assert [one.cost is None for one in predict_curve(ask(cluster=mixed), (1, 2)).predictions] == [False, True]


def test_devices_that_differ_in_price_alone_compute_alike():
    dear = V100.model_copy(update={"price": 9.0, "power": 700.0})
    assert device_key(dear) == device_key(V100) != device_key(V100.model_copy(update={"memory": 1e9}))


def test_every_device_has_a_sample_of_the_global_batch():
    with pytest.raises(InputError, match="a global batch of 8 for 16 devices: each needs a sample"):
        predict_curve(ask(global_batch=8), (1, 16))
    notes = predict_curve(ask(global_batch=96), (2, 5)).notes
    assert any("the largest share, where it does not divide" in note for note in notes), "96 on 5 devices"


def test_an_emulation_states_the_seconds_of_its_own_batch():
    """A profile has the shares of the layers; a device of twice the speed takes half of what is stated."""
    emulated = Device(name="e", emulation=Emulation(forward=0.4, backward=0.6, batch=16, speed=2.0))
    question = ask(cluster=cluster(1, 1, device=emulated), network=None, profile=profile(), batch=16)
    (work,) = works_of(question).values()
    assert (float(work(16).forward.sum()), float(work(16).backward.sum())) == pytest.approx((0.2, 0.3))
    assert float(work(32).forward.sum()) == pytest.approx(0.4)
