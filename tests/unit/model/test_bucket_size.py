"""The bucket size as an answer."""

import pytest

from paceline import catalog
from paceline.errors import InputError
from paceline.model.calibration import CATALOG_ONLY
from paceline.model.plan.bucket_size import BucketChoice, BucketRecommendation, choose_bucket
from paceline.model.prediction import Estimate
from paceline.model.question import Question
from paceline.model.scaling import predict_curve
from paceline.spec.strategy import Strategy


def ask(network: str, cluster: str, **more: object) -> Question:
    given = {"framework": "pytorch/ddp", "batch": 32, **more}
    return Question(cluster=catalog.cluster(cluster), network=catalog.network(network), **given)


def test_gains_are_those_of_predictions_with_that_bucket():
    question = ask("bert-base", "v100-10gbe-8x4")
    answer = choose_bucket(question, 32)
    chosen = ask("bert-base", "v100-10gbe-8x4", strategy=Strategy(bucket=100 * 2.0**20))
    usual, other = (predict_curve(one, (32,)).predictions[0].step_s.value for one in (question, chosen))
    hundred = next(one for one in answer.choices if one.megabytes == 100)
    assert hundred.step_s.value == pytest.approx(other)
    assert hundred.gain.value == pytest.approx(usual / other - 1)


def test_a_size_is_in_the_units_of_bucket_cap_mb():
    answer = choose_bucket(ask("resnet50", "v100-10gbe-8x4"), 32)
    binary, decimal = (
        ask("resnet50", "v100-10gbe-8x4", strategy=Strategy(bucket=100 * unit)) for unit in (2.0**20, 1e6)
    )
    steps = [predict_curve(one, (32,)).predictions[0].step_s.value for one in (binary, decimal)]
    assert steps[0] > 1.05 * steps[1], "102 MB of gradients fit into one bucket only in binary units"
    hundred = next(one for one in answer.choices if one.megabytes == 100)
    assert hundred.step_s.value == pytest.approx(steps[0])


def test_small_buckets_lose_where_messages_are_slow_to_start():
    answer = choose_bucket(ask("resnet50", "v100-10gbe-8x4"), 32, calibration=CATALOG_ONLY)
    first = answer.choices[0]
    assert first.gain.value < answer.best.gain.value
    assert answer.best.step_s.value <= min(one.step_s.value for one in answer.choices)


def test_a_poor_default_is_worth_a_change():
    question = ask("bert-base", "v100-10gbe-8x4", strategy=Strategy(bucket=2.0**18))
    answer = choose_bucket(question, 32)
    assert answer.worth
    assert answer.setting == f"bucket_cap_mb={answer.best.megabytes}"
    assert answer.as_dict()["gain_interval_90"][0] > 0


def test_frameworks_without_buckets_are_refused():
    with pytest.raises(InputError, match="no buckets to choose"):
        choose_bucket(ask("resnet50", "v100-10gbe-8x4", framework="mxnet/dist_sync"), 8)
    with pytest.raises(InputError, match="no buckets to choose"):
        choose_bucket(ask("resnet50", "v100-10gbe-8x4"), 1)


@pytest.mark.parametrize(("gain", "low", "worth"), [(0.01, 0.001, True), (0.0099, 0.001, False), (0.5, 0.0, False)])
def test_a_change_is_worth_a_hundredth_that_is_sure(gain, low, worth):
    def choice(megabytes, step, more):
        return BucketChoice(megabytes, Estimate(step, (step, step), (step, step)), Estimate(more, (low, 1), (low, 1)))

    answer = BucketRecommendation("made", 8, 25e6, (choice(1, 2.0, -0.3), choice(50, 1.0, gain), choice(100, 1.5, 0.0)))
    assert (answer.best.megabytes, answer.worth) == (50, worth)
    assert answer.setting == ("bucket_cap_mb=50" if worth else "the default")
