"""What a precision means on a device."""

import pytest

from paceline import api, catalog
from paceline.cost.memory import memory_of
from paceline.cost.precision import FLOAT32, Numerics, numerics_on, precision_line
from paceline.cost.roofline import device_times
from paceline.errors import UnknownName, Unsupported
from paceline.spec.strategy import Strategy, precision_called

A100, V100, P40 = (catalog.device(name) for name in ("a100-40gb", "v100-sxm2", "p40"))
RESNET, GPT = catalog.network("resnet50"), catalog.network("gpt2")


@pytest.mark.parametrize(
    ("written", "meant"), [("bf16", "bfloat16"), ("FP16", "float16"), ("mixed", "amp"), ("tf32", "tf32")]
)
def test_people_call_precisions_otherwise(written, meant):
    assert precision_called(written) == meant
    assert Strategy(precision=written).precision == meant


def test_an_unknown_precision_names_the_nearest():
    with pytest.raises(UnknownName, match="float33"):
        precision_called("float33")


def test_the_default_of_pytorch_is_tf32_for_convolutions_on_ampere_alone():
    assert numerics_on(A100, catalog.policy("pytorch").precision) == Numerics("tf32", "float32")
    assert numerics_on(A100, catalog.policy("tensorflow").precision) == Numerics("tf32", "tf32")
    assert numerics_on(V100, catalog.policy("pytorch").precision) == FLOAT32


def test_mixed_precision_stores_activations_in_half_and_exchanges_float32():
    assert numerics_on(V100, "amp") == Numerics("float16", "float16", activation=2, weight=4)
    assert numerics_on(V100, "float16").weight == 2
    mixed = memory_of(RESNET, 32, numerics=numerics_on(V100, "amp"))
    full = memory_of(RESNET, 32)
    assert mixed.activations == full.activations / 2
    assert (mixed.weights, mixed.gradients) == (full.weights, full.gradients)


def test_a_device_without_the_precision_refuses():
    with pytest.raises(Unsupported, match="amp on 'p40'"):
        numerics_on(P40, "amp")
    with pytest.raises(Unsupported, match="tf32 is known for 'v100-sxm2'"):
        numerics_on(V100, "tf32")


def test_convolutions_gain_by_the_default_and_matrix_products_do_not():
    slow, usual = (device_times(GPT, A100, precision=one).at(8).sum() for one in ("float32", "tf32_convolutions"))
    assert usual == slow
    slow, usual, both = (
        device_times(RESNET, A100, precision=one).at(64).sum() for one in ("float32", "tf32_convolutions", "tf32")
    )
    assert both <= usual < slow / 1.5


def test_published_resnet50_on_dgx_a100_in_tf32_lies_in_the_interval():
    for precision in (None, "tf32"):
        answer = api.predict("resnet50", cluster="dgx-a100", batch=256, devices=8, precision=precision).curve
        low, high = answer.predictions[0].samples_per_s.interval_90
        assert low < 7248 < high
        assert "TF32" in answer.detail["precision"]


def test_the_line_says_the_default_and_what_was_asked():
    usual, asked = (
        api.predict("gpt2", cluster="dgx-a100", batch=2, devices=1, precision=one).curve.detail["precision"]
        for one in (None, "amp")
    )
    assert "float32 matrix products" in usual
    assert "default of pytorch/ddp" in usual
    assert asked.startswith("amp: float16")


def test_a_plan_in_half_precision_is_faster():
    usual, mixed = (
        api.plan("resnet50", cluster="dgx-1", global_batch=512, precision=one).plan for one in (None, "amp")
    )
    assert mixed.best.predicted_throughput > 2 * usual.best.predicted_throughput
    assert mixed.as_dict()["precision"].startswith("amp: float16")


def test_one_device_with_tf32_is_enough_to_name_it():
    mixed, without = (
        precision_line(None, "tf32_convolutions", framework="pytorch", devices=some) for some in ([A100, V100], [V100])
    )
    assert "is TF32 for convolutions only" in mixed
    assert without == "float32: the default of pytorch on devices without TF32"
