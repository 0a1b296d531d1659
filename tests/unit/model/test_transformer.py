from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import InputError, Unsupported
from paceline.model.transformer.iterations import predict_from, read_iterations
from paceline.model.transformer.shape import Parallel, TransformerShape, check_memory, transformer_memory
from paceline.model.transformer.step import (
    PRIOR,
    RATES,
    SPREAD,
    features,
    fit_rates,
    iteration_seconds,
    predict_iteration,
    refit_beyond,
)
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


def test_a_hidden_size_splits_into_heads():
    with pytest.raises(InputError, match="a hidden size of 2049 does not split into 16 heads"):
        transformer_memory(TransformerShape(hidden=2049, heads=16, layers=24, sequence=1024), Parallel(1, 1, 8, 4, 128))


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


def test_published_iterations_are_in_seconds():
    points = gpt_points("gpt-a100-one-host")
    assert (points.shapes[0], points.parallels[0].pipeline) == (TransformerShape(1024, 16, 12, 1024), 2)
    assert points.seconds[:2].tolist() == pytest.approx([0.069957, 0.089176])


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
        "tensor": 3, "per_host": 8, "pipeline": 2, "micro": 4, "chunks": 2, "blocks": 6, "again": 2, "flop": 0.5,
        "whole": 2, "split": 0.4, "scores": 1.2 / 1.4, "tensor_bytes": 2, "tensor_calls": 4, "head": 4, "hand": 3,
        "parameters": 5, "data_bytes": 6, "beyond": 0, "tensor_beyond": 0, **changes,
    }  # fmt: skip
    return float(iteration_seconds(np.log(rates), {name: np.array([float(n)]) for name, n in case.items()})[0])


def test_an_iteration_by_hand():
    # Block: 1 + 6 + 2 + 6 of work, 174 of collectives, 74 of launches. Stage: 6 blocks, half of 92, 205 of hand-over.
    assert timed() == pytest.approx(4.5 * (6 * 263 + 46 + 205) + 222 + 205 + 43)
    assert timed(pipeline=1) == pytest.approx(4 * (6 * 263 + 92) + 222 + 205 + 43)
    # Beyond a host: work times 1.5, seven hops inside, other bytes over the ports.
    block = 22.5 + (476 + 144) + (22 + 637)
    beyond = timed(beyond=1, tensor=12, tensor_beyond=1)
    assert beyond == pytest.approx(4.5 * (6 * block + 69 + 595) + 282 + 205 + 43)


def test_kernels_hide_their_launch_the_better_the_sharper():
    work, launch = 17 + 174, 74
    rates = np.log([2, 3, 5, 7, 11, 13, 2, 17, 19, 23, 29, 31, 37, 41, 43, 4, 1.5, 47, 53])
    case = {
        "tensor": 3, "per_host": 8, "pipeline": 1, "micro": 1, "chunks": 1, "blocks": 1, "again": 2, "flop": 1,
        "whole": 1, "split": 1, "scores": 1, "tensor_bytes": 2, "tensor_calls": 4, "head": 0, "hand": 0,
        "parameters": 0, "data_bytes": 0, "beyond": 0, "tensor_beyond": 0,
    }  # fmt: skip
    arrays = {name: np.array([float(n)]) for name, n in case.items()}
    assert iteration_seconds(rates, arrays)[0] - 43 == pytest.approx((work**4 + launch**4) ** 0.25)
    rates[15] = np.log(0.5)
    assert iteration_seconds(rates, arrays)[0] - 43 == pytest.approx(work + launch), "never blunter than a sum"
    rates[15] = np.log(50)
    assert iteration_seconds(rates, arrays)[0] - 43 == pytest.approx((work**20 + launch**20) ** 0.05)


def test_beyond_one_host_only_what_hosts_add_is_fitted():
    parallels = [Parallel(t, p, 2, b, 16 * b, per_host=1) for t in (1, 2) for p in (1, 2) for b in (8, 16)]
    case = features([GPT] * 8, parallels)
    local = features([GPT] * 8, [replace(one, per_host=64) for one in parallels])
    inside = fit_rates(local, iteration_seconds(PRIOR, local))
    moved = inside.log_rates.copy()
    moved[len(RATES)] = np.log(1.3)
    found = refit_beyond(inside, case, iteration_seconds(moved, case))
    assert found.log_rates[: len(RATES)].tolist() == inside.log_rates[: len(RATES)].tolist()
    assert np.exp(found.log_rates[len(RATES)]) == pytest.approx(1.3, rel=0.1)
    assert found.covariance[: len(RATES)].max() == 0.0
    spread = np.sqrt(np.diag(found.covariance))[len(RATES) :]
    assert (spread < SPREAD[len(RATES) :] + 1e-9).all(), "points only add to the prior"
    assert (found.residual, found.num_points) == (0.07, 8)
    assert inside.residual >= 0.03


