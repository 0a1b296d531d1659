"""A fixed global batch: devices share it, and more of them leave less for each."""

from __future__ import annotations

from typing import Any

import pytest

import paceline
from paceline.errors import InputError
from tests.conftest import Command

CLUSTER = "dgx-a100 x 4"


def test_the_step_is_that_of_the_share_of_each_device() -> None:
    strong = paceline.predict("resnet50", cluster=CLUSTER, global_batch=512, devices=[8, 32]).curves[0]
    for prediction in strong.predictions:
        each = 512 // prediction.devices
        weak = paceline.predict("resnet50", cluster=CLUSTER, batch=each, devices=prediction.devices).curves[0]
        assert prediction.batch_per_device == each
        assert prediction.step_s.value == pytest.approx(weak.predictions[0].step_s.value, rel=1e-12)
        assert prediction.samples_per_s.value == pytest.approx(512 / prediction.step_s.value)
    assert strong.label == "resnet50, pytorch/ddp, global batch 512, cluster dgx-a100 x 4"
    assert not any("assumed, as none was given" in line for line in strong.basis)


def test_efficiency_is_over_one_device_with_all_samples() -> None:
    curve = paceline.predict("resnet50", cluster=CLUSTER, global_batch=256, devices=[1, 8]).curves[0]
    one, eight = curve.predictions
    assert (one.efficiency, one.speed_up.value) == pytest.approx((1.0, 1.0))
    assert eight.speed_up.value == pytest.approx(one.step_s.value / eight.step_s.value)
    assert eight.efficiency == pytest.approx(eight.speed_up.value / 8)
    assert curve.notes == ("samples per device: 256 on 1, 32 on 8 devices",)


def test_the_largest_share_sets_the_step_where_devices_do_not_divide_the_batch() -> None:
    curve = paceline.predict("resnet50", cluster=CLUSTER, global_batch=100, devices=3).curves[0]
    assert curve.predictions[0].batch_per_device == 34
    assert curve.predictions[0].samples_per_s.value == pytest.approx(100 / curve.predictions[0].step_s.value)
    assert "samples per device: 34 on 3 devices; the largest share, where it does not divide" in curve.notes


def test_passes_of_a_step_share_it_too(paceline: Command) -> None:
    asked = ("--network", "resnet50", "--cluster", CLUSTER, "--devices", "8", "--global-batch", "512")
    (prediction,) = paceline.json("predict", *asked, "--set", "strategy.accumulate=2")["predictions"]
    assert prediction["batch_per_device"] == 32
    said = paceline("predict", *asked)
    assert "samples per device: 64 on 8 devices" in said
    assert "one device does not hold the whole batch" in said


def test_a_knee_counts_samples_not_steps() -> None:
    curve = paceline.predict("resnet50", cluster="v100-10gbe-8x4", global_batch=64, devices=[1, 32]).curves[0]
    assert curve.knee is not None
    assert curve.knee < 32


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"global_batch": 4}, "a global batch of 4 for 8 devices: each needs a sample"),
        ({"global_batch": 0}, "a global batch of 0 is no batch"),
        ({"global_batch": 64, "batch": 8}, "batch 8 per device and global batch 64: expected one of them"),
        (
            {"global_batch": 64, "changes": {"batch": "8"}},
            "batch 8 per device and global batch 64: expected one of them",
        ),
        ({"global_batch": 8192}, "8 devices: a batch of 1024 of resnet50 needs"),
    ],
)
def test_what_devices_cannot_share_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        paceline.predict("resnet50", cluster=CLUSTER, devices=8, **given)


def test_the_hint_is_about_what_is_wrong(paceline: Command) -> None:
    asked = ("predict", "--network", "resnet50", "--global-batch", "512", "--cluster")
    assert "shares fit: from 2 on" in paceline(*asked, "dgx-a100", code=2)
    said = paceline(*asked, "v100-10gbe-8x4", "--devices", "64", code=2)
    assert "64 devices asked" in said
    assert "shares" not in said
