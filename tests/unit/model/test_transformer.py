from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InputError, Unsupported
from paceline.model.transformer.shape import Parallel, TransformerShape, check_memory, transformer_memory
from paceline.model.transformer.step import PRIOR, features, fit_rates, iteration_seconds, predict_iteration
from paceline.model.validation.gpt import gpt_points, predict_published

GPT = TransformerShape(hidden=2048, heads=16, layers=24, sequence=1024)
BIG = TransformerShape(hidden=12288, heads=96, layers=96, sequence=2048)


def seconds(parallel, shape=GPT):
    return float(iteration_seconds(PRIOR, features([shape], [parallel]))[0])


def test_parameters_are_those_of_gpt3():
    assert BIG.parameters == pytest.approx(175e9, rel=0.01)


def test_interleaving_shrinks_the_bubble():
    plain = Parallel(1, 4, 1, micro_batch=1, global_batch=4)
    assert seconds(Parallel(1, 4, 1, 1, 4, interleave=2)) < seconds(plain)


def test_recomputation_costs_time_and_saves_memory():
    ways = [Parallel(1, 4, 1, 4, 32, recompute=what) for what in ("none", "selective", "full")]
    assert seconds(ways[0]) < seconds(ways[1]) < seconds(ways[2])
    totals = [transformer_memory(GPT, way).total for way in ways]
    assert totals == sorted(totals, reverse=True)


