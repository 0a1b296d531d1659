"""Predictions and plans in everyday units."""

import pytest

from paceline import api, catalog
from paceline.cost.usage import input_unit
from paceline.errors import InputError
from paceline.model.everyday import everyday_of, job_of
from paceline.model.question import Question

P4D = catalog.cluster("p4d.24xlarge")
GPT = Question(cluster=P4D, framework="pytorch/ddp", batch=8, network=catalog.network("gpt2"))


def test_samples_are_images_or_tokens():
    assert input_unit(catalog.network("resnet50")) == ("images", 1)
    assert input_unit(catalog.network("gpt2")) == ("tokens", 1024)
    assert input_unit(None) == ("samples", 1)


def test_use_of_the_peak_counts_three_passes_of_two_operations():
    found = everyday_of(GPT, P4D.hosts[0].devices[:2], (10.0, 9.0, 11.0), job_of(None, 1.0, None))
    assert found["mfu"] == pytest.approx(10 * 6 * GPT.network.macs / (2 * 19.5e12))
    assert (found["tokens_per_s"], found["tokens_per_s_interval_90"]) == (10240, [9216, 11264])


def test_more_than_the_peak_is_an_error_that_explains():
    with pytest.raises(InputError, match="which no device can do"):
        everyday_of(GPT, P4D.hosts[0].devices[:1], (1e6, 1e6, 1e6), job_of(None, 1.0, None))


def test_a_run_takes_time_money_and_energy():
    found = everyday_of(GPT, P4D.hosts[0].devices, (100.0, 90.0, 110.0), job_of(360_000, 5, None))
    assert found["epoch_s"] == 3600
    assert found["run_s"] == 5 * 3600
    assert found["epoch_cost"] == pytest.approx(21.96)
    assert found["run_cost"] == pytest.approx(5 * 21.96)
    assert found["currency"] == "USD"
    assert found["run_kwh"] == pytest.approx(5 * 8 * 0.4)


@pytest.mark.parametrize(
    ("written", "meant"), [("2.5 EUR/h", (2.5, "EUR")), ("$3", (3.0, "USD")), ("1.20 chf", (1.2, "CHF"))]
)
def test_prices_name_their_currency(written, meant):
    if written.startswith("$"):
        with pytest.raises(InputError, match="expected a price"):
            job_of(1, 1.0, written)
        written = "3 $/h"
    assert job_of(1, 1.0, written).price == meant
    found = everyday_of(GPT, P4D.hosts[0].devices, (1.0, 1.0, 1.0), job_of(None, 1.0, written))
    assert (found["price_per_h"], found["currency"]) == (pytest.approx(8 * meant[0]), meant[1])


@pytest.mark.parametrize("wrong", [(0, 1.0, None), (1, 0.0, None), (1, 1.0, "much"), (1, 1.0, "-3 USD/h")])
def test_wrong_jobs_are_refused(wrong):
    with pytest.raises(InputError):
        job_of(*wrong)


def test_a_price_of_ones_own_is_the_price_of_everything():
    one = api.predict("resnet50", cluster="dgx-1", batch=64, devices=8, price="1.80 EUR/h").curve.predictions[0]
    assert one.cost == pytest.approx(8 * 1.8 / 3600 / one.samples_per_s.value * 1e6)
    usual = api.predict("resnet50", cluster="dgx-1", batch=64, devices=8).curve.predictions[0]
    assert usual.cost == pytest.approx(usual.everyday["price_per_h"] / 3600 / usual.samples_per_s.value * 1e6)


def test_predictions_carry_the_units():
    one = api.predict("resnet50", cluster="dgx-1", batch=64, devices=8, samples=1_281_167, epochs=90).curve
    plain = one.predictions[0].as_dict()
    assert plain["images_per_s"] == plain["samples_per_s"]
    assert 0 < plain["mfu"] < 1
    assert plain["run_s"] == pytest.approx(90 * 1_281_167 / plain["samples_per_s"])
    assert plain["run_kwh"] == pytest.approx(plain["run_s"] / 3.6e6 * 8 * 300)
