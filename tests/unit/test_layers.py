"""Shapes, parameters and costs of each kind of layer, against values worked out by hand."""

import pytest
from pydantic import ValidationError

from paceline.spec.layers import (
    Add,
    Attention,
    AvgPool,
    BatchNorm,
    Concat,
    Conv2d,
    Embedding,
    FirstToken,
    Flatten,
    Gelu,
    GlobalAvgPool,
    LayerNorm,
    Linear,
    LocalResponseNorm,
    MaxPool,
    PadShortcut,
    PositionEmbedding,
    Relu,
    TypeEmbedding,
)
from paceline.spec.network import ImageInput, Network, TokenInput, layer_costs, plain_network

IMAGE = ImageInput(channels=3, height=32, width=24)
TEXT = TokenInput(length=16, vocabulary=100)


def cost_of(*layers, given=IMAGE):
    return layer_costs(Network(name="n", input=given, layers=layers))[-1]


@pytest.mark.parametrize(
    ("layer", "shape", "parameters", "macs"),
    [
        (Conv2d(name="a", channels=8, kernel=(3, 3)), (8, 30, 22), 8 * 27 + 8, 8 * 30 * 22 * 27),
        (
            Conv2d(name="a", channels=6, kernel=(5, 1), stride=(2, 3), padding=(2, 0), groups=3, bias=False),
            (6, 16, 8),
            6 * 5,
            6 * 16 * 8 * 5,
        ),
        (MaxPool(name="a", kernel=(3, 3), stride=(2, 2)), (3, 15, 11), 0, 0),
        (MaxPool(name="a", kernel=(3, 3), stride=(2, 2), ceil=True), (3, 16, 12), 0, 0),
        (AvgPool(name="a", kernel=(3, 3), stride=(1, 1), padding=(1, 1)), (3, 32, 24), 0, 0),
        (GlobalAvgPool(name="a"), (3,), 0, 0),
        (Flatten(name="a"), (3 * 32 * 24,), 0, 0),
        (BatchNorm(name="a"), (3, 32, 24), 6, 0),
        (LocalResponseNorm(name="a"), (3, 32, 24), 0, 0),
        (Relu(name="a"), (3, 32, 24), 0, 0),
        (PadShortcut(name="a", channels=5, stride=2), (5, 16, 12), 0, 0),
        (Linear(name="a", features=7), (3, 32, 7), 7 * 24 + 7, 3 * 32 * 7 * 24),
    ],
)
def test_on_an_image(layer, shape, parameters, macs):
    cost = cost_of(layer)
    assert (cost.shape, cost.parameters, cost.macs) == (shape, parameters, macs)


TOKENS = Embedding(name="t", rows=100, width=12)


@pytest.mark.parametrize(
    ("layer", "shape", "parameters", "macs"),
    [
        (PositionEmbedding(name="a", rows=20), (16, 12), 240, 0),
        (TypeEmbedding(name="a"), (16, 12), 24, 0),
        (LayerNorm(name="a"), (16, 12), 24, 0),
        (Attention(name="a", heads=3), (16, 12), 4 * 144 + 4 * 12, 4 * 16 * 144 + 2 * 256 * 12),
        (FirstToken(name="a"), (12,), 0, 0),
        (Linear(name="a", features=100, bias=False, tied_to="t"), (16, 100), 0, 16 * 100 * 12),
    ],
)
def test_on_text(layer, shape, parameters, macs):
    cost = cost_of(TOKENS, layer, given=TEXT)
    assert (cost.shape, cost.parameters, cost.macs) == (shape, parameters, macs)


