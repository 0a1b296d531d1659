"""Medians, intervals, comparisons and phases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t, ttest_ind, ttest_rel

from paceline.measurements import summary
from paceline.measurements.summary import (
    Comparison,
    Interval,
    amount_interval,
    compare,
    compare_steps,
    gate_code,
    median_interval,
    phases_of,
    speedup_interval,
    split_closes,
)


def test_width_is_relative_to_the_value_and_half_is_half_of_it() -> None:
    interval = Interval(50.0, 40.0, 65.0)
    assert interval.width == 0.5
    assert interval.half == 0.25
    assert math.isinf(Interval(0.0, -1.0, 1.0).width)


def test_a_split_closes_within_a_twentieth_of_the_step_on_either_side() -> None:
    assert split_closes({})
    assert split_closes({"forward": 95.0, "other": 5.0})
    assert not split_closes({"forward": 94.0, "other": 6.0})
    assert not split_closes({"forward": 106.0, "other": -6.0})


def test_an_interval_of_launches_is_students_t_on_logarithms() -> None:
    sample = [100.0, 103.0, 98.0, 101.0]
    logs = np.log(sample)
    half = 3.182446 * logs.std(ddof=1) / 2  # t of 3 degrees of freedom, two-sided 95 %
    interval = median_interval(sample)
    assert interval.value == 100.5
    assert interval.low == pytest.approx(np.exp(logs.mean() - half), rel=1e-6)
    assert interval.high == pytest.approx(np.exp(logs.mean() + half), rel=1e-6)
    wider = median_interval(sample, confidence=0.99)
    assert np.log(wider.high / wider.low) / np.log(interval.high / interval.low) == pytest.approx(5.840909 / 3.182446)


def test_an_amount_may_be_zero_or_negative() -> None:
    sample = [-0.2, 0.0, 0.1]
    half = 4.302653 * np.std(sample, ddof=1) / 3**0.5
    interval = amount_interval(sample)
    assert interval.value == 0.0
    assert (interval.low, interval.high) == (
        pytest.approx(np.mean(sample) - half, rel=1e-6), pytest.approx(np.mean(sample) + half, rel=1e-6),
    )  # fmt: skip


def test_one_launch_has_no_interval_and_two_have_a_very_wide_one() -> None:
    for interval in (median_interval([3.0]), amount_interval([3.0]), speedup_interval([3.0, 3.1], [1.0])):
        assert interval.value > 0
        assert math.isinf(interval.low)
        assert math.isinf(interval.high)
    assert median_interval([100.0, 101.0]).width > 0.12
    assert median_interval([100.0, 101.0, 100.5]).width < 0.03


@given(st.lists(st.floats(1e-3, 1e6), min_size=2, max_size=12))
def test_the_median_is_inside_its_interval(sample: list[float]) -> None:
    for interval in (median_interval(sample), amount_interval(sample), speedup_interval(sample, sample[::-1])):
        assert interval.low <= interval.value <= interval.high


def test_after_optional_stopping_the_largest_deviation_seen_from_the_pilot_on_counts() -> None:
    sample = [90.0, 110.0, 95.0, 100.0, 100.0, 100.0]
    scales = [np.log(sample[:count]).std(ddof=1) for count in range(2, 7)]
    fixed, adaptive, late = (median_interval(sample, pilot=pilot) for pilot in (None, 2, 5))
    grown = np.log(adaptive.high / adaptive.low) / np.log(fixed.high / fixed.low)
    assert grown == pytest.approx(max(scales) / scales[-1])
    assert np.log(late.high / late.low) / np.log(fixed.high / fixed.low) == pytest.approx(scales[-2] / scales[-1])
    assert median_interval(sample, pilot=6) == median_interval(sample, pilot=9) == fixed


def test_a_ratio_has_welchs_interval() -> None:
    ours, theirs = [20.0, 21.0, 20.5], [10.0, 12.0, 9.0, 11.0, 10.5]
    interval = speedup_interval(ours, theirs)
    expected = ttest_ind(np.log(ours), np.log(theirs), equal_var=False).confidence_interval(0.95)
    assert interval.value == pytest.approx(20.5 / 10.5)
    assert (interval.low, interval.high) == (pytest.approx(np.exp(expected.low)), pytest.approx(np.exp(expected.high)))
    p_value = ttest_ind(np.log(ours), np.log(theirs), equal_var=False).pvalue
    assert compare(ours, theirs).p_value == pytest.approx(p_value)
    assert speedup_interval([2.0, 2.0], [1.0, 1.0]).high == pytest.approx(2.0)


def test_launches_of_the_same_rounds_are_compared_in_pairs() -> None:
    base = [10.0, 14.0, 8.0, 12.0, 9.0]
    ours = [1.02 * value * noise for value, noise in zip(base, (1.001, 0.999, 1.002, 1.0, 0.998), strict=True)]
    rounds = (range(5), range(5))
    expected = ttest_rel(np.log(ours), np.log(base))
    paired = compare(ours, base, rounds=rounds)
    assert (paired.num_pairs, paired.verdict) == (5, "faster")
    assert paired.p_value == pytest.approx(expected.pvalue)
    assert paired.ratio.low == pytest.approx(np.exp(expected.confidence_interval(0.95).low))
    assert compare(ours, base).verdict == "no difference shown"
    shuffled = compare(ours, base[::-1], rounds=(range(5), range(4, -1, -1)))
    assert shuffled.p_value == pytest.approx(paired.p_value)


@pytest.mark.parametrize("rounds", [
    ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9)),          # no common round
    ((0, 1, 2, 3, 4), (0, 1, 7, 8, 9)),          # two common rounds
    ((0, 0, 1, 2, 3), (0, 1, 2, 3, 4)),          # a round with two launches
    (tuple(range(5)), (0, 1, 2, *range(90, 97))),  # most launches would be left out
])  # fmt: skip
def test_launches_without_common_rounds_are_compared_as_groups(rounds: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    ours, base = ([10.0 + 0.1 * (place % 4) for place, _ in enumerate(side)] for side in rounds)
    result = compare(ours, base, rounds=rounds)
    assert result.num_pairs == 0
    assert result == compare(ours, base)


def test_comparison_says_when_it_cannot_tell() -> None:
    base = [10.0, 10.5, 9.5, 10.2, 9.9, 10.1]
    assert compare(base, base[::-1]).verdict == "no difference shown"
    assert compare([value * 1.5 for value in base], base).verdict == "faster"
    assert compare([value / 1.5 for value in base], base).verdict == "slower"
    assert compare([value * 1.5 for value in base[:3]], base[:3]).verdict == "faster"
    assert compare([value * 1.5 for value in base[:2]], base).verdict == "too few launches"
    alone = compare(base[:1], base)
    assert (alone.verdict, math.isnan(alone.p_value)) == ("too few launches", True)
    assert compare([1.0] * 3, [1.0] * 3).p_value == 1.0
    assert compare([2.0] * 3, [1.0] * 3).p_value == 0.0


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


def test_a_difference_needs_both_the_test_and_the_interval() -> None:
    base = [1.0] * 9
    sample = [1.0] * 5 + [1.1] * 4
    found = compare(sample, base)
    # The means differ, the medians do not: Welch's t is 2.53 of 8 degrees of freedom, the interval contains 1.
    assert found.p_value == pytest.approx(0.0353, abs=2e-4)
    assert found.ratio.low == 1.0
    assert found.verdict == "no difference shown"
    assert compare([value * 1.001 for value in sample], base).verdict == "faster"


@pytest.mark.parametrize(
    ("low", "high", "code"), [(0.90, 0.94, 1), (0.90, 0.95, 2), (0.90, 1.0, 2), (0.95, 1.0, 0), (0.94, 1.0, 2)]
)
def test_a_gate_is_shut_where_the_whole_interval_is_below_it(low: float, high: float, code: int) -> None:
    found = Comparison(Interval(0.95, low, high), 0.5, (3, 3), 0, "no difference shown")
    assert gate_code(found, 0.95) == code
    assert gate_code(Comparison(found.ratio, 0.5, (2, 3), 0, "too few launches"), 0.95) == 2


def test_ratios_after_optional_stopping_rest_on_the_largest_deviation_too() -> None:
    ours, theirs = [90.0, 110.0, 95.0, 100.0, 100.0], [50.0, 51.0, 50.0, 49.0, 50.0]
    apart = np.log(ours) - np.log(theirs)
    widest = max(apart[:count].std(ddof=1) for count in (3, 4, 5))
    paired = speedup_interval(ours, theirs, rounds=(range(5), range(5)), pilot=3)
    assert paired.high == pytest.approx(np.exp(apart.mean() + 2.776445 * widest / 5**0.5), rel=1e-6)
    one, other = (max(np.log(side[:count]).std(ddof=1) for count in (3, 4, 5)) ** 2 / 5 for side in (ours, theirs))
    freedom = (one + other) ** 2 / (one**2 / 4 + other**2 / 4)
    half = t.ppf(0.975, freedom) * (one + other) ** 0.5
    welch = speedup_interval(ours, theirs, pilot=3)
    assert welch.low == pytest.approx(np.exp(apart.mean() - half))
    assert median_interval(ours, pilot=1) == median_interval(ours, pilot=2), "one launch has no deviation"


@pytest.mark.parametrize(
    ("ours", "theirs", "pairs"),
    [
        (range(3), range(3), 3),
        (range(6), range(3, 6), 3),  # half of the longer side
        (range(7), range(4, 7), 0),
        (range(3), range(6), 3),
        (range(3), range(7), 0),
        (range(4), range(1, 5), 3),
        (range(4), range(2, 6), 0),
        ((0, 1, 2, 2), range(4), 0),
        (range(4), (0, 1, 2, 2), 0),
    ],
)
def test_rounds_are_paired_from_three_and_from_half_of_the_launches_on(ours, theirs, pairs) -> None:
    sides = [[10.0 + place % 3 for place, _ in enumerate(side)] for side in (ours, theirs)]
    assert compare(*sides, rounds=(tuple(ours), tuple(theirs))).num_pairs == pairs


def test_a_verdict_is_as_sure_as_it_is_asked_to_be() -> None:
    ours, base = [104.0, 106.0, 101.0, 107.0], [100.0, 101.0, 99.0, 102.0]
    p_value = ttest_ind(np.log(ours), np.log(base), equal_var=False).pvalue
    assert 0.01 < p_value < 0.05
    assert compare(ours, base).verdict == "faster"
    assert compare(base, ours).verdict == "slower"
    assert compare(ours, base, confidence=0.99).verdict == "no difference shown"
    assert compare(ours, base, confidence=1 - 0.999 * p_value).verdict == "no difference shown"
    assert compare(ours, base, confidence=1 - 1.001 * p_value).verdict == "faster"
    assert compare(ours, base).launches == (4, 4)


def test_equal_launches_have_the_freedom_of_both_sides() -> None:
    assert speedup_interval([2.0] * 3, [1.0] * 4) == Interval(2.0, 2.0, pytest.approx(2.0))
    lone = speedup_interval([2.0, 2.1], [1.0, 1.0])  # only one side varies: Welch has its one degree of freedom
    half = 12.706205 * np.log([2.0, 2.1]).std(ddof=1) / 2**0.5
    assert lone.high == pytest.approx(np.exp(np.log([2.0, 2.1]).mean() + half), rel=1e-6)


def test_every_pass_adds_its_phase() -> None:
    passes = {"forward": 1.0, "compute": 3.0, "exchange": 6.0, "resident": 10.0, "copied": 15.0, "full": 21.0}
    wanted = {"forward": 1.0, "backward": 2.0, "aggregate": 3.0, "update": 4.0, "h2d": 5.0, "io": 6.0, "other": 0.0}
    assert phases_of({**passes, "clean": 21.0}) == wanted
    assert phases_of({**passes, "clean": 20.0}) == {**wanted, "io": 5.0}, "the clean step replaces the last pass"
    assert phases_of({**passes, "whole": 28.0, "clean": 28.0}) == {**wanted, "other": 7.0}
    shorter = phases_of({**passes, "exchange": 2.5, "clean": 21.0})
    assert (shorter["aggregate"], shorter["update"]) == (0.0, 7.0), "what was reached before stays"
    assert phases_of({"clean": 5.0}) == {**dict.fromkeys(wanted, 0.0), "other": 5.0}


def test_steps_of_unequal_noise_have_nearly_the_freedom_of_the_noisier(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([[(0.04, 7.0)], [(0.0001, 1000.0)]])
    monkeypatch.setattr(summary, "_side_error", lambda side, logs: next(errors))
    found = compare_steps([(100.0, [1.0] * 20)], [(100.0, [1.0] * 20)])
    assert found is not None
    assert found.ratio.high == pytest.approx(math.exp(2.3636 * 0.0401**0.5), rel=1e-3)  # of 7.03 degrees of freedom


def test_the_mean_of_two_launches_has_half_the_variance_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_step_error", lambda steps: (0.04, 7.0))
    found = summary._side_error([(100.0, [1.0] * 20)] * 2, np.log([100.0, 100.0]))
    assert found == [(pytest.approx(0.01), 7.0), (pytest.approx(0.01), 7.0)]


def test_steps_that_repeat_each_other_say_nothing_about_noise_at_longer_times() -> None:
    values = np.random.default_rng(3).normal(1.0, 0.1, 64)
    few, many = (summary._step_error(np.repeat(values, times)) for times in (2, 16))
    assert few == pytest.approx(many)
