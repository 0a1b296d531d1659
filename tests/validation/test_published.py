"""Predicted against published, as `paceline validate` prints it, within what is promised or reached."""

import pytest

from paceline.model.validation.report import validate_shipped


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in validate_shipped()}


def test_all_campaigns_within_eight_percent(rows):
    assert rows["all campaigns"].mean_error <= 0.08
    assert rows["all campaigns"].points >= 200


def test_hkbu_and_dlperf_as_reached(rows):
    """The aim is 5 %; 5.0 % is reached, of which 1.2 is one series whose input collapses on the second host."""
    assert rows["HKBU and DLPerf together"].mean_error <= 0.052
    assert rows["HKBU and DLPerf together"].median_error <= 0.035


@pytest.mark.parametrize("name", ["all campaigns", "HKBU and DLPerf together"])
def test_intervals_hold_what_they_promise(rows, name):
    assert 0.85 <= rows[name].covered_90 <= 0.97


def test_gpt_within_its_bounds(rows):
    assert rows["GPT, one host of A100"].mean_error <= 0.08
    assert rows["GPT, 64-512 A100"].mean_error <= 0.12
