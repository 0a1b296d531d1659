"""One physics: what is planned, what is predicted and what the emulator plays are the same number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import catalog
from paceline.bench.virtual.emulation import emulated_seconds, emulation_document
from paceline.cost.buckets import bucket_bytes, policy_buckets
from paceline.cost.collective import allreduce, fabric_of
from paceline.cost.precision import WIDTHS
from paceline.cost.split import proportional_split
from paceline.model.calibration import AS_STATED
from paceline.model.plan.make import make_plan
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.model.simulate.scenario import Disturbance, simulate_question
from paceline.spec.cluster import Cluster, Device, Emulation, Host, Link, Placed, place
from paceline.spec.layers import Flatten, Linear
from paceline.spec.network import ImageInput, Network, layer_costs
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case
from tests.property.events import simulate_step

speeds = st.floats(0.2, 5.0)
rates = st.floats(1e6, 1e10)


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """A small network of the catalog, or linear layers of any widths."""
    if draw(st.booleans()):
        return catalog.network(draw(st.sampled_from(["lenet", "resnet20", "alexnet"])))
    widths = draw(st.lists(st.integers(1, 600), min_size=1, max_size=6))
    layers = [Linear(name=f"l{n}", features=width, bias=draw(st.booleans())) for n, width in enumerate(widths)]
    return Network(name="made", input=ImageInput(height=8, width=8), layers=(Flatten(name="flat"), *layers))


@st.composite
def emulated_devices(draw: st.DrawFn) -> Device:
    peak = draw(speeds) * 1e12
    emulation = Emulation(speed=draw(speeds))
    if draw(st.booleans()):
        emulation = Emulation(
            forward=draw(st.floats(1e-4, 0.1)), backward=draw(st.floats(1e-4, 0.3)), batch=draw(st.integers(1, 64))
        )
    return Device(
        name=f"d{draw(st.integers(0, 99))}",
        peak={"float32": peak, "float16": 4 * peak},
        memory_bandwidth=draw(speeds) * 1e11,
        launch_overhead=draw(st.sampled_from([None, 0.0, 1e-5])),
        emulation=emulation,
    )


@st.composite
def emulated_clusters(draw: st.DrawFn) -> Cluster:
    kinds = draw(st.lists(emulated_devices(), min_size=1, max_size=2))
    hosts = []
    for number in range(draw(st.integers(1, 3))):
        devices = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
        link, inside = (
            Link(name=name, bandwidth=draw(rates), latency=draw(st.sampled_from([0.0, 1e-5, 1e-3])))
            for name in ("link", "inside")
        )
        nics = draw(st.integers(1, 2))
        hosts.append(Host(name=f"h{number}", devices=tuple(devices), inside=inside, link=link, nics=nics))
    return Cluster(name="made", hosts=tuple(hosts))


made_strategies = st.builds(
    Strategy,
    algorithm=st.sampled_from(
        [None, "ring", "halving_doubling", "recursive_doubling", "tree", "double_tree", "hierarchical"]
    ),
    overlap=st.sampled_from([None, True, False]),
    bucket=st.sampled_from([None, 0.0, 1e4, 1e6]),
    precision=st.sampled_from(["float32", "float16"]),
)
frameworks = st.sampled_from(["paceline/group", "pytorch/ddp"])


def played(question: Question, placed: Sequence[Placed], shares: Sequence[int]) -> float:
    """Seconds of a step as the emulator's events give them: layer by layer, bucket by bucket."""
    assert question.network is not None
    precision, policy = question.strategy.precision, catalog.resolve(question.framework, question.strategy)
    times, update = [], 0.0
    for rank, share in zip(placed, shares, strict=True):
        (document,) = emulation_document([rank.device], _case(question, share))
        times.append(np.array(document["layers"]).T * (share > 0))
        update = max(update, document["update"])
    ends = np.array([forward.sum() + np.cumsum(backward[::-1]) for forward, backward in times])
    if len(placed) == 1:
        return float(ends[0, -1]) + update
    costs = list(reversed(layer_costs(question.network)))
    layers = [number for number, cost in enumerate(costs) for _ in cost.tensors]
    sizes = [float(t.elements * WIDTHS[precision]) for cost in costs for t in reversed(cost.tensors)]
    ready = ends[:, layers]
    ready[:, -1] = ends[:, -1]
    fabric, lead = fabric_of(question.cluster, placed), int(np.argmax(ends[:, -1]))

    def seconds(many: Sequence[float]) -> np.ndarray:
        return allreduce(fabric, np.asarray(many), policy.algorithm)

    own = ready[lead] - times[lead][0].sum()
    last = policy_buckets(policy, sizes, own.tolist(), seconds, layers=layers)
    exchange = seconds(bucket_bytes(sizes, last))
    if not policy.overlap:
        return float(ends[:, -1].max() + exchange.sum()) + update
    return simulate_step(ready[:, last], exchange) + update


