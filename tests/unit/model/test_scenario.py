"""The simulator asked like a prediction: equal to it where nothing happens, and every trouble costs by its name."""

from dataclasses import replace

import numpy as np
import pytest

from paceline import catalog
from paceline.cost.collective import Fabric
from paceline.errors import InputError
from paceline.model.calibration import AS_STATED, Uncertain
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.model.simulate.scenario import (
    Disturbance,
    _asynchronous,
    _check,
    _contention,
    _server_times,
    _Setting,
    _synchronous,
    _with_failures,
    simulate_question,
)
from paceline.model.simulate.training import SyncRun
from paceline.model.step import Ranks
from paceline.spec.strategy import Strategy
from tests.unit.model.test_step import WORK, policy

VERB = ("simulate", "--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--batch", "64", "--devices", "8,32")


def question():
    return Question(catalog.cluster("v100-10gbe-8x4"), "pytorch", 64, network=catalog.network("resnet50"))


def test_a_calm_run_is_the_prediction():
    asked = question()
    for prediction in predict_curve(asked, (1, 8, 32)).predictions:
        found = simulate_question(asked, prediction.devices, Disturbance())
        assert found.predicted_step_s == pytest.approx(prediction.step_s.value, rel=1e-12)
        assert found.step_s == pytest.approx(prediction.step_s.value, rel=0.01)
        assert sum(found.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("trouble", "name"),
    [
        (Disturbance(straggle=0.01), "stragglers"),
        (Disturbance(jobs=2), "other jobs"),
        (Disturbance(steps=20000, mtbf=72e3, restart=600, checkpoint_every=1000), "failures"),
    ],
)
def test_every_trouble_costs_and_is_named(trouble, name):
    calm, rough = (simulate_question(question(), 32, one) for one in (Disturbance(), trouble))
    assert rough.step_s > 1.02 * calm.step_s
    assert rough.shares[name] > 0.02
    assert simulate_question(question(), 32, trouble) == rough, "the same seed gives the same run"


def test_asynchronous_workers_queue_at_their_servers():
    asked = replace(question(), framework=catalog.framework("mxnet/dist_async"), strategy=Strategy(servers=4))
    free, full = (simulate_question(asked, count, Disturbance(steps=50)) for count in (8, 32))
    assert free.staleness == pytest.approx(7, rel=0.1)
    assert full.server_busy > 0.95 > free.server_busy
    slow = simulate_question(asked, 8, Disturbance(steps=50, straggle=0.2))
    gone = simulate_question(asked, 8, Disturbance(steps=50, mtbf=20.0))
    assert slow.step_s > free.step_s
    assert gone.num_events < free.num_events


def test_a_synchronous_run_by_hand():
    # The slower device computes 3 s, and 1 s is beside it: 10 steps of 4 s; twice as slow, 3 s more.
    setting = _Setting(None, np.array([2.0, 3.0]), 1.0, 0.5, 0.0, 0.0, 4.5)
    calm = _synchronous(setting, Disturbance(steps=10), samples=16)
    assert (calm.devices, calm.predicted_step_s, calm.step_s, calm.num_events) == (2, 4.5, pytest.approx(4.0), 10)
    assert calm.samples_per_s == pytest.approx(16 * 2 / 4.0)
    assert calm.shares == pytest.approx({"compute": 0.75, "exchange and rest": 0.25})
    assert calm.quantiles == pytest.approx({"50": 4.0, "90": 4.0, "99": 4.0})
    slow = _synchronous(setting, Disturbance(steps=10, straggle=1.0, straggle_factor=2.0), samples=16)
    assert (slow.step_s, slow.samples_per_s) == (pytest.approx(7.0), pytest.approx(32 / 7))
    assert slow.shares == pytest.approx({"compute": 3 / 7, "exchange and rest": 1 / 7, "stragglers": 3 / 7})
    assert slow.quantiles == pytest.approx({"50": 7.0, "90": 7.0, "99": 7.0})