def test_three_iterations_are_enough_for_a_fit_and_its_residual_counts_degrees():
    parallels = [Parallel(1, 1, 1, b, 8 * b) for b in (1, 2, 4)]
    case = features([GPT] * 3, parallels)
    truth = iteration_seconds(PRIOR, case)
    assert fit_rates(case, truth).residual == 0.03
    wild = fit_rates(case, truth * np.array([1.0, 30.0, 0.03]))
    error = np.log(iteration_seconds(wild.log_rates, case)) - np.log(truth * np.array([1.0, 30.0, 0.03]))
    assert wild.residual == pytest.approx(max(0.03, np.sum(error**2) ** 0.5))


@pytest.mark.parametrize("name", ["tensor", "pipeline", "data", "micro_batch", "global_batch", "interleave"])
def test_nothing_is_done_on_less_than_one(name):
    with pytest.raises(InputError, match=f"{name} is 0, expected at least 1"):
        replace(SPREAD_OUT, **{name: 0}).check(TINY)
    replace(SPREAD_OUT, tensor=1, pipeline=1, data=1, micro_batch=1, global_batch=1, interleave=1).check(TINY)


def test_memory_that_is_just_enough_is_enough():
    need = transformer_memory(TINY, SPREAD_OUT).total
    assert check_memory(TINY, SPREAD_OUT, device_bytes=need).total == need
    with pytest.raises(InputError, match="too much"):
        check_memory(TINY, SPREAD_OUT, device_bytes=need - 1)
    assert SPREAD_OUT.devices == 12
    assert SPREAD_OUT.num_micro == 2


def test_all_state_is_divided_by_its_stage():
    parts = [transformer_memory(TINY, replace(SPREAD_OUT, zero_stage=stage)) for stage in range(4)]
    assert [one.weights for one in parts] == [2910, 2910, 2910, 970]
    assert [one.gradients for one in parts] == [2910, 2910, 970, 970]
    assert [one.optimizer for one in parts] == [17460, 5820, 5820, 5820]


def measured_file(tmp_path, machine, counts=(16, 32, 64), head="tensor,data,global-batch,seconds"):
    """Iterations of GPT on one host that is so many times as fast as the prior's."""
    ways = [Parallel(1, 1, 8, 1, count) for count in counts] + [Parallel(4, 1, 2, 1, count) for count in counts]
    rows = [f"{way.tensor},{way.data},{way.global_batch},{seconds(way) / machine:.4f}" for way in ways]
    (path := tmp_path / "iterations.csv").write_text("\n".join([head, *rows, ""]))
    return path


@pytest.mark.parametrize("machine", [0.5, 6.0])
def test_iterations_of_another_machine_predict_another_shape(tmp_path, machine):
    asked = Parallel(2, 1, 4, 1, 32)
    measured = read_iterations(measured_file(tmp_path, machine), GPT, asked)
    wide = replace(GPT, hidden=4096, heads=32)
    made, truth = predict_from(measured, wide, asked), seconds(asked, wide) / machine
    assert made.value == pytest.approx(truth, rel=0.2)
    assert made.interval_90[0] < truth < made.interval_90[1]


def test_intervals_from_few_iterations_hold_the_measured_ones(tmp_path):
    measured = read_iterations(measured_file(tmp_path, 5.0), GPT, Parallel(1, 1, 8, 1, 16))
    for one in measured:
        made = predict_from(measured, one.shape, one.parallel)
        assert made.interval_50[0] < one.seconds < made.interval_50[1]


def test_one_host_alone_does_not_tell_what_several_cost(tmp_path):
    measured = read_iterations(measured_file(tmp_path, 1.0), GPT, Parallel(1, 1, 8, 1, 16))
    with pytest.raises(Unsupported, match="no measured iteration does"):
        predict_from(measured, GPT, Parallel(1, 1, 16, 1, 16))
    with pytest.raises(Unsupported, match="2 measured iterations"):
        predict_from(measured[:2], GPT, Parallel(1, 1, 8, 1, 16))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tensor\n1\n", "column missing: seconds"),
        ("seconds,gpus\n1,8\n", "'gpus'"),
        ("seconds,micro-batch,micro_batch\n1,8,8\n", "two columns"),
        ("seconds,tensor\n1,1.5\n", "a whole number"),
        ("seconds,tensor\n-1,1\n", "a number above 0"),
        ("seconds,tensor\n1,3\n", "heads do not split"),
    ],
)
def test_wrong_files_of_iterations_are_refused(tmp_path, text, words):
    (path := tmp_path / "iterations.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        read_iterations(path, GPT, Parallel(1, 1, 8, 1, 16))