def test_zero_divides_the_state():
    totals = [transformer_memory(GPT, Parallel(1, 1, 8, 1, 8, zero_stage=stage)).total for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4


def test_what_does_not_fit_says_by_how_much():
    with pytest.raises(InputError, match="too much"):
        check_memory(BIG, Parallel(8, 1, 1, 1, 8), device_bytes=80e9)
    assert check_memory(BIG, Parallel(8, 16, 4, 1, 64, recompute="full"), device_bytes=80e9).total < 80e9


@pytest.mark.parametrize(
    ("parallel", "words"),
    [
        (Parallel(1, 5, 1, 1, 8), "layers"),
        (Parallel(3, 1, 1, 1, 8), "heads"),
        (Parallel(1, 1, 3, 1, 8), "global batch"),
        (Parallel(0, 1, 1, 1, 8), "tensor"),
    ],
)
def test_what_cannot_run_is_refused(parallel, words):
    with pytest.raises(InputError, match=words):
        transformer_memory(GPT, parallel)


def test_a_fit_meets_what_it_was_given():
    parallels = [Parallel(t, p, 1, b, 8 * b) for t in (1, 2, 4) for p in (1, 2) for b in (1, 2, 4)]
    case = features([GPT] * len(parallels), parallels)
    truth = iteration_seconds(PRIOR + 0.3 * np.random.default_rng(0).standard_normal(len(PRIOR)), case)
    rates = fit_rates(case, truth)
    found = predict_iteration(rates, case)
    assert [e.value for e in found] == pytest.approx(truth.tolist(), rel=0.1)
    with pytest.raises(Unsupported):
        fit_rates(features([GPT], parallels[:1]), truth[:1])


@pytest.mark.parametrize("name", ["gpt-a100-one-host", "gpt-a100-many-hosts"])
def test_every_measured_configuration_passes_the_memory_check(name):
    points = gpt_points(name)
    assert {parallel.recompute for parallel in points.parallels} == {"full"}
    for shape, parallel in zip(points.shapes, points.parallels, strict=True):
        assert check_memory(shape, parallel, device_bytes=80e9).total < 80e9


def test_published_iterations_beyond_one_host_are_met_by_the_command():
    points = gpt_points("gpt-a100-many-hosts")
    cases = zip(points.shapes, points.parallels, points.seconds, strict=True)
    errors = [abs(predict_published(shape, parallel).value / seconds - 1) for shape, parallel, seconds in cases]
    assert np.mean(errors) < 0.1


TINY = TransformerShape(hidden=10, heads=2, layers=4, sequence=5, vocabulary=20)
SPREAD_OUT = Parallel(tensor=2, pipeline=2, data=3, micro_batch=4, global_batch=24)


def test_memory_of_a_tiny_transformer_by_hand():
    assert (TINY.block_parameters, TINY.parameters) == (1330, 4 * 1330 + 25 * 10)
    use = transformer_memory(TINY, SPREAD_OUT)
    # Two of four blocks and the embedding, halved: 1455 parameters. Two micro-batches of 200 x (10 + 12 + 2.5) bytes.
    assert (use.weights, use.gradients, use.optimizer, use.activations) == (2910, 2910, 17460, 19600)
    assert use.total == 42880
    assert transformer_memory(TINY, replace(SPREAD_OUT, zero_stage=1)).optimizer == 5820
    assert transformer_memory(TINY, replace(SPREAD_OUT, recompute="selective")).activations == 17600
    assert transformer_memory(TINY, replace(SPREAD_OUT, recompute="full")).activations == 2 * 200 * 4 + 4400
    assert transformer_memory(TINY, replace(SPREAD_OUT, interleave=2)).activations == 19600 * 1.25
    assert transformer_memory(TINY, replace(SPREAD_OUT, global_batch=12)).activations == 9800


def test_counts_of_a_tiny_transformer_by_hand():
    row = {name: value[0] for name, value in features([TINY], [SPREAD_OUT]).items()}
    assert row == pytest.approx(
        {
            "tensor": 2, "pipeline": 2, "micro": 2, "chunks": 1, "blocks": 2, "again": 1, "tensor_calls": 4,
            "flop": 78e-9, "whole": 8e-6, "split": 4e-6, "scores": 1.2e-6, "tensor_bytes": 1.6e-6, "head": 12e-9,
            "hand": 0.4e-6, "parameters": 1.3e-6, "data_bytes": 1.3e-6 * 8 / 3, "beyond": 1, "tensor_beyond": 0,
            "per_host": 8,
        }, rel=1e-12,
    )  # fmt: skip
    again = {name: value[0] for name, value in features(
        [TINY], [replace(SPREAD_OUT, recompute="full", zero_stage=3, per_host=12)]).items()}  # fmt: skip
    assert (again["flop"], again["tensor_bytes"], again["beyond"]) == (pytest.approx(104e-9), pytest.approx(2.4e-6), 0)
    assert (again["data_bytes"], again["scores"]) == (pytest.approx(1.3e-6 * 4), pytest.approx(1.6e-6))
    some = features([TINY], [replace(SPREAD_OUT, recompute="selective")])
    assert (some["flop"][0], some["whole"][0]) == (pytest.approx(80e-9), pytest.approx(8e-6))
    assert features([TINY], [replace(SPREAD_OUT, tensor=1)])["tensor_calls"][0] == 0


def timed(**changes):
    """Seconds of a made case under rates that are small primes and kernels that do not hide their launch."""
    rates = [2, 3, 5, 7, 11, 13, 2, 17, 19, 23, 29, 31, 37, 41, 43, 1, 1.5, 47, 53]
    case = {
        "tensor": 3, "per_host": 8, "pipeline": 2, "micro": 4, "chunks": 2, "blocks": 6, "again": 2, "flop": 1,
        "whole": 1, "split": 1, "scores": 1, "tensor_bytes": 2, "tensor_calls": 4, "head": 4, "hand": 3,
        "parameters": 5, "data_bytes": 6, "beyond": 0, "tensor_beyond": 0, **changes,
    }  # fmt: skip
    return float(iteration_seconds(np.log(rates), {name: np.array([float(n)]) for name, n in case.items()})[0])


def test_an_iteration_by_hand():
    # Block: 17 of work, 174 of collectives, 74 of launches. Stage: 6 blocks, half a head of 92, hand-over of 205.
    assert timed() == pytest.approx(4.5 * (6 * 265 + 46 + 205) + 222 + 205 + 43)
    assert timed(pipeline=1) == pytest.approx(4 * (6 * 265 + 92) + 222 + 205 + 43)
    # Beyond a host: work times 1.5, seven hops inside, other bytes over the ports.
    block = 25.5 + (476 + 144) + (22 + 637)
    beyond = timed(beyond=1, tensor=12, tensor_beyond=1)
    assert beyond == pytest.approx(4.5 * (6 * block + 69 + 595) + 282 + 205 + 43)