def test_jitter_costs_by_its_name_and_one_device_waits_for_nobody():
    two = _Setting(None, np.array([3.0, 3.0]), 1.0, 0.5, 0.0, 0.1, 4.5)
    found = _synchronous(two, Disturbance(steps=2000), samples=16)
    # The slower of two normal times is longer by 1/sqrt(pi) deviations.
    assert found.step_s == pytest.approx(4 + 0.3 / np.pi**0.5, abs=0.02)
    assert found.shares["jitter"] == pytest.approx(0.3 / np.pi**0.5 / found.step_s, abs=0.005)
    alone = _synchronous(replace(two, compute=np.array([3.0])), Disturbance(steps=20), samples=16)
    assert alone.step_s == pytest.approx(4.0)


def test_failures_are_refused_where_three_are_to_be_expected_between_two_checkpoints():
    run, trouble = SyncRun(np.array([1.0, 2.0]), 1.0, 5), Disturbance(mtbf=20.0, restart=7.0, checkpoint_every=10)
    # Ten steps of 3 s on two devices that last 20 s each.
    failing = _with_failures(run, trouble)
    assert (failing.failures_per_s, failing.restart, failing.checkpoint_every) == (0.05, 7.0, 10)
    with pytest.raises(InputError, match=r"2 devices fail 3\.1 times"):
        _with_failures(run, replace(trouble, mtbf=60 / 3.1))
    assert _with_failures(run, Disturbance()) is run


LINK = Fabric(6, 3, 2, 0.01, 1e-8, 0.1, 1e-6)


@pytest.mark.parametrize(
    ("fabric", "servers", "times"),
    [
        # 3 MB there and back at 1 us per byte: 6 s, twice of that for the two ranks of a host; 0.1 s each way.
        (LINK, 4, (12 - 1.5 + 0.2, 1.5)),
        (LINK, None, (12 - 2 + 0.2, 2.0)),
        (LINK, 1, (12 - 6 + 0.2, 6.0)),
        (replace(LINK, hosts=1, local=6), None, (0.02, 0.06)),
        (replace(LINK, hosts=1, local=6), 2, (0.06 - 0.03 + 0.02, 0.03)),
        (replace(LINK, local=1), 1, (0.2, 6.0)),
    ],
)
def test_what_a_worker_and_its_servers_take_for_an_exchange(fabric, servers, times):
    ranks = Ranks((WORK,), (6,), fabric, batch=16, memory_per_byte=0.0)
    asked = policy(aggregation="parameter_server", synchrony="asynchronous", servers=servers)
    assert _server_times(ranks, asked, AS_STATED) == pytest.approx(times)
    halved = replace(ranks, element_share=0.5)
    slower = replace(AS_STATED, reach=Uncertain(0.5, 0.0))
    assert _server_times(halved, asked, slower) == pytest.approx(times), "half of the bytes, each twice as long"
    late = _server_times(ranks, asked, replace(AS_STATED, latency=Uncertain(3.0, 0.0)))
    assert late[0] - times[0] == pytest.approx(4 * (0.1 if fabric.hosts > 1 else 0.01))


