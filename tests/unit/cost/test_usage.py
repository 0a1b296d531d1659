"""Throughput as tokens or images, and as a share of the devices' peak."""

import pytest

from paceline import catalog
from paceline.cost.precision import Numerics
from paceline.cost.roofline import ideal_seconds, input_unit, macs_of, peak_share
from paceline.errors import Unsupported
from paceline.spec.cluster import Device, Emulation

A100, V100 = catalog.cluster("dgx-a100").hosts[0].devices[0], catalog.cluster("dgx-1").hosts[0].devices[0]
NETWORK = catalog.network("gpt2")
WORK = macs_of(NETWORK)


def test_the_share_is_of_the_peaks_of_all_devices_in_the_precision():
    need = 6 * NETWORK.macs * 10.0
    assert peak_share(WORK, [A100], 10.0, "float32") == pytest.approx(need / 19.5e12)
    assert peak_share(WORK, [A100], 10.0, "tf32") == pytest.approx(need / 156e12)
    both = peak_share(WORK, [A100, A100, V100], 10.0, "float32")
    assert both == pytest.approx(need / (2 * 19.5e12 + V100.peak["float32"]))


def test_what_is_not_known_has_no_share():
    assert peak_share(None, [A100], 10.0, "float32") is None
    assert peak_share(WORK, [A100, A100.model_copy(update={"peak": {}})], 10.0, "float32") is None
    assert peak_share(WORK, [], 10.0, "float32") is None
    with pytest.raises(Unsupported, match="no peak rate in tf32"):
        peak_share(WORK, [V100], 10.0, "tf32")


def test_one_emulated_device_among_real_ones_leaves_no_share():
    emulated = A100.model_copy(update={"emulation": Emulation()})
    assert peak_share(WORK, [A100, emulated], 10.0, "float32") is None


def test_people_count_images_tokens_or_samples():
    assert input_unit(None) == ("samples", 1)
    assert input_unit(catalog.network("resnet50")) == ("images", 1)
    assert input_unit(NETWORK) == ("tokens", 1024)


def test_ideal_seconds_by_hand():
    device = Device(name="d", peak={"float32": 1e9, "tf32": 1e10})
    work = {"convolution": 1e6, "linear": 2e6, "attention": 3e6, "elementwise": 4e6}
    assert ideal_seconds(work, device, Numerics()) == pytest.approx(6 * 10e6 / 1e9)
    assert ideal_seconds(work, device, Numerics("tf32", "float32")) == pytest.approx(6 * (1e6 / 1e10 + 9e6 / 1e9))
    assert ideal_seconds({"convolution": 2e6}, device, Numerics("float16", "float32")) is None