def test_joined_inputs():
    a, b = Conv2d(name="a", channels=4, kernel=(1, 1)), Conv2d(name="b", channels=4, kernel=(1, 1), inputs=("input",))
    added = cost_of(a, b, Add(name="c", inputs=("a", "b")))
    assert (added.shape, added.input_elements, added.output_elements) == ((4, 32, 24), 2 * 4 * 32 * 24, 4 * 32 * 24)
    assert cost_of(a, b, Concat(name="c", inputs=("a", "b", "input"))).shape == (11, 32, 24)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((Conv2d(name="a", channels=4, kernel=(40, 1)),), "does not fit"),
        ((Conv2d(name="a", channels=4, kernel=(1, 1), groups=2),), "do not divide into 2 groups"),
        ((Relu(name="a"), Relu(name="a")), "name used twice"),
        ((Relu(name="a", inputs=("b",)),), "reads 'b', which no layer before it"),
        ((Flatten(name="a"), BatchNorm(name="b")), "expected an image"),
        ((Attention(name="a", heads=1),), "expected a sequence"),
        ((Add(name="a", inputs=("input",)),), "two or more inputs"),
        ((Relu(name="a", inputs=("input", "input")),), "reads 2 layers, expected one"),
        ((PadShortcut(name="a", channels=4),), "evenly on both sides"),
        ((Linear(name="a", features=2, tied_to="t"),), "is tied to 't'"),
        ((Embedding(name="a", rows=3, width=2),), "expected tokens"),
        ((Flatten(name="f"), Embedding(name="a", rows=3, width=2)), r"'a' \(embedding\): reads 'f', expected tokens"),
        ((Flatten(name="a"), Linear(name="b", features=2), Relu(name="c", inputs=("a",))), "'b': nothing that leads"),
        ((Relu(name="a"), Relu(name="b"), Relu(name="c", inputs=("input",))), "'b': nothing that leads"),
    ],
)
def test_layers_that_do_not_fit_say_why(layers, words):
    with pytest.raises(ValidationError, match=words):
        Network(name="n", input=IMAGE, layers=layers)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((Gelu(name="a"), Linear(name="b", features=2)), r"'a' \(gelu\): reads tokens, which only an embedding does"),
        ((Concat(name="a", inputs=("input", "input")),), r"'a' \(concat\): reads tokens"),
        ((Linear(name="a", features=2),), r"'a' \(linear\): reads tokens"),
        (
            (Embedding(name="t", rows=100, width=2), Linear(name="l", features=99, tied_to="t")),
            r"'l' \(linear\): is tied to 't'",
        ),
        ((Embedding(name="a", rows=99, width=2),), r"'a' \(embedding\): has 99 rows for 100 tokens"),
    ],
)
def test_tokens_are_numbers_of_rows(layers, words):
    """A framework would fail in the launch, or train on numbers that mean nothing."""
    with pytest.raises(ValidationError, match=words):
        Network(name="n", input=TEXT, layers=layers)
    Network(name="n", input=TEXT, layers=(Embedding(name="a", rows=100, width=2),))


def test_activation_and_gradient_bytes():
    cost = cost_of(Conv2d(name="a", channels=8, kernel=(3, 3)))
    assert cost.activation_bytes(batch=5) == 5 * 4 * 8 * 30 * 22
    assert cost.activation_bytes(batch=1, bytes_per_element=2) == 2 * 8 * 30 * 22
    assert cost.gradient_bytes() == 4 * (8 * 27 + 8)


def test_a_layer_without_inputs_reads_the_one_before():
    network = Network(name="n", input=IMAGE, layers=(Relu(name="a"), Relu(name="b")))
    assert [layer.inputs for layer in network.layers] == [("input",), ("a",)]


def test_the_digest_ignores_the_name_and_nothing_else():
    one = Network(name="one", input=IMAGE, layers=(Relu(name="a"),))
    assert one.digest == one.model_copy(update={"name": "two"}).digest
    assert one.digest != Network(name="one", input=IMAGE, layers=(Relu(name="b"),)).digest


def test_the_plain_form_holds_shapes_and_tensors():
    plain = plain_network(Network(name="n", input=IMAGE, layers=(Conv2d(name="a", channels=8, kernel=(3, 3)),)))
    assert plain["layers"][0]["shape"] == [8, 30, 22]
    assert plain["layers"][0]["tensors"] == [
        {"name": "a.weight", "shape": [8, 3, 3, 3]},
        {"name": "a.bias", "shape": [8]},
    ]


def test_the_loss_is_over_the_last_axis_of_the_output():
    words = Embedding(name="w", rows=100, width=12)
    assert Network(name="n", input=TEXT, layers=(words, Linear(name="l", features=7))).classes == 7
    assert Network(name="n", input=IMAGE, layers=(Flatten(name="f"), Linear(name="l", features=5))).classes == 5


def test_a_table_may_be_read_by_its_tied_layer_alone():
    table = Embedding(name="t", rows=100, width=12, inputs=("input",))
    words = Embedding(name="w", rows=100, width=12, inputs=("input",))
    tied = Linear(name="l", features=100, bias=False, tied_to="t")
    assert Network(name="n", input=TEXT, layers=(table, words, tied)).parameters == 2 * 1200
    with pytest.raises(ValidationError, match="'t': nothing that leads"):
        Network(name="n", input=TEXT, layers=(table, words, Linear(name="l", features=100)))


def test_a_window_that_is_rounded_up_begins_inside_the_image():
    pool = MaxPool(name="a", kernel=(1, 1), stride=(2, 2), ceil=True)
    for side, windows in ((2, 1), (3, 2), (4, 2), (5, 3)):
        assert cost_of(pool, given=ImageInput(channels=3, height=side, width=side)).shape == (3, windows, windows)
