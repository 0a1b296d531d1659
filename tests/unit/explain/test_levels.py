"""Levels of a series."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.explain.levels import NOISES, NOTICEABLE, SHORTEST, levels_of


@pytest.mark.parametrize("seed", range(5))
def test_a_series_is_divided_where_its_level_changes(seed: int) -> None:
    values = 1 + 0.02 * np.random.default_rng(seed).standard_normal(120)
    assert [(begin, end) for begin, end, _ in levels_of(values, 1.0)] == [(0, 120)]
    values[70:] += 0.3
    (first, second) = levels_of(values, 1.0)
    assert abs(first[1] - 70) <= 2
    assert (first[0], second[0], second[1]) == (0, first[1], 120)
    assert second[2] - first[2] == pytest.approx(0.3, abs=0.05)


def test_what_is_short_or_not_noticeable_is_no_level() -> None:
    values = np.ones(60)
    values[20 : 20 + SHORTEST // 2 - 2] = 2
    assert len(levels_of(values, 1.0)) == 1
    values = np.ones(60)
    values[30:] += 0.9 * NOTICEABLE
    assert len(levels_of(values, 1.0)) == 1
    values[30:] += 0.2 * NOTICEABLE
    assert len(levels_of(values, 1.0)) == 2
    assert NOISES > 3


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_levels_do_not_depend_on_the_unit(unit: float) -> None:
    values = np.ones(60)
    values[30:45] += 0.05
    expected = [(0, 30, unit), (30, 45, pytest.approx(1.05 * unit)), (45, 60, unit)]
    assert levels_of(unit * values, unit) == expected


def test_steps_of_a_noisy_series_are_judged_by_its_noise() -> None:
    """Steps alternate by 0.2: the noise is 1.4826 * 0.2 / sqrt(2) = 0.21, and a change counts from twice of it on."""
    values = np.ones(64)
    values[::2] += 0.2
    values[32:] += 0.39
    assert len(levels_of(values, 1.0)) == 1
    values[32:] += 0.06
    assert [(begin, end) for begin, end, _ in levels_of(values, 1.0)] == [(0, 32), (32, 64)]


def test_a_small_change_beside_a_large_one_divides_nothing() -> None:
    values = np.repeat([1.0, 1.01, 1.5], 60) + 1e-4 * np.random.default_rng(1).standard_normal(180)
    assert [(begin, end) for begin, end, _ in levels_of(values, 1.0)] == [(0, 120), (120, 180)]
