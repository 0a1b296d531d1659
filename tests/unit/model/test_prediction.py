"""What a curve of predictions tells: intervals, the knee, the largest part, and why another curve differs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.model.prediction import TERMS, Curve, Estimate, Prediction, doublings, estimate, knee_of, reasons


def prediction(**terms: float) -> Prediction:
    every = {**dict.fromkeys(TERMS, 0.0), **terms}
    step = sum(every.values())
    exact = Estimate(step, (step, step), (step, step))
    return Prediction(8, 32, exact, exact, 1.0, every)


def curve(one: Prediction, **policy: object) -> Curve:
    return Curve("made", (prediction(forward=9.0), one), None, 0.5, "", detail={"policy": policy})


def test_intervals_are_quantiles_and_hold_their_value() -> None:
    draws = np.arange(101.0)
    assert estimate(50.0, draws) == Estimate(50.0, (25.0, 75.0), (5.0, 95.0))
    assert estimate(-3.0, draws) == Estimate(-3.0, (-3.0, 75.0), (-3.0, 95.0))
    assert estimate(200.0, draws) == Estimate(200.0, (25.0, 200.0), (5.0, 200.0))
    assert estimate(50.0, draws).half_width == pytest.approx(0.9)
    assert Estimate(0.0, (0.0, 0.0), (0.0, 1.0)).half_width == float("inf")


def test_doublings_end_at_the_last_count_that_fits() -> None:
    assert doublings(1, 8) == (1, 2, 4, 8)
    assert doublings(3, 23) == (3, 6, 12)
    assert doublings(4, 3) == ()


@pytest.mark.parametrize(
    ("rates", "gain", "knee"),
    [
        ([100.0, 200.0, 300.0, 400.0], 0.5, 4),
        ([100.0, 150.0, 225.0, 337.5], 0.5, None),  # gains exactly what is asked
        ([100.0, 149.0, 300.0, 600.0], 0.5, 1),
        ([100.0, 149.0, 300.0, 600.0], 0.4, None),
        ([100.0, 190.0, 361.0, 360.0], 0.1, 4),
    ],
)
def test_the_knee_is_the_last_count_before_a_doubling_that_gains_too_little(
    rates: list[float], gain: float, knee: int | None
) -> None:
    assert knee_of((1, 2, 4, 8), rates, gain=gain) == knee


def test_the_largest_part_is_compute_or_a_term() -> None:
    both = prediction(forward=2.0, backward=3.0, aggregate=4.0, fixed=1.0)
    assert both.dominant == "compute"
    assert both.beside_compute == ("aggregate", pytest.approx(0.4))
    assert prediction(forward=1.0, backward=1.0, waiting=3.0, io=1.0).dominant == "waiting"
    assert (both.as_dict()["support"], replace(both, supported=False).as_dict()["support"]) == (
        "supported", "unsupported",
    )  # fmt: skip


OLD = {"aggregation": "allreduce", "fusion": "tensor", "overlap": False, "input_overlap": True, "order": "reverse",
       "synchrony": "synchronous", "compression": "none"}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "no term of the step changes by 1 %"),
        ({"aggregation": "parameter_server"}, "sends gradients to parameter servers and fetches weights from them"),
        ({"overlap": True}, "exchanges while backward still runs"),
        ({"input_overlap": False}, "reads input between steps"),
        ({"fusion": "all"}, "everything at once instead of one exchange per tensor"),
        ({"fusion": "bytes", "bucket": 2.0**20}, "buckets of 1.00 MiB instead of one exchange per tensor"),
        ({"order": "priority"}, "sends gradients of the first layers first, so that the next forward can begin"),
        ({"order": "ready"}, "no term of the step changes by 1 %"),
        ({"synchrony": "asynchronous"}, "ranks do not wait for each other"),
        ({"compression": "1bit"}, "compression 1bit"),
    ],
)
def test_what_another_policy_does_otherwise(change: dict[str, object], said: str) -> None:
    one = prediction(forward=1.0)
    assert reasons(curve(one, **OLD), curve(one, **{**OLD, **change})) == [said]
    if "synchrony" in change:
        assert reasons(curve(one, **{**OLD, **change}), curve(one, **OLD)) == ["ranks wait"]


def test_the_three_terms_that_change_most_beyond_a_hundredth_of_the_step() -> None:
    before = prediction(forward=50.0, backward=40.0, aggregate=5.0, update=5.0)
    after = prediction(forward=51.0, backward=38.0, aggregate=8.0, update=5.0, fixed=1.01, waiting=1.5)
    assert reasons(curve(before), curve(after)) == ["aggregate +3.00 s", "backward -2.00 s", "waiting +1.50 s"]
    fewer = prediction(forward=51.0, backward=40.0, aggregate=5.0, update=3.99)
    assert reasons(curve(before), curve(fewer)) == ["update -1.01 s"]
