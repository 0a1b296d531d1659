"""Memory where it can be counted by hand."""

from __future__ import annotations

import pytest

from paceline import catalog
from paceline.cost.memory import check_fits, largest_batch, memory_of, state_bytes, usual_batch
from paceline.errors import InputError, Unsupported
from paceline.spec.cluster import Device

RESNET = catalog.network("resnet50")


def test_state_per_parameter() -> None:
    sgd, mixed_adam = state_bytes(4), state_bytes(2, moments=2)
    assert (sgd.weights, sgd.gradients, sgd.optimizer) == (4, 4, 4)
    assert (mixed_adam.weights, mixed_adam.gradients, mixed_adam.optimizer) == (2, 2, 12)
    assert state_bytes(8).optimizer == 8


@pytest.mark.parametrize(("stage", "divided"), [(0, ()), (1, ("optimizer",)), (2, ("optimizer", "gradients"))])
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
    assert [usual_batch(RESNET, largest) for largest in (None, 64, 63, 31, 1, 0)] == [64, 64, 32, 16, 1, 1]
    assert [usual_batch(gpt2, largest) for largest in (None, 7)] == [8, 4]
