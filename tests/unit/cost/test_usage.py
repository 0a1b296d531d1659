"""Throughput as tokens or images, and as a share of the devices' peak."""

import pytest

from paceline import catalog
from paceline.cost.usage import peak_share
from paceline.errors import Unsupported

A100, V100 = catalog.cluster("dgx-a100").hosts[0].devices[0], catalog.cluster("dgx-1").hosts[0].devices[0]
NETWORK = catalog.network("gpt2")


def test_the_share_is_of_the_peaks_of_all_devices_in_the_precision():
    need = 6 * NETWORK.macs * 10.0
    assert peak_share(NETWORK, [A100], 10.0, "float32") == pytest.approx(need / 19.5e12)
    assert peak_share(NETWORK, [A100], 10.0, "tf32") == pytest.approx(need / 156e12)
    both = peak_share(NETWORK, [A100, A100, V100], 10.0, "float32")
    assert both == pytest.approx(need / (2 * 19.5e12 + V100.peak["float32"]))


def test_what_is_not_known_has_no_share():
    assert peak_share(None, [A100], 10.0, "float32") is None
    assert peak_share(NETWORK, [A100, A100.model_copy(update={"peak": {}})], 10.0, "float32") is None
    assert peak_share(NETWORK, [], 10.0, "float32") is None
    with pytest.raises(Unsupported, match="no peak rate in tf32"):
        peak_share(NETWORK, [V100], 10.0, "tf32")
