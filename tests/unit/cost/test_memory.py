"""Memory where it can be counted by hand."""

from __future__ import annotations

import pytest

from paceline import catalog
from paceline.api import predict
from paceline.catalog.devices import device as device_of
from paceline.catalog.devices import device_names
from paceline.cost.memory import (
    RESERVED,
    check_fits,
    check_state_fits,
    default_batch,
    largest_batch,
    memory_limit,
    memory_of,
    state_bytes,
)
from paceline.cost.precision import Numerics
from paceline.errors import InputError, Unsupported
from paceline.spec.cluster import Device
from paceline.spec.layers import Flatten, Linear, Relu
from paceline.spec.network import ImageInput, Network

RESNET = catalog.network("resnet50")


def test_state_per_parameter() -> None:
    sgd, mixed_adam = state_bytes(4), state_bytes(2, moments=2)
    assert (sgd.weights, sgd.gradients, sgd.optimizer) == (4, 4, 4)
    assert (mixed_adam.weights, mixed_adam.gradients, mixed_adam.optimizer) == (2, 2, 12)
    assert state_bytes(8).optimizer == 8


ALL = ("optimizer", "gradients", "weights")


@pytest.mark.parametrize(("stage", "divided"), [(stage, ALL[:stage]) for stage in range(4)])
def test_zero_divides_what_its_stage_says(stage: int, divided: tuple[str, ...]) -> None:
    whole, shared = state_bytes(4), state_bytes(4, shards=(stage, 8))
    for name in ("weights", "gradients", "optimizer"):
        assert getattr(shared, name) == getattr(whole, name) / (8 if name in divided else 1)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    device = Device(name="d", memory=16e9)
    largest = largest_batch(RESNET, device)
    assert largest is not None
    check_fits(RESNET, device, largest)
    assert memory_of(RESNET, largest).total <= 16e9 < memory_of(RESNET, largest + 1).total
    with pytest.raises(InputError, match="too much") as caught:
        check_fits(RESNET, device, largest + 1)
    assert str(largest) in str(caught.value.hint)


def test_memory_that_is_paged_or_not_known_limits_nothing() -> None:
    for device in (Device(name="d"), Device(name="d", kind="cpu", memory=1e6)):
        assert largest_batch(RESNET, device) is None
        check_fits(RESNET, device, 10**6)


def test_a_network_that_never_fits_is_refused() -> None:
    with pytest.raises(Unsupported, match="not even one sample"):
        largest_batch(RESNET, Device(name="d", memory=1e9))


def test_the_usual_batch_is_64_images_or_8192_tokens_halved_until_it_fits() -> None:
    gpt2 = catalog.network("gpt2")
    assert [default_batch(RESNET, largest) for largest in (None, 64, 63, 31, 1, 0)] == [64, 64, 32, 16, 1, 1]
    assert [default_batch(gpt2, largest) for largest in (None, 7)] == [8, 4]


SMALL = Network(
    name="small",
    input=ImageInput(channels=1, height=10, width=10),
    layers=(Flatten(name="flat"), Linear(name="fc", features=50, bias=False), Relu(name="relu")),
)
"""5,000 weights; of the three outputs only the linear layer's 50 numbers are kept, the others take its place."""


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("stage", range(4))
def test_every_part_of_the_memory_by_hand(width: int, stage: int) -> None:
    numerics = Numerics(activation=2, weight=width)
    use = memory_of(SMALL, 7, numerics=numerics, shards=(stage, 5))
    moments = {2: 4 + 4, 4: 4, 8: 8}[width]  # momentum, and a float32 copy of half precision
    assert use.weights == 5000 * width / (5 if stage == 3 else 1)
    assert use.gradients == 5000 * width / (5 if stage >= 2 else 1)
    assert use.optimizer == 5000 * moments / (5 if stage >= 1 else 1)
    assert (use.activations, use.reserved) == (50 * 7 * 2, 0.8e9)
    assert use.total == use.weights + use.gradients + use.optimizer + 700 + 0.8e9
    assert memory_of(SMALL, 7).total == 5000 * 12 + 50 * 7 * 4 + 0.8e9


