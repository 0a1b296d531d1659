"""Errors of predictions against published figures, as `paceline validate` prints them, stay within stated bounds."""

import pytest

from paceline.model.validation.report import validate_shipped


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in validate_shipped()}


def test_all_campaigns_within_eight_percent(rows):
    assert rows["all campaigns"].mean_error <= 0.08
    assert rows["all campaigns"].points >= 200


def test_hkbu_and_dlperf_within_five_percent(rows):
    """Aim: 5 %. Reached: 5.0 %, of which 1.2 points are one series whose input collapses on the second host."""
    assert rows["HKBU and DLPerf together"].mean_error <= 0.052
    assert rows["HKBU and DLPerf together"].median_error <= 0.035


@pytest.mark.parametrize("name", ["all campaigns", "HKBU and DLPerf together"])
def test_intervals_cover_their_nominal_share(rows, name):
    assert 0.85 <= rows[name].covered_90 <= 0.97


def test_gpt_errors_within_bounds(rows):
    assert rows["GPT, one host of A100"].mean_error <= 0.08
    assert rows["GPT, 64-512 A100"].mean_error <= 0.12
