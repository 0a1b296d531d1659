"""Layer times where the equation can be done by hand, and the reach that the catalog states."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from paceline import catalog
from paceline.catalog.describe import describe
from paceline.catalog.devices import reach_of, reach_spread, share_with_gain
from paceline.cost.precision import Numerics
from paceline.cost.roofline import (
    STARTS,
    device_times,
    ideal_seconds,
    macs_of,
    measured_times,
    profiled_times,
    update_seconds,
)
from paceline.errors import Unsupported
from paceline.spec.cluster import Device, Emulation, LayerClass
from paceline.spec.layers import Conv2d, Flatten, Linear, Relu
from paceline.spec.network import ImageInput, Network, layer_costs

NETWORK = Network(
    name="n",
    input=ImageInput(channels=1, height=10, width=10),
    layers=(Flatten(name="flat"), Linear(name="fc", features=50, bias=False), Relu(name="relu")),
)
DEVICE = Device(name="d", peak={"float32": 1e9}, memory_bandwidth=1e8, launch_overhead=1e-5)
REACH = reach_of(DEVICE)
START = STARTS * 1e-5


def test_a_layer_takes_the_longer_of_compute_and_memory() -> None:
    forward, backward = device_times(NETWORK, DEVICE).at(1000)
    compute = 2 * 100 * 50 * 1000 / (1e9 * REACH["linear"])
    memory = (150 * 1000 + 5000) * 4 / (1e8 * REACH["elementwise"])
    assert forward[1] == pytest.approx(max(compute, memory) + START)
    assert forward[2] == pytest.approx(100 * 1000 * 4 / (1e8 * REACH["elementwise"]) + START)
    assert backward == pytest.approx(2 * forward)
    alone = device_times(NETWORK, DEVICE).at(1)[0, 1]
    assert alone == pytest.approx((150 + 5000) * 4 / (1e8 * REACH["elementwise"]) + START), (
        "weights are read whatever the batch"
    )


def test_the_reach_is_the_device_s_own_or_that_of_its_kind() -> None:
    own = DEVICE.model_copy(update={"reach": {"linear": REACH["linear"] / 2}, "memory_bandwidth": 1e12})
    usual = own.model_copy(update={"reach": {}})
    slow, fast = (device_times(NETWORK, device).at(1000)[0, 1] - START for device in (own, usual))
    assert slow == pytest.approx(2 * fast)
    for kind in ("gpu", "cpu", "manycore", "other"):
        shares = reach_of(Device(name="d", kind=kind))
        assert set(get_args(LayerClass)) - set(shares) == (set() if kind == "gpu" else {"convolution_3x3"})
        assert all(0 < share <= 1 for share in shares.values())


@pytest.mark.parametrize("name", catalog.device_names())
def test_the_catalog_shows_the_reach_with_its_source(name: str) -> None:
    figures = {row["figure"]: row for row in describe(name)["figures"]}
    for kind, share in reach_of(catalog.device(name)).items():
        assert figures[f"reach.{kind}"]["value"] == share
        assert figures[f"reach.{kind}"]["source"]


def test_a_quota_slows_a_real_device_and_a_speed_an_emulated_one() -> None:
    half = device_times(NETWORK, DEVICE.model_copy(update={"quota": 0.5})).at(8)
    assert half == pytest.approx(2 * device_times(NETWORK, DEVICE).at(8))
    emulated = DEVICE.model_copy(update={"emulation": Emulation(speed=2.0), "quota": 0.5})
    assert device_times(NETWORK, emulated).at(8) == pytest.approx(device_times(NETWORK, DEVICE).at(8) / 2)


def test_measured_layers_grow_beyond_the_start_of_their_kernels() -> None:
    times = measured_times([("a", 1e-3, 2e-3, (4.0,)), ("b", 1e-6, 1e-6, ())], batch=4, launch=1e-5)
    assert times.at(4).ravel() == pytest.approx([1e-3, 1e-6, 2e-3, 1e-6])
    assert times.at(8)[0] == pytest.approx([1e-5 + 2 * (1e-3 - 1e-5), 1e-6])


def test_the_update_moves_float32_copies_five_times() -> None:
    assert update_seconds(1e6, DEVICE) == pytest.approx(5 * 4e6 / (1e8 * REACH["elementwise"]) + 1e-5)
    assert update_seconds(1e6, DEVICE, precision="float16") == update_seconds(1e6, DEVICE)
    assert update_seconds(1e6, Device(name="d")) == 0.0
    assert update_seconds(1e6, DEVICE, precision="tf32_convolutions") == update_seconds(1e6, DEVICE)
    half = DEVICE.model_copy(update={"quota": 0.5})
    assert update_seconds(1e6, half) == pytest.approx(2 * update_seconds(1e6, DEVICE))
    emulated = half.model_copy(update={"emulation": Emulation(speed=2.0)})
    assert update_seconds(1e6, emulated) == update_seconds(1e6, DEVICE)


def test_a_device_of_which_nothing_is_known_is_refused() -> None:
    with pytest.raises(Unsupported, match="memory bandwidth is not known"):
        device_times(NETWORK, Device(name="d", peak={"float32": 1e12}))
    with pytest.raises(Unsupported, match="no peak rate in float16"):
        device_times(NETWORK, DEVICE, precision="float16")


def test_matrix_units_reach_another_share_than_vector_units() -> None:
    reach = {"linear": 0.8, "tensor_linear": 0.2}
    device = Device(name="d", peak={"float32": 1e9, "tf32": 1e9}, memory_bandwidth=1e12, reach=reach)
    vector, matrix = (
        device_times(NETWORK, device, precision=one).at(1000)[0, 1] - STARTS * 8e-6 for one in ("float32", "tf32")
    )
    assert matrix == pytest.approx(4 * vector)
    assert device_times(NETWORK, device, precision="tf32").at(1000)[0, 2] == pytest.approx(
        device_times(NETWORK, device).at(1000)[0, 2]
    )


def test_devices_without_published_figures_have_wider_intervals() -> None:
    fitted, akin, other = (reach_spread(catalog.device(name)) for name in ("rtx-3090", "t4", "mi300x"))
    assert 0.2 <= fitted < akin < other == 0.4


def test_what_a_layer_keeps_between_is_written_and_read() -> None:
    gpt = catalog.network("gpt2")
    device = Device(name="d", peak={"float32": 1e24}, memory_bandwidth=1e8, launch_overhead=0.0)
    forward = device_times(gpt, device).at(1)[0]
    kept = [(seconds, cost) for seconds, cost in zip(forward, layer_costs(gpt), strict=True) if cost.kept_elements]
    assert kept
    for seconds, cost in kept:
        moved = cost.input_elements + cost.output_elements + 2 * cost.kept_elements + cost.parameters
        assert seconds == pytest.approx(4 * moved / (1e8 * reach_of(device)["elementwise"]))


@pytest.mark.parametrize(
    ("own", "stated_for", "at_16"), [(4, 8, 4.0), (4, None, 4.0), (None, 8, 2.0), (None, None, 1.0)]
)
def test_stated_times_are_of_their_own_batch_or_of_the_case_s(
    own: int | None, stated_for: int | None, at_16: float
) -> None:
    device = DEVICE.model_copy(update={"emulation": Emulation(forward=1.0, batch=own)})
    forward, backward = device_times(NETWORK, device, stated_for=stated_for).at(16)
    assert (forward.sum(), backward.sum()) == (pytest.approx(at_16), pytest.approx(2 * at_16))


KINDS: tuple[LayerClass, ...] = ("convolution", "linear", "attention", "elementwise")


@pytest.mark.parametrize(("precision", "weight", "activation"), [("float32", 4, 4), ("float16", 2, 2), ("amp", 4, 2)])
def test_counted_layers_have_the_roofline_of_their_work(precision: str, weight: int, activation: int) -> None:
    device = Device(name="d", peak={"float32": 1e12, "float16": 8e12}, memory_bandwidth=2e11, launch_overhead=3e-6)
    reach, unit = reach_of(device), "" if precision == "float32" else "tensor_"
    rng = np.random.default_rng(3)
    rows = [(f"{kind}{n}", kind, float(rng.uniform(0, 1e7)), float(rng.uniform(0, 1e5)), (4e4, 8.0)[: n % 3])
            for n, kind in enumerate(KINDS * 4)]  # fmt: skip
    times = profiled_times(rows, device, precision=precision)
    peak = 1e12 if precision == "float32" else 8e12
    for batch in (1, 32, 500):
        forward, backward = times.at(batch)
        for place, (_, kind, macs, moved, gradients) in enumerate(rows):
            rate = peak * reach[kind if kind == "elementwise" else f"{unit}{kind}"]  # type: ignore[index]
            traffic = batch * moved * activation / 4 + sum(gradients) * weight / 4
            wanted = max(2 * macs * batch / rate, traffic / (2e11 * reach["elementwise"]))
            assert forward[place] == pytest.approx(wanted + STARTS * 3e-6)
            assert backward[place] == pytest.approx(2 * wanted + STARTS * 6e-6)
    assert times.gradients == tuple(tuple(size * weight / 4 for size in row[4]) for row in rows)
    assert times.names == tuple(row[0] for row in rows)


def test_a_network_has_the_roofline_of_its_layers() -> None:
    network = catalog.network("lenet")
    device = Device(name="d", peak={"float32": 1e11}, memory_bandwidth=1e10, launch_overhead=2e-6)
    reach, times = reach_of(device), device_times(network, device)
    kinds = {"conv2d": "convolution", "linear": "linear"}
    costs = layer_costs(network)
    for place, cost in enumerate(costs):
        moved = (cost.input_elements + cost.output_elements + 2 * cost.kept_elements) * 16 + cost.parameters
        rate = 1e11 * reach[kinds.get(cost.kind, "elementwise")]  # type: ignore[index]
        wanted = max(2 * cost.macs * 16 / rate, 4 * moved / (1e10 * reach["elementwise"]))
        assert times.at(16)[:, place] == pytest.approx([wanted + STARTS * 2e-6, 2 * wanted + STARTS * 4e-6])
        assert times.gradients[place] == tuple(4.0 * tensor.elements for tensor in reversed(cost.tensors))
    by_kind = macs_of(network)
    for kind in ("convolution", "linear"):
        assert by_kind[kind] == sum(cost.macs for cost in costs if kinds.get(cost.kind) == kind)  # type: ignore[index]
    assert sum(by_kind.values()) == network.macs


def test_a_stated_time_spreads_by_multiply_adds_and_without_any_by_elements() -> None:
    device = DEVICE.model_copy(update={"emulation": Emulation(forward=1.0, backward=5.0, batch=4, speed=2.0)})
    forward, backward = device_times(NETWORK, device).at(4)
    assert (forward.tolist(), backward.tolist()) == ([0.0, 0.5, 0.0], [0.0, 2.5, 0.0])
    bare = Network(name="n", input=NETWORK.input, layers=(Flatten(name="flat"), Relu(name="relu")))
    assert device_times(bare, device).at(4)[0].tolist() == [0.25, 0.25]


def test_usual_starts_of_kernels() -> None:
    layers = [("a", 1.0, 1.0, ())]
    assert measured_times(layers, batch=4).at(0).ravel() == pytest.approx([8e-6, 16e-6])
    free, known = (DEVICE.model_copy(update={"launch_overhead": seconds}) for seconds in (0.0, 1e-3))
    assert device_times(NETWORK, free).launch.tolist() == [[0.0] * 3, [0.0] * 3]
    assert device_times(NETWORK, known).launch.tolist() == [[STARTS * 1e-3] * 3, [STARTS * 2e-3] * 3]
    unknown = DEVICE.model_copy(update={"launch_overhead": None})
    assert device_times(NETWORK, unknown).launch.tolist() == [[STARTS * 8e-6] * 3, [STARTS * 16e-6] * 3]
    processor = Device(name="c", kind="cpu", peak={"float32": 1e9}, memory_bandwidth=1e8)
    assert device_times(NETWORK, processor).launch.tolist() == [[8e-6] * 3, [16e-6] * 3], "a call, no kernel"


def test_double_precision_is_updated_in_its_own_width() -> None:
    fast = DEVICE.model_copy(update={"launch_overhead": 0.0})
    assert update_seconds(1e6, fast, precision="float64") == pytest.approx(2 * update_seconds(1e6, fast))


def convolved(precision: str, *, stride: int = 1, groups: int = 1, channels: int = 256, kind: str = "gpu") -> float:
    """Seconds of the forward pass of one 3 x 3 convolution of 32 samples on 10 Tflop/s and 1 TB/s."""
    layer = Conv2d(name="c", channels=channels, kernel=(3, 3), stride=(stride, stride), padding=(1, 1), groups=groups)
    image = ImageInput(channels=channels, height=56, width=56)
    device = Device(name="d", kind=kind, peak={"float32": 1e13, "tf32": 1e13, "float64": 1e13}, memory_bandwidth=1e12,
                    launch_overhead=0.0)  # fmt: skip
    return float(
        device_times(Network(name="n", input=image, layers=(layer,)), device, precision=precision).at(32)[0, 0]
    )


def test_dense_3x3_convolutions_in_float32_need_fewer_operations() -> None:
    flop = 2 * 9 * 256**2 * 56**2 * 32
    assert convolved("float32") == pytest.approx(flop / (2.25 * 1e13 * REACH["convolution_3x3"]))
    for plain in (convolved("float64"), convolved("float32", stride=2) * 4):
        assert plain == pytest.approx(flop / (1e13 * REACH["convolution"]), rel=1e-3)
    assert convolved("tf32") == pytest.approx(flop / 1e13, rel=0.1), "matrix units have no such algorithm"
    assert convolved("float32", kind="cpu") > 2 * convolved("float32")
    narrow = 2 * 9 * 16**2 * 56**2 * 32
    assert convolved("float32", channels=16) == pytest.approx(narrow / (1e13 * REACH["convolution"])), (
        "with few channels its tiles take longer to move than the plain algorithm to multiply"
    )


def test_profiled_layers_have_the_same_algorithms() -> None:
    device = Device(name="d", peak={"float32": 1e13}, memory_bandwidth=1e12, launch_overhead=0.0)
    rows = [(kind, kind, 1e9, 1e5, (4e4,)) for kind in ("convolution", "convolution_3x3")]
    plain, fast = profiled_times(rows, device).at(64)[0]
    assert plain / fast == pytest.approx(2.25 * REACH["convolution_3x3"] / REACH["convolution"])


def test_matrix_units_of_convolutions_wait_the_more_the_faster_they_are() -> None:
    shares = [share_with_gain(DEVICE, "tensor_convolution", gain) for gain in (2, 8, 16)]
    assert shares[0] > shares[1] > shares[2]
    assert shares[1] == REACH["tensor_convolution"]
    assert share_with_gain(DEVICE, "tensor_convolution", 0.1) == 1.0
    assert share_with_gain(DEVICE, "tensor_linear", 16) == REACH["tensor_linear"]
    own = DEVICE.model_copy(update={"reach": {"tensor_convolution": 0.4}})
    assert share_with_gain(own, "tensor_convolution", 16) == 0.4, "a device's own figure is taken as it is"


def test_the_fewest_operations_are_fewer_only_where_the_algorithm_applies() -> None:
    device = Device(name="d", peak={"float32": 1e9, "tf32": 1e9}, memory_bandwidth=1e8)
    work = {"convolution_3x3": 9e6, "convolution": 2e6}
    assert ideal_seconds(work, device, Numerics()) == pytest.approx(6 * 11e6 / 1e9)
    assert ideal_seconds(work, device, Numerics(), fewest=True) == pytest.approx(6 * 6e6 / 1e9)
    assert ideal_seconds(work, device, Numerics("tf32", "tf32"), fewest=True) == pytest.approx(6 * 11e6 / 1e9)


def test_steps_that_wait_for_each_other_start_a_kernel_each() -> None:
    """A recurrent layer is no faster than its positions, one after the other, on any device."""
    device = Device(name="d", peak={"float32": 1e15}, memory_bandwidth=1e15, launch_overhead=5e-6)
    row = ("l", "linear", 1e3, 1e3, (4.0,))
    (alone,), (recurrent,) = (profiled_times([row], device, steps=steps).at(1).sum(axis=0) for steps in ([1], [200]))
    assert recurrent - alone == pytest.approx(3 * 199 * 5e-6)
