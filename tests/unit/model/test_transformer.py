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
