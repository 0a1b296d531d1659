"""The simulator asked like a prediction: equal to it where nothing happens, and every trouble costs by its name."""

from dataclasses import replace

import numpy as np
import pytest

from paceline import catalog
from paceline.errors import InputError
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.model.simulate.scenario import Trouble, _contention, _Setting, simulate_question
from paceline.spec.strategy import Strategy

VERB = ("simulate", "--network", "resnet50", "--cluster", "v100-10gbe-8x4", "--batch", "64", "--devices", "8,32")


def question():
    return Question(catalog.cluster("v100-10gbe-8x4"), "pytorch", 64, network=catalog.network("resnet50"))


def test_a_calm_run_is_the_prediction():
    asked = question()
    for prediction in predict_curve(asked, (1, 8, 32)).predictions:
        found = simulate_question(asked, prediction.devices, Trouble())
        assert found.predicted_step_s == pytest.approx(prediction.step_s.value, rel=1e-12)
        assert found.step_s == pytest.approx(prediction.step_s.value, rel=0.01)
        assert sum(found.shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("trouble", "name"),
    [
        (Trouble(straggle=0.01), "stragglers"),
        (Trouble(jobs=2), "other jobs"),
        (Trouble(steps=20000, mtbf=72e3, restart=600, checkpoint_every=1000), "failures"),
    ],
)
def test_every_trouble_costs_and_is_named(trouble, name):
    calm, rough = (simulate_question(question(), 32, one) for one in (Trouble(), trouble))
    assert rough.step_s > 1.02 * calm.step_s
    assert rough.shares[name] > 0.02
    assert simulate_question(question(), 32, trouble) == rough, "the same seed gives the same run"


def test_asynchronous_workers_queue_at_their_servers():
    asked = replace(question(), framework=catalog.framework("mxnet/dist_async"), strategy=Strategy(servers=4))
    free, full = (simulate_question(asked, count, Trouble(steps=50)) for count in (8, 32))
    assert free.staleness == pytest.approx(7, rel=0.1)
    assert full.server_busy > 0.95 > free.server_busy
    slow = simulate_question(asked, 8, Trouble(steps=50, straggle=0.2))
    gone = simulate_question(asked, 8, Trouble(steps=50, mtbf=20.0))
    assert slow.step_s > free.step_s
    assert gone.num_events < free.num_events


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (Trouble(straggle=2), "probability"),
        (Trouble(straggle_factor=0.5), "not faster"),
        (Trouble(jobs=0), "at least 1"),
        (Trouble(steps=0), "at least 1"),
        (Trouble(mtbf=60.0), "gets nowhere"),
        (Trouble(mtbf=-1.0), "more than 0"),
    ],
)
def test_wrong_troubles_are_refused(trouble, words):
    with pytest.raises(InputError, match=words):
        simulate_question(question(), 32, trouble)


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
    assert _contention(setting, Trouble(jobs=1)) == 0.0
    # Two jobs that do nothing but send take twice as long, but for the moments at both ends in which one is alone.
    assert _contention(setting, Trouble(jobs=2)) == pytest.approx(added, rel=0.02, abs=1e-6)
