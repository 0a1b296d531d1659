"""Profiles without times: layers that were counted and not run."""

import pytest

from paceline import api
from paceline.catalog import network
from paceline.cost.roofline import CLASSES
from paceline.errors import InputError, Unsupported
from paceline.measurements.profile import Profile, ProfiledLayer
from paceline.spec.network import layer_costs


def outline(name="resnet50", *, scale=1, **changes):
    """The catalog's network as a count of its layers would see it."""
    layers = tuple(
        ProfiledLayer(
            name=cost.name, forward=0, backward=0, kind=CLASSES.get(cost.kind, "elementwise"), macs=cost.macs,
            moved=4.0 * (cost.input_elements + cost.output_elements + 2 * cost.kept_elements),
            gradients=tuple(scale * 4.0 * tensor.elements for tensor in reversed(cost.tensors)), **changes,
        )
        for cost in layer_costs(network(name))
    )  # fmt: skip
    return Profile(network=f"own {name}", batch=64, layers=layers)


def predicted(profile, **asked):
    return api.predict(
        profile=profile, **{"cluster": "8x a100 over 25gbe x 2", "batch": 64, "devices": [1, 16], **asked}
    )


def test_an_outline_predicts_what_the_catalog_predicts_of_the_same_layers():
    own, known = predicted(outline()), predicted(None, network="resnet50")
    for mine, its in zip(own.curve.predictions, known.curve.predictions, strict=True):
        assert mine.step_s.value == pytest.approx(its.step_s.value, rel=1e-9)
        assert mine.step_s.interval_90 == pytest.approx(its.step_s.interval_90, rel=1e-9)
        assert mine.everyday["mfu"] == pytest.approx(its.everyday["mfu"])
    assert "counted and not run" in own.curve.basis[0]
    assert own.curve.advice == known.curve.advice


def test_on_this_machine_an_outline_takes_the_rates_that_are_measured_here():
    (one,) = predicted(outline("resnet18"), cluster="local", batch=2, devices=[1]).curve.predictions
    assert 0 < one.everyday["mfu"] < 1


def test_state_that_does_not_fit_is_refused_and_shards_help():
    profile = outline("gpt2", scale=30)
    with pytest.raises(InputError, match=r"momentum of own gpt2 need 4.* a100-40gb has 40.0 GiB"):
        predicted(profile, batch=1)
    assert predicted(profile, batch=1, devices=[16], framework="pytorch/fsdp2").curve.predictions


def test_a_profile_without_times_and_counts_says_what_to_do():
    with pytest.raises(Unsupported, match="neither times nor the multiply-adds") as caught:
        predicted(
            Profile(network="x", batch=1, layers=(ProfiledLayer(name="a", forward=0, backward=0, gradients=(4,)),))
        )
    assert "paceline.outline" in caught.value.hint
