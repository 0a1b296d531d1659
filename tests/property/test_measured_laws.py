"""Laws of predictions from points, for awkward but legal points."""

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paceline.errors import Unsupported
from paceline.model.measured.extrapolate import extrapolate_series
from paceline.model.measured.points import series_of_rows
from paceline.model.measured.prior import shipped_population

TARGETS = (1, 16, 512, 10_000)
POINTS = st.lists(
    st.tuples(st.sampled_from((1, 2, 3, 4, 8, 16, 100, 10_000)), st.floats(-12, 12)), min_size=1, max_size=5
)
LINKS = st.sampled_from(("", "NVLink", "10GbE", "100Gb IB", "carrier pigeon"))


def rows_of(points, link="", per_host=8.0, spread=None, batch=None):
    return [
        {"network": "N", "framework": "F", "strategy": "", "device": "D", "link": link, "devices": float(devices),
         "samples_per_s": 10.0**rate, "devices_per_host": per_host, "batch_per_device": batch, "spread": spread}
        for devices, rate in points
    ]  # fmt: skip


def curve_of(rows, at=TARGETS, **more):
    """The one curve of these points; none where the points support none."""
    try:
        (curve,) = extrapolate_series(
            series_of_rows(rows, "points"), at, population=shipped_population(), force=True, **more
        )
    except Unsupported:
        assert len({row["devices"] for row in rows}) == 1
        return None
    return curve


def log_width(prediction, share="interval_90"):
    low, high = getattr(prediction.samples_per_s, share)
    return math.log(high / low)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(POINTS, LINKS, st.sampled_from((1.0, 8.0)), st.sampled_from((None, 1e-9, 0.5)))
@example([(1, 3.0)], "", 8.0, None)
@example([(1, 3.0), (1, 3.0), (2, 3.0), (4, 3.0)], "", 8.0, None)
@example([(1, 4.0), (2, 3.0), (4, 2.0), (8, 1.0)], "10GbE", 8.0, None)
@example([(1, -12.0), (2, 12.0)], "10GbE", 1.0, None)
@example([(1, 12.0), (2, -12.0), (4, 12.0)], "", 8.0, 0.5)
@example([(10_000, 3.0), (1, 0.0)], "100Gb IB", 8.0, None)
@example([(1, 0.0), (2, -3.0)], "10GbE", 1.0, 0.5)
@example([(1, 0.0), (2, 0.3), (3, 0.3), (4, 0.6), (8, 0.9)], "NVLink", 8.0, 1e-9)
def test_predictions_are_numbers_inside_their_intervals(points, link, per_host, spread):
    rows = rows_of(points, link, per_host, spread)
    curve = curve_of(rows)
    if curve is None:
        return
    for one in curve.predictions:
        for estimate in (one.step_s, one.samples_per_s):
            (low90, high90), (low50, high50) = estimate.interval_90, estimate.interval_50
            assert 0 < low90 <= low50 <= estimate.value <= high50 <= high90 < math.inf
        both = one.step_s.value * one.samples_per_s.value
        assert math.isclose(both, one.devices * one.batch_per_device, rel_tol=1e-9)
        assert math.isclose(sum(one.terms.values()), one.step_s.value, rel_tol=1e-6)
        assert all(0 <= seconds < math.inf for seconds in one.terms.values())
        assert 0 < one.efficiency < math.inf


@settings(max_examples=5, deadline=None, derandomize=True)
@given(POINTS, LINKS, st.randoms(use_true_random=False))
@example([(1, 3.0), (4, 3.4), (2, 3.2), (4, 3.5)], "10GbE", None)
def test_order_and_repetition_of_rows_mean_nothing(points, link, shuffler):
    rows = rows_of(points, link)
    other = rows[::-1] if shuffler is None else shuffler.sample(rows, len(rows))
    one, two, three = (curve_of(each, (64,)) for each in (rows, other, rows + rows))
    assert (one is None) == (two is None) == (three is None)
    assert one is None or one.predictions == two.predictions == three.predictions