def test_memory_is_full_at_the_last_byte() -> None:
    need = memory_of(SMALL, 7).total
    check_fits(SMALL, Device(name="d", memory=need), 7)
    with pytest.raises(InputError, match="a batch of 7 of small needs") as caught:
        check_fits(SMALL, Device(name="d", memory=need - 1), 7)
    assert caught.value.hint == "the largest batch that fits is about 6"
    state = 5000 * 12 + RESERVED
    for room, largest in ((200, 1), (399, 1), (400, 2)):
        device = Device(name="d", memory=state + room)
        assert largest_batch(SMALL, device) == largest
        with pytest.raises(InputError, match="too much") as caught:
            check_fits(SMALL, device, 7)
        assert caught.value.hint == f"the largest batch that fits is about {largest}"
    with pytest.raises(InputError, match="too much") as caught:
        check_fits(SMALL, Device(name="d", memory=state + 199), 7)
    assert caught.value.hint.startswith("shard the model over devices (--framework pytorch/fsdp2)")
    with pytest.raises(Unsupported, match="not even one sample"):
        largest_batch(SMALL, Device(name="d", memory=state + 199))
    sharded = {"numerics": Numerics(weight=2, activation=2), "shards": (3, 5)}
    assert largest_batch(SMALL, Device(name="d", memory=5000 * 12 / 5 + RESERVED + 300), **sharded) == 3


def test_state_alone_is_refused_from_the_first_byte_too_many() -> None:
    for width, shards, each in ((4, (0, 1), 12), (4, (1, 4), 9), (4, (2, 4), 6), (4, (3, 4), 3), (2, (3, 4), 3)):
        how = {"numerics": Numerics(weight=width), "shards": shards}
        check_state_fits("m", 1e9, Device(name="d", memory=1e9 * each + RESERVED), **how)
        with pytest.raises(InputError, match="weights, gradients and momentum of m need"):
            check_state_fits("m", 1e9, Device(name="d", memory=1e9 * each + RESERVED - 1000), **how)
    with pytest.raises(InputError):
        check_state_fits("m", 1e9, Device(name="d", memory=12e9 + RESERVED - 1000))
    check_state_fits("m", 1e12, Device(name="d", kind="cpu", memory=1e9))


def test_only_the_memory_of_an_accelerator_limits() -> None:
    assert memory_limit(Device(name="d", memory=5.0)) == 5.0
    assert memory_limit(Device(name="d", kind="cpu", memory=5.0)) is None


def test_tokens_of_a_long_text_are_at_least_one_sample() -> None:
    gpt2 = catalog.network("gpt2")
    long = gpt2.model_copy(update={"input": gpt2.input.model_copy(update={"length": 10_000})})
    assert default_batch(long, None) == 1


def test_shards_are_counted_on_the_devices_that_are_asked_for():
    """Of a sharded network one device holds all: only the fewest devices of an answer say whether it fits."""
    asked = {
        "network": "gpt2-xl",
        "cluster": "8x rtx-3080",
        "batch": 1,
        "precision": "amp",
        "framework": "pytorch/fsdp2",
    }
    with pytest.raises(InputError, match=r"needs 2\d\.\d GiB with momentum SGD, rtx-3080 has 10.0 GiB") as caught:
        predict(**asked, devices=[1, 8])
    assert caught.value.hint == "its shards fit from 8 devices on: ask for those"
    (use,) = predict(**asked, devices=8).curves[0].detail["memory"]
    assert (use["device"], use["of"], use["ranks"]) == ("rtx-3080", 10 * 2**30, 8)
    assert use["total"] < use["of"] < use["adam"] * 2
    assert use["adam"] - use["total"] == pytest.approx(4 * 1_557_611_200 / 8)


def test_amd_multiplies_in_float32_unless_asked():
    """PyTorch on ROCm has TF32 only where an environment variable asks for it."""
    assert {name for name in device_names() if name.startswith("mi") and "tf32" in device_of(name).peak} == set()
