"""Medians, intervals, comparisons and phases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.frameworks.harness import settled
from paceline.measurements.summary import compare, median_interval, phases_of, speedup_interval


def test_interval_covers_the_true_median_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(1)
    hits = 0
    for trial in range(300):
        interval = median_interval(generator.normal(10.0, 1.0, size=15), seed=trial)
        hits += interval.low <= 10.0 <= interval.high
    assert 0.90 <= hits / 300 <= 1.0


def test_one_launch_has_no_interval() -> None:
    interval = median_interval([3.0])
    assert interval.value == 3.0
    assert math.isinf(interval.low)
    assert math.isinf(interval.high)


def test_intervals_do_not_depend_on_chance() -> None:
    sample = [1.0, 2.0, 3.0, 4.0, 9.0]
    assert median_interval(sample) == median_interval(sample)
    assert median_interval(sample).low >= 1.0


def test_ratio_scales_with_the_sample() -> None:
    base = [10.0, 10.5, 9.5, 10.2, 9.9]
    once, twice = speedup_interval(base, base), speedup_interval([2 * value for value in base], base)
    assert once.value == 1.0
    assert twice.value == 2.0
    assert once.low < 1.0 < once.high


def test_comparison_says_when_it_cannot_tell() -> None:
    base = [10.0, 10.5, 9.5, 10.2, 9.9, 10.1]
    assert compare(base, base[::-1]).verdict == "no difference shown"
    assert compare([value * 1.5 for value in base], base).verdict == "faster"
    assert compare([value / 1.5 for value in base], base).verdict == "slower"
    assert compare(base[:3], base[:3]).verdict == "too few launches"


@given(
    st.lists(st.floats(1e-4, 1.0), min_size=5, max_size=5),
    st.floats(0.5, 1.5),
)
def test_phases_sum_to_the_clean_step(increments: list[float], factor: float) -> None:
    reached = np.cumsum(increments)
    names = ("forward", "compute", "exchange", "resident", "copied")
    passes = {**dict(zip(names, map(float, reached), strict=True)), "clean": float(reached[-1]) * factor}
    phases = phases_of(passes)
    assert sum(phases.values()) == pytest.approx(passes["clean"])
    assert phases["io"] == 0.0
    assert phases["aggregate"] == pytest.approx(increments[2])
    assert all(value >= 0 for name, value in phases.items() if name != "other")
    parts_fit = passes["clean"] >= passes["resident"]
    assert phases["other"] == pytest.approx(0 if parts_fit else passes["clean"] - passes["resident"], abs=1e-12)


def test_a_pass_that_equals_the_last_one_is_the_whole_step_too() -> None:
    phases = phases_of({"forward": 1.0, "compute": 3.0, "exchange": 5.5, "resident": 5.5, "clean": 5.0})
    assert phases["aggregate"] == pytest.approx(2.0)
    assert (phases["update"], phases["other"]) == (0.0, 0.0)


def test_warm_up_ends_when_times_settle() -> None:
    falling = [1.0 / (1 + step) for step in range(10)]
    flat = [0.1] * 12
    assert settled(falling, least=3) is None
    assert settled(flat, least=3) == 10
    assert settled(flat, least=12) == 12
    end = settled(falling + flat, least=10)
    assert end is not None
    assert 15 <= end <= 20
