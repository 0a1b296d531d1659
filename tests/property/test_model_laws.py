"""Laws of the model: monotonicity, sums of terms, homogeneous limits, simulation against closed form."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline import catalog
from paceline.cost.buckets import bucket_bytes, optimal_buckets
from paceline.cost.collective import ALGORITHMS, Fabric, allreduce, parameter_server
from paceline.cost.recurrence import exposed_fifo, exposed_none, exposed_priority, finish_fifo
from paceline.errors import UnitError
from paceline.model.calibration import CATALOG_ONLY
from paceline.model.compute import roofline
from paceline.model.measured import curve
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.model.step import NOMINAL, Ranks, step_terms
from paceline.units import BANDWIDTH, SECONDS
from tests.property.events import simulate_step
from tests.unit.model.clusters import V100, cluster

times = st.floats(1e-4, 1.0)
lists = st.lists(st.tuples(times, times), min_size=1, max_size=25)
positive = st.floats(1e-7, 1e-2)
WORK = roofline(catalog.network("resnet20"), V100, 32)
FRAMEWORKS = ("pytorch", "pytorch/fsdp2", "cntk", "mxnet", "caffe-mpi", "tensorflow", "horovod", "singa")


def step(fabric, framework, *, share=1.0):
    ranks = Ranks((WORK,), (fabric.ranks,), fabric, batch=32, memory_per_byte=1e-12, element_share=share)
    return float(sum(step_terms(ranks, catalog.policy(framework), CATALOG_ONLY, NOMINAL).values())[0])


def fabric(hosts, local, *, latency=1e-5, per_byte=1e-9):
    return Fabric(hosts * local, hosts, local, latency / 5, per_byte / 10, latency, per_byte)


@given(lists)
def test_exposed_time_is_between_zero_and_the_total_exchange(pairs):
    backward, comm = (np.array(column) for column in zip(*pairs, strict=True))
    ready = np.cumsum(backward)
    exposed = float(exposed_fifo(ready, comm))
    assert exposed >= comm[-1] - 1e-9, "the last gradient is ready when backward ends"
    assert exposed <= float(exposed_none(comm)) + 1e-9
    assert float(exposed_priority(ready, comm, backward)) <= exposed + 1e-9


@given(lists, st.integers(0, 24), st.floats(0.0, 2.0))
def test_a_longer_exchange_never_ends_earlier(pairs, index, more):
    backward, comm = (np.array(column) for column in zip(*pairs, strict=True))
    longer = comm.copy()
    longer[index % len(comm)] += more
    ready = np.cumsum(backward)
    assert exposed_fifo(ready, longer) >= exposed_fifo(ready, comm) - 1e-12


@given(lists, st.integers(1, 5))
def test_the_simulation_equals_the_closed_form(pairs, devices):
    backward, comm = (np.array(column) for column in zip(*pairs, strict=True))
    scale = np.linspace(1.0, 1.5, devices)[:, None]
    ready = np.cumsum(backward)[None, :] * scale
    slowest = ready.max(axis=0)
    wanted = float(slowest[-1] + exposed_fifo(slowest, comm))
    assert simulate_step(ready, comm) == pytest.approx(wanted)


@given(lists, positive)
def test_optimal_buckets_are_no_worse_than_one_bucket_or_one_per_gradient(pairs, startup):
    backward, sizes = (np.array(column) for column in zip(*pairs, strict=True))
    ready = np.cumsum(backward)

    def cost(size):
        return startup + size * 0.2

    def finish(last):
        return finish_fifo(ready[last], cost(np.array(bucket_bytes(sizes, last))))[-1]

    best = finish(optimal_buckets(sizes, ready, lambda many: cost(np.array(many))))
    for last in (list(range(len(sizes))), [len(sizes) - 1]):
        assert best <= finish(last) + 1e-9
        assert sum(bucket_bytes(sizes, last)) == pytest.approx(sizes.sum())


@given(st.sampled_from([*ALGORITHMS, "hierarchical", "double_tree"]), st.integers(1, 64), st.integers(1, 8),
       st.floats(1, 1e9), st.floats(1.0, 4.0))  # fmt: skip
def test_more_bytes_or_latency_never_make_a_collective_faster(algorithm, hosts, local, size, factor):
    one = fabric(hosts, local)
    base = allreduce(one, np.array([size, size * factor]), algorithm)
    assert base[1] >= base[0]
    slow = allreduce(fabric(hosts, local, latency=1e-5 * factor), np.array([size]), algorithm)
    assert slow[0] >= base[0]
    assert (
        parameter_server(one, np.array([size * factor]), servers=2)[0]
        >= parameter_server(one, np.array([size]), servers=2)[0]
    )


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(FRAMEWORKS), st.integers(1, 32), st.integers(1, 8), st.floats(1.0, 5.0))
def test_more_bytes_latency_or_devices_never_make_a_step_faster(framework, hosts, local, factor):
    base = step(fabric(hosts, local), framework)
    assert step(fabric(hosts, local), framework, share=factor) >= base - 1e-12
    assert step(fabric(hosts, local, latency=1e-5 * factor), framework) >= base - 1e-12
    assert step(fabric(hosts * 2, local), framework) >= base - 1e-12


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(FRAMEWORKS), st.integers(1, 6))
def test_equal_devices_give_the_homogeneous_result(framework, kinds):
    one = fabric(2, 3)
    policy = catalog.policy(framework)
    alike = Ranks((WORK,) * kinds, (1,) * kinds, one, batch=32, memory_per_byte=0.0)
    single = Ranks((WORK,), (6,), one, batch=32, memory_per_byte=0.0)
    for name, seconds in step_terms(alike, policy, CATALOG_ONLY, NOMINAL).items():
        assert seconds[0] == pytest.approx(step_terms(single, policy, CATALOG_ONLY, NOMINAL)[name][0])


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(FRAMEWORKS), st.integers(1, 4), st.integers(1, 4), st.floats(1, 400))
def test_terms_sum_and_one_device_needs_no_communication(framework, hosts, local, gigabits):
    question = Question(cluster(hosts, local, gigabits=gigabits), framework, 32, network=catalog.network("resnet20"))
    curve = predict_curve(question, (1, hosts * local))
    for prediction in curve.predictions:
        assert sum(prediction.terms.values()) == pytest.approx(prediction.step_s.value)
        assert min(prediction.terms.values()) >= 0
    assert curve.predictions[0].terms["aggregate"] == curve.predictions[0].terms["fixed"] == 0.0


@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(0, 7))
def test_step_time_of_a_measured_curve_never_decreases_with_devices(seed, local, doublings):
    rng = np.random.default_rng(seed)
    u = np.concatenate([rng.normal(-2, 1, 3), [abs(rng.normal(0, 0.3))], rng.normal(-2, 1, 1),
                        [abs(rng.normal(0, 0.3))], rng.normal(-4, 1, 2)])  # fmt: skip
    hosts = 2.0 ** np.arange(doublings + 2)
    overlap = np.array([float(seed % 2)])
    seconds = curve.seconds(u, hosts * local, hosts, overlap)
    assert np.all(np.diff(seconds) >= -1e-12)
    assert sum(curve.terms(u, hosts * local, hosts, overlap).values()) == pytest.approx(seconds)
    logs, slope = curve.log_seconds_and_slope(u, curve.Places.of(hosts * local, hosts), overlap)
    assert logs == pytest.approx(np.log(seconds))
    for place, little in enumerate(1e-5 * np.eye(curve.NUM_PARAMETERS)):
        ends = [np.log(curve.seconds(u + sign * little, hosts * local, hosts, overlap)) for sign in (1, -1)]
        assert slope[:, place] == pytest.approx((ends[0] - ends[1]) / 2e-5, abs=1e-6)


@given(st.floats(1, 1000))
def test_units_cannot_be_mixed(value):
    with pytest.raises(UnitError):
        BANDWIDTH.parse(f"{value} ms")
    with pytest.raises(UnitError):
        SECONDS.parse(f"{value} GB/s")
