"""What a precision means on a device."""

import pytest

from paceline import api, catalog
from paceline.cost.memory import memory_of
from paceline.cost.precision import FLOAT32, Numerics, numerics_on, precision_line
from paceline.cost.roofline import device_times
from paceline.errors import UnknownName, Unsupported
from paceline.spec.cluster import Device
from paceline.spec.strategy import Strategy, precision_by_alias

A100, V100, P40 = (catalog.device(name) for name in ("a100-40gb", "v100-sxm2", "p40"))
RESNET, GPT = catalog.network("resnet50"), catalog.network("gpt2")


@pytest.mark.parametrize(
    ("written", "meant"), [("bf16", "bfloat16"), ("FP16", "float16"), ("mixed", "amp"), ("tf32", "tf32")]
)
def test_people_call_precisions_otherwise(written, meant):
    assert precision_by_alias(written) == meant
    assert Strategy(precision=written).precision == meant


def test_an_unknown_precision_names_the_nearest():
    with pytest.raises(UnknownName, match="float33"):
        precision_by_alias("float33")


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


FEW, BLANK = {"float32": 1e12, "bfloat16": 4e12}, {}


def device(peak, kind="gpu"):
    return Device(name="d", kind=kind, peak=peak)


@pytest.mark.parametrize(
    ("peak", "kind", "half"),
    [
        ({"float16": 1e12, "bfloat16": 1e12}, "gpu", "float16"),
        ({"float16": 1e12, "bfloat16": 1e12}, "cpu", "bfloat16"),
        (FEW, "gpu", "bfloat16"),
        (BLANK, "gpu", "float16"),
        (BLANK, "cpu", "bfloat16"),
    ],
)
def test_autocast_takes_float16_on_accelerators_that_have_it(peak, kind, half):
    assert numerics_on(device(peak, kind), "amp") == Numerics(half, half, activation=2, weight=4)


def test_autocast_is_refused_where_only_a_processor_lacks_bfloat16():
    with pytest.raises(Unsupported, match="no peak rate in bfloat16 is known"):
        numerics_on(device({"float16": 1e12}, "cpu"), "amp")


@pytest.mark.parametrize(
    ("name", "width"), [("float64", 8), ("float32", 4), ("tf32", 4), ("float16", 2), ("bfloat16", 2)]
)
def test_a_precision_has_its_width_everywhere(name, width):
    for peak in ({name: 1e12}, {}):
        assert numerics_on(device(peak), name) == Numerics(name, name, activation=width, weight=width)
    with pytest.raises(Unsupported, match=f"no peak rate in {name}"):
        numerics_on(device({"float8": 1e12}), name)


def test_what_nobody_calls_a_precision_is_refused():
    with pytest.raises(Unsupported, match="no peak rate in float33"):
        numerics_on(device({}), "float33")


def test_layers_multiply_in_their_precision_on_the_unit_that_has_it():
    mixed = Numerics("tf32", "float32")
    kinds = ("convolution", "linear", "attention", "elementwise")
    assert [mixed.of(kind) for kind in kinds] == ["tf32", "float32", "float32", "float32"]
    assert [mixed.unit(kind) for kind in kinds] == ["tensor_convolution", "linear", "attention", "elementwise"]
    half = Numerics("bfloat16", "bfloat16", 2, 2)
    assert [half.unit(kind) for kind in kinds] == [f"tensor_{kind}" for kind in kinds[:3]] + ["elementwise"]
    assert [Numerics("float64", "float64", 8, 8).unit(kind) for kind in kinds] == list(kinds)


@pytest.mark.parametrize(
    ("numerics", "words"),
    [
        (Numerics(), "float32"),
        (Numerics("float64", "float64", 8, 8), "float64"),
        (Numerics("tf32", "float32"), "TF32 convolutions, float32 matrix products, stored in float32"),
        (Numerics("tf32", "tf32"), "TF32 convolutions and matrix products, stored in float32"),
        (Numerics("float16", "float16", 2, 2), "float16 weights, activations and gradients"),
        (
            Numerics("float16", "float16", 2, 4),
            "float16 convolutions, matrix products and activations, float32 weights and gradients",
        ),
    ],
)
def test_the_meaning_of_numerics(numerics, words):
    assert numerics.meaning == words


def test_the_line_names_what_was_asked_on_every_device():
    fast, slow = device({"float32": 1e12, "tf32": 8e12}), V100
    assert precision_line("float32", "amp", framework="f", devices=[fast, slow]) == "float32, as asked"
    assert precision_line(None, "float32", framework="f", devices=[slow]) == "float32: the default of f"
    mixed = precision_line(None, "tf32_everywhere", framework="f", devices=[fast, slow, slow])
    assert mixed == (
        "TF32 convolutions and matrix products, stored in float32 on d; float32 on v100-sxm2, v100-sxm2: "
        "the default of f is TF32 for convolutions and matrix products; --precision changes it"
    )
    asked = precision_line("tf32", "float32", framework="f", devices=[fast])
    assert asked == "tf32: TF32 convolutions and matrix products, stored in float32"


def test_a_number_of_eight_bits_is_a_byte():
    assert numerics_on(device({"float8": 1e12}), "float8") == Numerics("float8", "float8", activation=1, weight=1)
