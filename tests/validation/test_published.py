"""Predicted against published, as `paceline validate` prints it, within what is promised or reached."""

import pytest

from paceline.model.validation.report import LAWS, Row, failures, validate_shipped


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in validate_shipped()}


@pytest.mark.full
def test_no_situation_leaves_what_its_intervals_promise(rows):
    assert failures(list(rows.values())) == []


@pytest.mark.full
def test_every_situation_is_better_than_a_power_law_and_a_straight_line(rows):
    situations = [row for row in rows.values() if row.group == "situation"]
    assert len(situations) == 5
    for row in [*situations, rows["all origins"]]:
        assert row.mean_error < min(row.laws[law] for law in LAWS if law != "Amdahl"), row.name


@pytest.mark.full
def test_half_intervals_hold_about_half(rows):
    for row in rows.values():
        if row.group == "situation":
            assert 0.45 <= row.covered_50 <= 0.58, row.name
            assert 0.86 <= row.covered_90 <= 0.94, row.name
    assert 0.45 <= rows["all origins"].covered_50 <= 0.58


@pytest.mark.full
def test_largest_points_of_campaigns_never_seen(rows):
    constant = rows["all campaigns, batch constant"]
    assert constant.points >= 250
    assert constant.mean_error <= 0.05
    assert 0.88 <= constant.covered_90 <= 0.95
    fresh, known = rows["fresh campaigns"], rows["known campaigns"]
    assert fresh.points >= 30
    assert fresh.mean_error <= 0.035 < fresh.laws["power law"]
    assert known.points + fresh.points <= constant.points
    assert known.mean_error <= 0.05 < known.laws["power law"] / 2


@pytest.mark.full
def test_a_batch_that_changes_is_predicted_where_a_power_law_fails(rows):
    row = rows["all campaigns, batch changes"]
    assert row.mean_error <= 0.15 < row.laws["power law"] / 2
    assert row.covered_90 >= 0.85


@pytest.mark.full
def test_gpt_within_its_bounds(rows):
    assert rows["GPT, one host of A100"].mean_error <= 0.08
    assert rows["GPT, 64-512 A100"].mean_error <= 0.12


def test_a_situation_outside_its_bounds_fails():
    bad = Row("situation", "inside a host", 30, 0.1, 0.1, 0.0, 0.5, 0.8, 1.0, {}, 0.2, "")
    assert "80.0% of 30 points" in failures([bad])[0]
    few = Row("situation", "inside a host", 29, 0.1, 0.1, 0.0, 0.5, 0.8, 1.0, {}, 0.2, "")
    assert failures([few]) == []
