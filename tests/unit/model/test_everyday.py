"""Predictions and plans in everyday units."""

from dataclasses import replace

import pytest

from paceline import api, catalog
from paceline.cost.roofline import input_unit
from paceline.errors import InputError
from paceline.measurements.profile import Profile, ProfiledLayer
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


@pytest.mark.parametrize(("macs", "known"), [(2e9, True), (None, False)])
def test_a_profile_that_knows_its_multiply_adds_has_a_share_of_the_peak(macs, known):
    layers = (
        ProfiledLayer(name="a", forward=1e-3, backward=2e-3, kind="linear", macs=1e9),
        ProfiledLayer(name="b", forward=1e-3, backward=2e-3, kind="attention", macs=macs),
    )
    own = Question(
        cluster=P4D, framework="pytorch/ddp", batch=8, profile=Profile(network="Own", batch=8, layers=layers)
    )
    found = everyday_of(own, P4D.hosts[0].devices[:2], (10.0, 9.0, 11.0), job_of(None, 1.0, None))
    assert found.get("mfu") == (pytest.approx(10 * 6 * 3e9 / (2 * 19.5e12)) if known else None)


def test_more_than_the_peak_is_an_error_that_explains():
    with pytest.raises(InputError, match="which no device can do"):
        everyday_of(GPT, P4D.hosts[0].devices[:1], (1e6, 1e6, 1e6), job_of(None, 1.0, None))


@pytest.mark.parametrize(("ranks", "hosts"), [(1, 1), (2, 1), (4, 1), (8, 2)])
def test_ranks_that_share_the_cores_of_a_host_have_its_peak_once(ranks, hosts):
    device = catalog.device("epyc-7742")
    host = catalog.cluster("local").hosts[0].model_copy(update={"devices": (device,) * 4, "cores": 64})
    shared = P4D.model_copy(update={"hosts": tuple(host.model_copy(update={"name": f"h{n}"}) for n in range(2))})
    found = everyday_of(replace(GPT, cluster=shared), [device] * ranks, (0.1,), job_of(None, 1.0, None))
    assert found["mfu"] == pytest.approx(0.1 * 6 * GPT.network.macs / (hosts * device.peak["float32"]))


def test_a_run_takes_time_money_and_energy():
    found = everyday_of(GPT, P4D.hosts[0].devices, (100.0, 90.0, 110.0), job_of(360_000, 5, None))
    assert found["epoch_s"] == 3600
    assert found["run_s"] == 5 * 3600
    assert found["epoch_cost"] == pytest.approx(21.96)
    assert found["run_cost"] == pytest.approx(5 * 21.96)
    assert found["currency"] == "USD"
    assert found["run_kwh"] == pytest.approx(5 * 8 * 0.4)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("2.5 EUR/h", (2.5, "EUR")),
        ("$3", (3.0, "USD")),
        ("3 $/h", (3.0, "USD")),
        ("€ 3 / hour", (3.0, "EUR")),
        ("1.20 chf", (1.2, "CHF")),
    ],
)
def test_prices_name_their_currency(written, meant):
    assert job_of(1, 1.0, written).price == meant
    found = everyday_of(GPT, P4D.hosts[0].devices, (1.0, 1.0, 1.0), job_of(None, 1.0, written))
    assert (found["price_per_h"], found["currency"]) == (pytest.approx(8 * meant[0]), meant[1])


@pytest.mark.parametrize(
    "wrong",
    [(0, 1.0, None), (1, 0.0, None), (1, 1.0, "much"), (1, 1.0, "-3 USD/h"), (1, 1.0, "$3 EUR"), (None, 3.0, None)],
)
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


def test_what_one_device_does_not_say_is_not_known_of_all():
    whole = P4D.hosts[0].devices[0]
    silent = whole.model_copy(update={"price": None, "power": None})
    found = everyday_of(GPT, [whole, silent], (10.0, 9.0, 11.0), job_of(3600, 2.5, None))
    assert not {"power_w", "price_per_h", "epoch_cost", "run_kwh"} & set(found)
    assert (found["samples"], found["epochs"], found["epoch_s"], found["run_s"]) == (3600, 2.5, 360.0, 900.0)
    both = everyday_of(GPT, [whole, whole], (10.0, 9.0, 11.0), job_of(3600, 2.5, None))
    assert both["power_w"] == 2 * whole.power
    assert both["price_per_h"] == 2 * whole.price
    assert both["epoch_kwh"] == pytest.approx(0.1 * 2 * whole.power / 1000)
    assert both["run_cost"] == pytest.approx(0.25 * 2 * whole.price)


def test_one_sample_and_a_part_of_an_epoch_are_a_run():
    assert job_of(1, 0.5, None) == job_of(1, 0.5, None)
    assert (job_of(1, 0.5, "2").price, job_of(1, 0.5, "2 £").price) == ((2.0, "USD"), (2.0, "GBP"))
    assert everyday_of(GPT, P4D.hosts[0].devices, (10.0,), job_of(None, 1.0, None)).get("samples") is None


def test_an_epoch_is_stated_in_tokens():
    rates = (100.0, 90.0, 110.0)
    in_tokens = everyday_of(GPT, P4D.hosts[0].devices, rates, job_of(None, 2, None, 1024 * 360_000))
    in_samples = everyday_of(GPT, P4D.hosts[0].devices, rates, job_of(360_000, 2, None))
    assert in_tokens == in_samples
    with pytest.raises(InputError, match="expected one of them"):
        job_of(5, 1, None, 5)
    with pytest.raises(InputError, match="--tokens 0: expected at least 1"):
        job_of(None, 1, None, 0)
    images = replace(GPT, network=catalog.network("resnet50"))
    with pytest.raises(InputError, match="one of images"):
        everyday_of(images, P4D.hosts[0].devices, rates, job_of(None, 1, None, 10))
