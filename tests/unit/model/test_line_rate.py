"""What gradients need at least over a host's link, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import truncnorm

from paceline.model.measured.extrapolate import extrapolate_series
from paceline.model.measured.line_rate import least_log_seconds, least_network, line_rate
from paceline.model.measured.points import read_points, series_of_rows
from paceline.model.measured.prior import bounded, prior_of, shipped_population


def bert(link="10GbE", network="BERT-Large", precision="fp32", strategy="DDP", per_host=4.0):
    rows = [
        {"network": network, "framework": "PyTorch", "strategy": strategy, "device": "V100", "link": link,
         "precision": precision, "devices": count, "samples_per_s": rate, "devices_per_host": per_host, "spread": None,
         "batch_per_device": 8.0}
        for count, rate in {1.0: 40.0, 2.0: 70.0, 4.0: 130.0}.items()
    ]  # fmt: skip
    (found,) = series_of_rows(rows, "points")
    return found


@pytest.mark.parametrize(
    ("label", "gigabytes"),
    [
        ("10GbE with TCP/IP", 1.25), ("10gbe", 1.25), ("10 GBE", 1.25), ("10GBase-T", 1.25), ("25G", 3.125),
        ("1 Gigabit Ethernet", 0.125), ("100 Gbit/s", 12.5), ("InfiniBand HDR 200Gb", 25), ("1.6Tb/s", 200),
        ("100GbIB with RDMA", 12.5), ("900 GB/s", 900), ("2x 25 GbE", 6.25), ("4x200Gb per node", 100),
        ("400Gb per GPU", 3200 / 8), ("8x ConnectX-7 IB NDR 400Gb/s + 200Gb/s Ethernet", 400),
        ("Management: 1x Ethernet 40Gb/Sec, Compute: 8x ConnectX-6 IB HDR 200Gb/Sec", 200),
    ],
)  # fmt: skip
def test_rates_that_labels_state_at_most(label, gigabytes):
    assert line_rate(label, 8.0) == pytest.approx(gigabytes * 1e9)


@pytest.mark.parametrize("label", ["", "EC2 network", "InfiniBand", "4 gpus", "2 tcp streams", "HDR100", "NVLink"])
def test_labels_without_figures_state_no_rate(label):
    assert line_rate(label, 8.0) is None


def test_the_least_cost_of_the_network_by_hand():
    # 340 M parameters of 4 bytes at 1.25 GB/s are 1.088 s; a step of 8 samples at 40/s is 0.2 s; 8 devices: 2 * 7/8
    assert np.exp(least_network(bert())) == pytest.approx(1.088 / 0.2 / 1.75)
    assert np.exp(least_network(bert(precision="fp16"))) == pytest.approx(0.544 / 0.2 / 1.75)
    assert np.exp(least_network(bert(precision=""))) == pytest.approx(0.544 / 0.2 / 1.75), "not stated: the smaller"
    assert np.exp(least_network(bert(network="GPT 1.3B"))) == pytest.approx(1.3e9 * 4 / 1.25e9 / 0.2 / 1.75)
    assert np.exp(least_network(bert(per_host=1.0).first(1))) == pytest.approx(1.088 / 0.2), (
        "two devices: once each way"
    )
    assert np.exp(least_log_seconds(bert(), 8, 8.0)) == pytest.approx(1.088 / 8), "two hosts: once each way"
    assert np.exp(least_log_seconds(bert(), 16, 4.0)) == pytest.approx(1.5 * 1.088 / 4)
    assert least_log_seconds(bert(), 4, 8.0) == -np.inf, "one host sends nothing"


@pytest.mark.parametrize(
    "series",
    [bert(link=""), bert(network="N"), bert(network="BERT-Large LoRA"), bert(strategy="DDP, gradient compression"),
     replace(bert(), batches=np.full(3, np.nan)), replace(bert(), in_tokens=True)],
)  # fmt: skip
def test_nothing_is_known_where_a_label_is_missing_or_fewer_bytes_are_sent(series):
    assert least_network(series) == least_log_seconds(series, 8, 8.0) == -np.inf


def test_a_point_that_is_faster_than_its_labels_allow_overrules_them():
    crossed = replace(bert(), hosts=np.array([1.0, 1.0, 2.0]))  # 4 devices on 2 hosts: 32 samples in at least 1.088 s
    assert least_network(replace(crossed, samples_per_s=np.array([40.0, 70.0, 29.0]))) > -np.inf
    assert least_network(replace(crossed, samples_per_s=np.array([40.0, 70.0, 32.0]))) == -np.inf


def test_a_bounded_prior_has_the_moments_of_the_cut_distribution():
    mean, precision = prior_of(shipped_population(), [bert()], [0.0])
    place, deviation = 4, float(np.sqrt(np.linalg.inv(precision[0])[4, 4]))
    for away in (-3.0, 0.0, 2.0):
        least = mean[0, place] + away * deviation
        cut = truncnorm(away, np.inf, loc=mean[0, place], scale=deviation)
        found, sharper = bounded(mean, precision, [least])
        assert found[0, place] == pytest.approx(cut.mean())
        assert np.linalg.inv(sharper[0])[place, place] == pytest.approx(cut.var())
    same, alike = bounded(mean, precision, [-np.inf])
    assert (same == mean).all()
    assert (alike == precision).all()


def test_no_prediction_is_faster_than_the_line_rate():
    (found,) = extrapolate_series([bert()], [8, 16], population=shipped_population())
    for one, hosts in zip(found.predictions, (2, 4), strict=True):
        most = one.devices * 8 / (2 * (hosts - 1) / hosts * 1.088)
        assert one.samples_per_s.value <= most
        assert one.samples_per_s.interval_90[1] <= 1.1 * most
    (fast,) = extrapolate_series([bert(link="8x400Gb IB")], [8], population=shipped_population())
    assert fast.predictions[0].samples_per_s.value > 3 * found.predictions[0].samples_per_s.value


def test_tokens_do_not_tell_how_long_a_step_takes(tmp_path):
    file = tmp_path / "points.csv"
    rows = "1,12000,bert-base,10GbE,32\n2,23000,bert-base,10GbE,32\n"
    for column, counted in (("tokens_per_s", True), ("samples_per_s", False)):
        file.write_text(f"devices,{column},network,link,batch_per_device\n{rows}")
        (found,) = read_points(file)
        assert found.in_tokens is counted
        assert (least_network(found) == -np.inf) is counted