def test_an_asynchronous_run_by_hand():
    fabric = replace(LINK, ranks=2, hosts=2, local=1)
    setting = _Setting(Ranks((WORK,), (2,), fabric, 16, 0.0), np.array([40.0, 40.0]), 1.0, 9.0, 0.0, 0.0, 50.0)
    asked = policy(aggregation="parameter_server", synchrony="asynchronous", servers=4)

    def played(hidden=0.0, **trouble):
        one = Disturbance(steps=200, **trouble)
        return _asynchronous(replace(setting, hidden=hidden), asked, one, samples=16, calibration=AS_STATED)

    # 6 s of exchange, a quarter of it at each server: 4.5 + 0.2 s of travel, and 1.5 s of service.
    found = played()
    assert (found.devices, found.synchrony, found.predicted_step_s) == (2, "asynchronous", 50.0)
    assert found.step_s == pytest.approx(40 + 4.7 + 1.5, rel=0.005)
    assert found.samples_per_s == pytest.approx(16 * 2 / found.step_s)
    assert found.shares["compute"] == pytest.approx(40 / found.step_s)
    assert found.shares["exchange and rest"] == pytest.approx(4.7 / found.step_s)
    assert sum(found.shares.values()) == pytest.approx(1)
    assert (found.num_events, found.staleness) == (400, pytest.approx(1.0, abs=0.01))
    assert found.server_busy == pytest.approx(2 * 1.5 / found.step_s, rel=0.01)
    assert played(hidden=3.0).step_s == pytest.approx(found.step_s - 3.0, rel=0.005), "what overlaps is not waited for"
    assert played(hidden=9.0).step_s == pytest.approx(found.step_s - 4.7, rel=0.005)
    assert played(jobs=3).server_busy == pytest.approx(3 * found.server_busy, rel=0.1)
    assert played(straggle=1.0, straggle_factor=2.0).step_s == pytest.approx(found.step_s + 40, rel=0.005)
    with pytest.raises(InputError, match="before its first update"):
        played(mtbf=1e-3)


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (Disturbance(straggle=2), "probability"),
        (Disturbance(straggle_factor=0.5), "not faster"),
        (Disturbance(jobs=0), "at least 1"),
        (Disturbance(steps=0), "at least 1"),
        (Disturbance(mtbf=60.0), "gets nowhere"),
        (Disturbance(mtbf=-1.0), "more than 0"),
        (Disturbance(mtbf=0.0), "more than 0"),
        (Disturbance(jobs=201), "at most 200"),
        (Disturbance(checkpoint_every=0), "at least 1"),
        (Disturbance(steps=100_001), "at most 100,000"),
        (Disturbance(seed=-1), "0 or more"),
        (Disturbance(seed=2**63), "below 2"),
        (Disturbance(straggle=-0.1), "probability"),
        (Disturbance(straggle_factor=2e6), "1 to 1e6"),
        (Disturbance(restart=-1.0), "0 or more"),
    ],
)
def test_wrong_troubles_are_refused(trouble, words):
    with pytest.raises(InputError, match=words):
        simulate_question(question(), 32, trouble)


@pytest.mark.parametrize(
    "trouble",
    [
        Disturbance(steps=1),
        Disturbance(steps=1, straggle=1.0, straggle_factor=1.0),
        Disturbance(steps=1, straggle_factor=1e6),
        Disturbance(steps=1, seed=2**63 - 1),
        Disturbance(steps=1, mtbf=1e9, restart=0.0, checkpoint_every=1),
    ],
)
def test_troubles_at_their_bounds_are_played(trouble):
    assert simulate_question(question(), 2, trouble).num_events == 1


def test_many_steps_of_many_devices_are_refused_by_their_product():
    with pytest.raises(InputError, match="at most 50,000 on 2000 devices"):
        _check(Disturbance(steps=50_001), 2000)
    _check(Disturbance(steps=50_000), 2000)


def test_the_verb_prints_a_table_bars_and_json(paceline):
    text = paceline(*VERB, "--straggle", "0.01")
    for words in ("simulated step", "where the time goes", "# compute", "s stragglers", "at 32 devices"):
        assert words in text
    found = paceline.json(*VERB, "--mtbf", "20 h", "--steps", "50")
    assert found["schema"] == "paceline.simulate/1"
    assert [run["devices"] for run in found["runs"]] == [8, 32]
    assert "is not a time" in paceline(*VERB, "--mtbf", "3 GB", code=2)


@pytest.mark.parametrize(("exchange", "added"), [(10.0, 10.0), (0.0, 0.0), (1e-9, 0.0)])
def test_jobs_that_only_exchange_share_the_link_and_others_hardly_meet(exchange, added):
    setting = _Setting(None, np.array([6.0]), 4.0, exchange, 0.0, 0.0, 10.0)
    assert setting.calm == 10.0
    assert _contention(setting, Disturbance(jobs=1)) == 0.0
    # Two jobs that do nothing but send take twice as long, but for the moments at both ends in which one is alone.
    assert _contention(setting, Disturbance(jobs=2)) == pytest.approx(added, rel=0.02, abs=1e-6)