@settings(max_examples=5, deadline=None, derandomize=True)
@given(POINTS, LINKS, st.sampled_from((1.0, 4.0, 8.0)))
@example([(1, 3.0), (2, 3.0), (4, 3.0)], "NVLink", 8.0)
@example([(1, 4.0), (2, 3.0), (4, 2.0)], "10GbE", 4.0)
@example([(1, 3.0), (2, 3.25), (4, 3.5), (8, 3.7)], "10GbE", 4.0)
def test_farther_is_never_surer_and_never_absurd(points, link, per_host):
    rows = rows_of(points, link, per_host)
    last = max(row["devices"] for row in rows)
    curve = curve_of(rows, [int(last * factor) for factor in (2, 4, 8, 16, 64)])
    if curve is None:
        return
    measured = np.median([row["samples_per_s"] for row in rows if row["devices"] == last])
    for near, far in zip(curve.predictions, curve.predictions[1:], strict=False):
        assert log_width(far) >= log_width(near) * (1 - 1e-9)
        assert log_width(far, "interval_50") >= log_width(near, "interval_50") * (1 - 1e-9)
    for one in curve.predictions:
        per_device = one.samples_per_s.value / one.devices
        assert per_device <= measured / last * (1 + 1e-9)


def test_a_global_batch_of_ten_thousand_devices_is_predicted():
    rows = [{**row, "batch_per_device": 512 / row["devices"]} for row in rows_of([(1, 2.0), (2, 2.25), (4, 2.5)])]
    curve = curve_of(rows, (8, 512, 10_000), global_batch=512)
    sizes = [log_width(one) for one in curve.predictions]
    assert sizes == sorted(sizes)
    assert all(math.isfinite(one.samples_per_s.value) for one in curve.predictions)


MEASURED = (
    {4: 400.0, 8: 420.0, 16: 425.0},
    {1: 100.0, 2: 190.0, 4: 360.0, 8: 680.0},
    {8: 800.0, 16: 1590.0, 32: 3150.0, 64: 3200.0},
    {1: 250.0, 4: 990.0, 8: 1800.0, 16: 3500.0},
)
MOST_MOVED = 25
"""Times as much as its point an answer at 8 times the largest count may move: published series reach 22."""


def answers(rates, at, **more):
    rows = [{**row, **more} for row in rows_of([(count, math.log10(rate)) for count, rate in rates.items()], "10GbE")]
    return [one.samples_per_s.value for one in curve_of(rows, at).predictions]


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.sampled_from(MEASURED), st.integers(0, 2), st.sampled_from((0.99, 1.005, 1.01)))
@example(MEASURED[0], 2, 1.01)
@example(MEASURED[2], 3, 1.01)
@example(MEASURED[3], 1, 0.99)
def test_one_percent_of_a_point_moves_an_answer_by_a_bounded_factor(rates, place, factor):
    counts = [int(max(rates)) * times for times in (2, 8)]
    moved = {count: rate * (factor if at == place else 1) for at, (count, rate) in enumerate(rates.items())}
    for one, other in zip(answers(rates, counts), answers(moved, counts), strict=True):
        assert abs(math.log(other / one)) <= MOST_MOVED * abs(math.log(factor))


def test_points_that_gained_nothing_are_no_reason_to_gain():
    (more,) = answers(MEASURED[0], (32,))
    assert 400 < more < 1.15 * 425
    (farther,) = answers(MEASURED[2], (128,))
    assert farther < 1.15 * 3200


@settings(max_examples=4, deadline=None, derandomize=True)
@given(st.sampled_from(MEASURED), st.sampled_from((1e-3, 60.0, 1e6)))
def test_the_unit_of_throughput_means_nothing_where_no_network_is_named(rates, unit):
    """A rate that a device may have tells how fast it is; of a network without a name, no rate does."""
    scaled = {count: rate * unit for count, rate in rates.items()}
    for one, other in zip(answers(rates, (16, 64), network=""), answers(scaled, (16, 64), network=""), strict=True):
        assert math.isclose(other, one * unit, rel_tol=1e-6)


def test_other_series_of_a_file_mean_nothing():
    each = [
        {**row, "framework": f"F{place}"}
        for place, rates in enumerate(MEASURED)
        for row in rows_of([(count, math.log10(rate)) for count, rate in rates.items()], "10GbE")
    ]
    together = extrapolate_series(
        series_of_rows(each, "points"), (32, 64), population=shipped_population(), force=True
    )  # fmt: skip
    for rates, curve in zip(MEASURED, together, strict=True):
        alone = answers(rates, (32, 64), framework=curve.label.split(", ")[1])
        for value, one in zip(alone, curve.predictions, strict=True):
            assert math.isclose(value, one.samples_per_s.value, rel_tol=1e-9)