def _case(question: Question, batch: int) -> Case:
    return Case(
        network=question.network, cluster=question.cluster, framework=question.framework, strategy=question.strategy,
        ranks=question.cluster.num_devices, batch=max(1, batch), scaling="weak", placement="packed", input="resident",
        threads=1,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(networks(), emulated_clusters(), st.integers(1, 64), made_strategies, frameworks)
def test_what_is_predicted_is_what_the_emulator_plays(network, cluster, batch, strategy, framework):
    question = Question(cluster, framework, batch, network=network, strategy=strategy)
    for count in {1, cluster.num_devices}:
        (prediction,) = predict_curve(question, (count,), calibration=AS_STATED).predictions
        assert prediction.step_s.value == pytest.approx(
            played(question, place(cluster, count), [batch] * count), rel=1e-9
        )


@settings(max_examples=60, deadline=None)
@given(networks(), emulated_clusters(), st.integers(1, 300), made_strategies, frameworks)
def test_what_is_planned_is_what_the_emulator_plays(network, cluster, batch, strategy, framework):
    question = Question(cluster, framework, 1, network=network, strategy=strategy)
    plan = make_plan(question, global_batch=batch, calibration=AS_STATED, shown=99)
    placed = place(cluster, cluster.num_devices)
    synchronous = [one for one in plan.ranked if one.kind == "synchronous"]
    assert any(len(one.groups[0]) == cluster.num_devices for one in synchronous)
    for one in synchronous:
        wanted = played(question, [placed[i] for i in one.groups[0]], one.shares[0])
        assert one.predicted_step == pytest.approx(wanted, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(networks(), emulated_devices(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 64), frameworks)
def test_equal_devices_are_planned_as_predicted(network, device, hosts, local, batch, framework):
    link, inside = Link(name="l", bandwidth=1e9, latency=1e-5), Link(name="i", bandwidth=1e10)
    machines = [Host(name=f"h{n}", devices=(device,) * local, inside=inside, link=link) for n in range(hosts)]
    question = Question(Cluster(name="c", hosts=tuple(machines)), framework, batch, network=network)
    plan = make_plan(question, shown=99)
    whole = next(one for one in plan.ranked if len(one.groups) == 1 and len(one.groups[0]) == hosts * local)
    (prediction,) = predict_curve(question, (hosts * local,)).predictions
    assert whole.shares == ((batch,) * (hosts * local),)
    assert whole.predicted_step == pytest.approx(prediction.step_s.value, rel=1e-9)
    assert whole.interval_90 == pytest.approx(prediction.samples_per_s.interval_90, rel=1e-9)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["dgx-h100 x 2", "4x v100-sxm2 over infiniband-edr x 4", "4x rtx-3090 over 10gbe x 2", "dgx-a100"]),
    st.sampled_from(["resnet20", "alexnet"]),
    st.sampled_from([None, "ring", "double_tree", "hierarchical"]),
    frameworks,
)
def test_gpus_are_planned_simulated_and_predicted_with_one_exchange(name, network, algorithm, framework):
    cluster, strategy = catalog.cluster(name), Strategy(algorithm=algorithm)
    question = Question(cluster, framework, 32, network=catalog.network(network), strategy=strategy)
    count = cluster.num_devices
    curve = predict_curve(question, (count,))
    plan = make_plan(question, shown=99)
    whole = next(one for one in plan.ranked if len(one.groups) == 1 and len(one.groups[0]) == count)
    assert whole.predicted_step == pytest.approx(curve.predictions[0].step_s.value, rel=1e-9)
    simulated = simulate_question(question, count, Disturbance(steps=10))
    assert simulated.predicted_step_s == pytest.approx(curve.predictions[0].step_s.value, rel=1e-9)
    assert ("what NCCL expects" in curve.detail["exchange"]) == (algorithm is None)


@settings(max_examples=40, deadline=None)
@given(emulated_clusters(), st.integers(1, 500))
def test_every_candidate_splits_the_whole_batch(cluster, batch):
    question = Question(cluster, "paceline", 1, network=catalog.network("lenet"))
    for one in make_plan(question, global_batch=batch, calibration=AS_STATED, shown=99).ranked:
        assert sum(map(sum, one.shares)) == batch
        assert all(n >= 0 for shares in one.shares for n in shares)
        assert all(sum(shares) for shares in one.shares), "no group is without a sample"


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 5)), min_size=1, max_size=12), st.integers(0, 400))
def test_proportional_shares_keep_their_least_and_sum(rows, more):
    weights, least = [weight for weight, _ in rows], [n for _, n in rows]
    total = sum(least) + more
    shares = proportional_split(weights, total, least=least)
    assert sum(shares) == total
    assert all(n >= must for n, must in zip(shares, least, strict=True))


def test_the_document_is_the_same_physics():
    device = Device(name="d", peak={"float32": 1e12}, memory_bandwidth=1e11, emulation=Emulation())
    network = catalog.network("lenet")
    forward, backward = emulated_seconds(device, network, batch=8)
    assert backward == pytest.approx(2 * forward)
