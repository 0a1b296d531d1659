"""Parts of predictions from measured points, each against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import Unsupported
from paceline.model.measured import curve
from paceline.model.measured.discrepancy import PRIOR, Doubt, _log_density, _table, interval, scale_of
from paceline.model.measured.extrapolate import _candidates, _terms, extrapolate_series, measure_next
from paceline.model.measured.fit import NOISE, NOISES, _resampled, draw, log_evidence, maximise, pack
from paceline.model.measured.forecast import _weights, forecast, posteriors
from paceline.model.measured.forms import (
    WEIGHTS,
    amdahl,
    closed_forms,
    least_slope,
    power_law,
    situation_of,
    step_parts,
    straight_line,
)
from paceline.model.measured.points import Series, read_points, series_of_rows
from paceline.model.measured.prior import prior_of, shipped_population
from paceline.model.validation.campaigns import published_series

RATES = {1: 100.0, 2: 160.0, 4: 240.0}


def series(rates=RATES, batch=64.0, link="10GbE", per_host=8.0, spread=None, **batches):
    rows = [
        {"network": "N", "framework": "F", "strategy": "", "device": "D", "link": link, "devices": float(count),
         "samples_per_s": rate, "devices_per_host": per_host, "spread": spread,
         "batch_per_device": batches.get(f"at_{count}", batch)}
        for count, rate in rates.items()
    ]  # fmt: skip
    (found,) = series_of_rows(rows, "points")
    return found


def curve_of(compute=2.0, fixed=0.1, local=0.2, growth=0.5, network=0.3, crossing=2.0, jitter=0.01, hosts=0.05):
    return np.array([np.log(compute), np.log(fixed), np.log(local), growth, np.log(network), crossing,
                     np.log(jitter), np.log(hosts)])  # fmt: skip


def at(devices, hosts, overlap, u=None):
    parts = curve.terms(curve_of() if u is None else u, np.array([devices]), np.array([hosts]), np.array([overlap]))
    return {name: float(value[0]) for name, value in parts.items()}


def test_one_device_computes_and_nothing_else():
    assert at(1.0, 1.0, 0.0) == {"compute": 2.0, "fixed": 0, "aggregate": 0, "slowdown": 0, "waiting": 0}


def test_terms_inside_a_host_by_hand():
    found = at(16.0, 1.0, 0.0)  # 16 devices inside: (16/4)^0.5 = 2 times the cost of four
    assert found["fixed"] == pytest.approx(0.2)
    assert found["aggregate"] == pytest.approx(2 * (2 * 15 / 16 * 0.2 * 2))
    assert found["waiting"] == pytest.approx(2 * 0.01 * (2 * np.log(16)) ** 0.5)
    assert found["slowdown"] == 0


def test_terms_between_hosts_by_hand():
    found = at(16.0, 4.0, 0.0)  # four hosts: (4/2)^2 = 4 times the cost of two
    total = 2 * 15 / 16 * 0.3 * 4
    assert found["aggregate"] == pytest.approx(2 * (2 * 3 / 4 * 0.2 + total + 3 * 0.05))
    hidden = at(16.0, 4.0, 1.0)
    rest = 0.1 * (np.log1p(np.exp((total - 0.6) / 0.1)) - np.log1p(np.exp(-6)))
    assert hidden["slowdown"] == pytest.approx(2 * 0.1 * total)
    assert hidden["aggregate"] == pytest.approx(2 * (2 * 3 / 4 * 0.2 + 0.9 * rest + 3 * 0.05))
    whole = curve.seconds(curve_of(), np.array([16.0]), np.array([4.0]), np.array([1.0]))
    assert whole[0] == pytest.approx(sum(hidden.values()))


@pytest.mark.parametrize("overlap", [0.0, 1.0])
@pytest.mark.parametrize(("devices", "hosts"), [(1.0, 1.0), (3.0, 1.0), (16.0, 2.0), (64.0, 16.0)])
def test_slopes_are_those_of_small_steps(devices, hosts, overlap):
    u, more = curve_of(), 1e-6
    places = (np.array([devices]), np.array([hosts]), np.array([overlap]))
    at_places = curve.Places.of(*places[:2])
    logs, slope = curve.log_seconds_and_slope(u, at_places, places[2])
    assert logs[0] == pytest.approx(np.log(sum(at(devices, hosts, overlap).values())))
    for place in range(len(u)):
        away = np.zeros(len(u))
        away[place] = more
        high, low = (np.log(curve.seconds(u + sign * away, *places))[0] for sign in (1, -1))
        assert slope[0, place] == pytest.approx((high - low) / (2 * more), abs=1e-7)
        one, other = (curve.log_seconds_and_slope(u + sign * away, at_places, places[2])[1][0] for sign in (1, -1))
        bend = curve.bend(u, at_places, places[2], np.array([3.0]))
        assert bend[place] == pytest.approx(3 * (one - other) / (2 * more), abs=1e-6)


def test_draws_take_as_long_as_the_curve_says():
    rng, devices, hosts = np.random.default_rng(0), np.array([1.0, 8.0, 64.0]), np.array([1.0, 1.0, 8.0])
    draws = curve_of() + 0.1 * rng.standard_normal((5, len(curve_of())))
    for overlapped in (False, True):
        expected = curve.seconds(draws, devices, hosts, np.array([float(overlapped)]))
        assert (expected == curve.seconds_of_draws(draws, devices, hosts, overlapped).T).all()
        inside = curve.seconds(draws, devices[:2], hosts[:2], np.array([float(overlapped)]))
        assert (inside == curve.seconds_of_draws(draws, devices[:2], hosts[:2], overlapped).T).all()


def test_forms_through_the_last_two_points():
    points = series()
    assert points.log_seconds == pytest.approx(np.log([0.01, 0.0125, 1 / 60]))
    assert np.exp(power_law(points, 8)) == pytest.approx(1 / 60 * (1 / 60 / 0.0125))
    assert np.exp(straight_line(points, 8)) == pytest.approx(8 / (240 + 40 * 4))
    falling = series({1: 100.0, 2: 90.0})
    assert np.exp(straight_line(falling, 100)) == pytest.approx(100 / 4.5), "a twentieth of the last stays"
    alone = series({2: 100.0})
    assert np.exp(straight_line(alone, 8)) == pytest.approx(0.02)
    assert np.exp(power_law(alone, 8)) == pytest.approx(0.02)


def test_amdahl_through_points_that_obey_it():
    obeying = series({n: 1 / (0.002 + 0.008 / n) for n in (1, 2, 4)})
    assert np.exp(amdahl(obeying, 16)) == pytest.approx(16 * (0.002 + 0.008 / 16))


def test_what_is_full_saturates():
    # A server of 300 samples/s: T^4 = T0^4 + (P/300)^4, met exactly by the last point.
    rates = {n: n / (0.01**4 + (n / 300) ** 4) ** 0.25 for n in (1, 4)}
    points = series(rates)
    saturating = closed_forms(points, 8.0, 64.0, 3)[2]
    grown = 1 - (0.01**4 + (1 / 300) ** 4) / (0.01**4 + (4 / 300) ** 4)
    wanted = (4 / rates[4]) * (1 + grown * (2**4 - 1)) ** 0.25
    assert np.exp(saturating) == pytest.approx(wanted)
    level = series({1: 100.0, 4: 400.0})
    assert closed_forms(level, 8.0, 64.0, 3)[2] == pytest.approx(np.log(0.01)), "what lost nothing loses nothing"


@pytest.mark.parametrize("tree", [False, True])
def test_parts_of_a_step_are_found_from_points_that_have_them(tree):
    def seconds(count, batch):
        return 1e-3 + (0.064 + 0.032 * (np.log2(count) if tree else 2 * (count - 1) / count)) / batch

    batches = {count: 512 / count for count in (1, 2, 4, 8, 16)}
    rates = {count: count / seconds(count, batch) for count, batch in batches.items()}
    points = series(rates, **{f"at_{count}": batch for count, batch in batches.items()})
    compute, once, aggregate = step_parts(points, 32, 16.0, tree=tree)
    assert compute + once + aggregate == pytest.approx(seconds(32, 16.0), rel=0.03)
    assert 0.8e-3 < compute < 1.2e-3
    if tree:  # 2 (P-1) / P of a ring hardly changes, so that only the sum is known there
        assert aggregate == pytest.approx(0.032 * 5 / 16, rel=0.15)
    forms = closed_forms(points, 32.0, 16.0, 4)
    assert forms[4 if tree else 3] == pytest.approx(np.log(compute + once + aggregate))
    assert (forms[0], forms[2]) == (points.log_seconds[-1], points.log_seconds[-1])
    assert forms[1] == power_law(points, 32.0)


def test_situations():
    points = series({1: 100.0, 2: 190.0, 4: 360.0}, per_host=4)
    assert situation_of(points, 4, 64.0) == 0
    assert situation_of(points, 8, 64.0) == 1
    crossed = series({1: 100.0, 4: 360.0, 8: 600.0}, per_host=4)
    assert situation_of(crossed, 16, 64.0) == 2
    assert situation_of(series({1: 100.0, 8: 600.0, 16: 1100.0, 32: 2000.0}, per_host=4), 64, 64.0) == 3
    assert situation_of(points, 8, 64.0 * 1.051) == 0 + 1
    assert situation_of(points, 8, 64.0 * 1.06) == situation_of(points, 8, 60.0) == 4
    alone = replace(series({1: 100.0}), siblings=(points,))
    assert situation_of(alone, 1, 64.0) == 4


@pytest.mark.parametrize(
    ("rates", "count", "situation", "least"),
    [
        ({1: 100.0, 2: 100 * 2**0.5, 4: 200.0}, 16, 1, 0.25),  # half of each doubling is lost, and 0.5 squared
        ({1: 100.0, 2: 90.0, 4: 70.0}, 16, 1, 1.0),
        ({1: 10.0, 2: 100.0, 4: 100.0, 8: 100.0}, 16, 1, 1.0),  # the last three points alone
        ({1: 100.0, 2: 220.0, 4: 480.0}, 16, 1, 0.0),
        ({1: 100.0, 2: 90.0, 4: 70.0}, 8, 0, 1.0),
        ({1: 100.0, 2: 60.0, 4: 70.0}, 8, 0, (1 - np.log2(7 / 6)) ** 2),  # gains a sixth at its last step
        ({1: 100.0, 2: 100.0}, 8, 0, 1.0),  # VGG-16 on RTX 3090: 325, 325, 264, 254
        ({1: 100.0, 2: 100 * 2**0.5}, 8, 0, 0.5**4),  # one device aggregates nothing: that is paid once
        ({1: 100.0, 2: 100.0}, 16, 1, 0.0),  # BERT-Large of HKBU: 49, 49, 91 on 1, 4, 8 devices
        ({2: 100.0, 4: 300.0, 8: 290.0}, 16, 1, (np.log2(400 / 290) / 2) ** 2),  # falls at its last step alone
        ({6: 600.0, 8: 600.0}, 16, 1, np.log2(4 / 3) ** 2),  # less than a doubling tells as much less
        ({8: 100.0, 16: 50.0}, 32, 2, 0.0),  # crossing hosts costs once: inside and between are not compared
        ({8: 100.0, 16: 50.0, 32: 45.0}, 64, 3, 1.0),
        ({8: 100.0, 16: 50.0, 32: 60.0}, 64, 3, (1 - np.log2(1.2)) ** 2),
        ({4: 400.0, 8: 420.0, 16: 425.0}, 32, 2, (1 - np.log2(1.05)) ** 2),  # full on both sides of the crossing
        ({1: 49.0, 8: 53.0, 16: 56.0}, 32, 2, 0.0),  # entered a regime twice: BERT-Large over 100 GbE went on to 103
    ],
)
def test_points_that_gain_nothing_leave_little_possible(rates, count, situation, least):
    points = series(rates)
    assert situation_of(points, count, 64.0) == situation
    assert least_slope(points, count, situation) == pytest.approx(least)


def predicted(points, at, **more):
    (found,) = extrapolate_series([points], [at], population=shipped_population(), **more)
    return found.predictions[0].samples_per_s


def test_a_total_that_fell_does_not_rise_on_more_devices_or_hosts():
    falling = {1: 100.0, 2: 90.0, 4: 70.0, 8: 50.0}
    assert predicted(series(falling), 16).value <= 50.001
    assert predicted(series(falling), 64).value <= 50.001
    assert predicted(series(falling, per_host=64.0), 16).value <= 50
    strong = {8: 1000.0, 16: 1500.0, 32: 1400.0, 64: 1000.0}
    split = series(strong, at_8=32.0, at_16=16.0, at_32=8.0, at_64=4.0)
    assert predicted(split, 128).value <= 1000


def test_a_series_that_saturated_or_fell_does_not_leap():
    assert predicted(series({4: 400.0, 8: 420.0, 16: 425.0}), 32).value < 500
    unknown = predicted(series({4: 60.0, 8: 50.0}, link="", per_host=4.0), 16)
    assert 50 < unknown.value < 75, "a slow link and a full server are as probable"
    assert unknown.interval_90[0] < 50
    assert predicted(series({8: 800.0, 16: 1590.0, 32: 3150.0, 64: 3200.0}), 128).value < 3500
    good = predicted(series({8: 800.0, 16: 1590.0, 32: 3150.0}), 64)
    assert 5900 < good.value < 6300


def test_no_prediction_is_faster_per_device_than_the_best_point():
    rates = {1: 100.0, 2: 199.0, 4: 397.0, 8: 790.0, 16: 1570.0, 32: 3130.0}
    assert predicted(series(rates, link=""), 512).interval_90[1] < 1.06 * 512 * 100


def test_between_measured_counts_the_answer_lies_between_them():
    inside = predicted(series({1: 100.0, 2: 190.0, 8: 100.0}), 4)
    assert 50 <= inside.value <= 380
    assert inside.interval_90[1] < 410
    measured = predicted(series({4: 400.0, 8: 420.0, 16: 425.0}), 16)
    assert measured.value == pytest.approx(425, rel=0.01)
    assert measured.interval_90[0] > 400


def test_fewer_devices_than_measured_are_doubted_by_distance_and_do_no_more_in_total():
    """Of published first points 49 % lay in the 90 % interval, while it did not grow with distance."""
    points = series({8: 21_000.0, 32: 83_000.0, 128: 325_000.0}, link="")
    (found,) = extrapolate_series([replace(points, network="ResNet-50")], [1, 2, 4, 8], population=shipped_population())
    rates = [one.samples_per_s for one in found.predictions]
    widths = [np.log(one.interval_90[1] / one.interval_90[0]) for one in rates]
    assert widths == sorted(widths, reverse=True)
    assert [one.value for one in rates] == sorted(one.value for one in rates)
    assert rates[0].interval_90[0] < 21_000 / 8 < rates[0].value < 21_000
    assert found.predictions[-1].efficiency == pytest.approx(1.0)
    assert "efficiency is over that of 8 devices, per device" in found.basis
    with pytest.raises(Unsupported, match="the smallest measured count is 32 times 1 device,") as refusal:
        extrapolate_series([series({32: 100.0, 64: 190.0})], [1], population=shipped_population())
    assert "measure a smaller count" in refusal.value.hint


def test_across_hosts_a_device_is_no_faster_than_in_a_full_host():
    slower = series({1: 1000.0, 2: 900.0}, link="")
    (found,) = extrapolate_series([slower], [8, 16], population=shipped_population())
    inside, across = (one.samples_per_s.value / one.devices for one in found.predictions)
    assert across <= inside


def test_a_last_point_that_is_barely_faster_per_device_moves_a_prediction_barely():
    answers = [predicted(series({1: 100.0, 4: 380.0, 8: 250.0, 16: 500.0 + off}, per_host=4.0), 64).value
               for off in (-0.5, 0.0, 0.5)]  # fmt: skip
    assert answers == pytest.approx([answers[0]] * 3, rel=0.02)


def test_a_file_of_several_series_answers_each_as_if_it_were_alone():
    one, other = series({1: 100.0, 2: 195.0, 4: 380.0}), series({1: 10.0, 2: 11.0, 4: 9.0, 8: 3.0})
    alone, beside = (
        extrapolate_series(some, [32], population=shipped_population())[0] for some in ([one], [one, other])
    )
    assert alone.predictions == beside.predictions


@pytest.mark.parametrize("link", ["", "10GbE", "NVLink"])
def test_a_rate_of_nobody_knows_what_scales_the_answer_alone(link):
    points = [replace(series({n: unit * 100.0 * n**0.95 for n in (1, 2, 4, 8)}, link=link), network="")
              for unit in (1.0, 1024.0)]  # fmt: skip
    samples, tokens = (predicted(one, 16) for one in points)
    assert tokens.value == pytest.approx(1024 * samples.value, rel=1e-5)
    assert tokens.interval_90 == pytest.approx([1024 * bound for bound in samples.interval_90], rel=1e-5)


def test_a_batch_far_from_the_measured_ones_is_a_distance():
    points = series({1: 100.0, 2: 190.0, 4: 340.0})
    near, far = (predicted(points, 4, global_batch=batch).half_width for batch in (512, 4096))
    assert far > 1.5 * near
    with pytest.raises(Unsupported, match=r"a batch of 32768 per device is 512 times away") as refusal:
        predicted(points, 4, global_batch=4 * 32768)
    assert "measure 1 device at a batch of 32768 per device" in refusal.value.hint
    doubt = forecast(posteriors([points], shipped_population())[0], None, 8.0, 8.0).doubt
    assert doubt.doublings == pytest.approx(3), "64 to 8 is farther than 4 to 8 devices"
    other = replace(points, siblings=(series({1: 80.0}, batch=16.0),))
    assert forecast(posteriors([other], shipped_population())[0], None, 8.0, 8.0).doubt.doublings == pytest.approx(1)


def test_the_spread_of_a_prediction_is_that_of_the_counts_beside_it():
    points = replace(series({1: 100.0, 2: 190.0, 4: 360.0}), spread=np.array([0.01, 0.3, 0.02]))
    posterior = posteriors([points], shipped_population())[0]
    spreads = [forecast(posterior, None, count, 64.0).doubt.spread for count in (1.0, 2.0, 3.0, 4.0, 32.0)]
    assert spreads == pytest.approx([0.01, 0.3, 0.16, 0.02, 0.02])


def test_the_first_crossing_is_no_surer_than_the_full_host():
    lost = series({1: 100.0, 2: 190.0, 4: 340.0})
    inside, across = (
        found.samples_per_s.interval_90
        for found in extrapolate_series([lost], [8, 16], population=shipped_population())[0].predictions
    )
    assert np.log(across[1] / across[0]) >= np.log(inside[1] / inside[0]) * (1 - 1e-9)
    posterior = posteriors([lost], shipped_population())[0]
    assert repr(forecast(posterior, None, 16.0, 64.0).doubt.inside) == repr(forecast(posterior, None, 8.0, 64.0).doubt)
    full = posteriors([series({1: 100.0, 4: 340.0, 8: 640.0})], shipped_population())[0]
    assert forecast(full, None, 16.0, 64.0).doubt.inside is None
    wide = replace(DOUBT, inside=replace(DOUBT, situation=0, loss=3.0))
    for share in (0.5, 0.9):
        assert interval(PRIOR, wide, share) == interval(PRIOR, wide.inside, share)
        assert interval(PRIOR, replace(wide, loss=30.0), share) == interval(PRIOR, replace(DOUBT, loss=30.0), share)


def test_where_nothing_smaller_helps_the_count_itself_is_to_be_measured():
    (found,) = extrapolate_series([series()], [4], population=shipped_population())
    assert found.advice == "every asked count was measured"
    (found,) = extrapolate_series([series({1: 100.0, 2: 190.0})], [3], population=shipped_population())
    assert found.advice == "no smaller measurement narrows the interval: measure the asked count itself"


DOUBT = Doubt(situation=1, doublings=3, posterior=0.05, disagreement=0.04, hindcast=0.06, spread=0.02, loss=0.5)


def test_the_scale_of_a_doubt_by_hand():
    # distance 0.012, noise 0.007, blind 2, posterior 0.45, hindcast 0.55, disagreement 0.6, loss 0.15
    known = 0.007**2 + 0.02**2 + 0.036**2 + 0.0225**2 + 0.033**2 + 0.024**2 + 0.075**2 * 3
    assert scale_of(PRIOR, DOUBT) == pytest.approx(known**0.5)
    blind = 0.007**2 + 0.02**2 + 0.072**2 + 0.0225**2 + 0.024**2 + 0.075**2 * 3
    assert scale_of(PRIOR, replace(DOUBT, hindcast=float("nan"))) == pytest.approx(blind**0.5)
    facts = PRIOR.copy()
    facts[1, 7] = 0.5  # noise and spread are of the points, whatever the labels state
    stated = 0.007**2 + 0.02**2 + 0.25 * (0.036**2 + 0.0225**2 + 0.033**2 + 0.024**2 + 0.075**2 * 3)
    assert scale_of(facts, replace(DOUBT, stated=True)) == pytest.approx(stated**0.5)
    assert scale_of(facts, DOUBT) == pytest.approx(known**0.5)


def test_bounds_have_other_tails_on_both_sides():
    coefficients = PRIOR.copy()
    coefficients[1:3, 8:] = (
        1.0,
        1.25,
    )  # two degrees of freedom on the slow side: t of 0.95 is 2.919986, of 0.75 0.816497
    known = replace(DOUBT, situation=2)
    for doubt, t95, t75 in ((known, 2.353363, 0.764892), (DOUBT, 1.660234, 0.676951)):  # three degrees, and a hundred
        scale = scale_of(coefficients, doubt)
        wide, narrow = (interval(coefficients, doubt, share) for share in (0.9, 0.5))
        assert wide == (pytest.approx(-scale / 1.25 * t95), pytest.approx(scale * 1.25 * 2.919986))
        assert narrow == (pytest.approx(-scale / 1.25 * t75), pytest.approx(scale * 1.25 * 0.816497))


@pytest.mark.parametrize(("sign", "freedom", "factor"), [(1, 2.0, 1.25), (-1, 3.0, 0.8)])
def test_the_density_of_an_error_is_students(sign, freedom, factor):
    from scipy.stats import t

    coefficients = PRIOR[1].copy()
    coefficients[8:] = [1.0, 1.25]
    errors = sign * np.array([0.01, 0.2])
    scale = scale_of(PRIOR, DOUBT) * factor
    found = _log_density(coefficients, 3.0, _table([DOUBT, DOUBT]), errors)
    assert found == pytest.approx(t(freedom, scale=scale).logpdf(errors))


def test_a_label_with_a_rate_and_known_parameters_is_a_stated_one():
    rates = {1: 300.0, 2: 560.0, 4: 1000.0}
    stated = replace(series(rates, link="25 GbE"), network="ResNet-50")
    for points, count, expected in (
        (stated, 16, True),
        (stated, 8, False),
        (replace(stated, link="fast"), 16, False),
        (replace(stated, network="mine"), 16, False),
    ):
        posterior = posteriors([points], shipped_population())[0]
        assert forecast(posterior, None, float(count), 64.0).doubt.stated == expected


def test_draws_that_are_impossible_do_not_widen_the_posterior():
    flat = series({4: 400.0, 8: 780.0, 16: 800.0}, link="10 GbE")
    posterior = posteriors([flat], shipped_population())[0]
    made = forecast(posterior, None, 32.0, 64.0)
    drawn = posterior.log_seconds(32.0)
    low, high = flat.log_seconds[-1], flat.log_seconds[-1] + np.log(2)
    assert min(values.min() for values in drawn) < low, "or nothing is shown"
    assert made.doubt.posterior < min(float(values.std()) for values in drawn)
    assert made.doubt.posterior <= (high - low) / 2


def test_weights_of_the_forms():
    none = np.zeros(7)
    assert _weights(WEIGHTS[0], 0.25, 0, none) == pytest.approx(np.array([0.375, 0.125, 0.5, 0, 0, 0, 0]))
    assert _weights(WEIGHTS[3], 0.25, 3, none)[4] == 0, "saturation needs a hindcast"
    missed = np.array([0.3, 0.1, 0.2, 0.1, 0.1, 9.0, 9.0])
    raw = np.array([0.75 * 0.75 * np.exp(-2), 0.75 * 0.25, 0.1 * np.exp(-1), 0.15, 0.1, 0, 0])
    assert _weights(WEIGHTS[3], 0.25, 3, missed) == pytest.approx(raw / raw.sum())
    assert _weights(WEIGHTS[3], 0.25, 3, -missed) == pytest.approx(raw / raw.sum())
    assert _weights(WEIGHTS[0], 0.25, 0, none, between=True) == pytest.approx(np.array([0.75, 0.25, 0, 0, 0, 0, 0]))
    assert _weights(WEIGHTS[5], 0.25, 5, none, between=True)[3] > 0, (
        "fewer devices than measured are not between two counts"
    )
    assert _weights(WEIGHTS[4], 0.25, 4, none) == pytest.approx(np.array([0, 0, 0, 0.2, 0, 0.5, 0.3]))


def test_the_trend_of_the_points_counts_as_much_as_a_curve_that_rests_on_words(tmp_path):
    head = "devices,samples_per_s,devices_per_host,network,device,link,precision,batch_per_device\n"
    labels = {"words": "ResNet-50,V100,fast network,fp16,64", "figures": "ResNet-50,V100,10 GbE,fp16,64"}
    weights = {}
    for name, text in labels.items():
        (path := tmp_path / f"{name}.csv").write_text(head + "".join(f"{n},{100 * n},4,{text}\n" for n in (1, 2, 4)))
        (fit,) = posteriors(read_points(path), shipped_population())
        weights[name] = forecast(fit, None, 8, 64).weights
    assert weights["words"][3] == pytest.approx(0.5)
    assert weights["figures"][3] == pytest.approx(0.3)


def test_terms_sum_to_the_step_and_compute_never_exceeds_it():
    parts = {"compute": 3.0, "fixed": 1.0, "aggregate": 2.0, "slowdown": 0.0, "waiting": 1.0}
    found = _terms(parts, 5.0, 2.0)
    assert (found["forward"], found["backward"]) == (pytest.approx(2.0), pytest.approx(4.0))
    assert (found["fixed"], found["aggregate"], found["waiting"]) == (1.0, 2.0, 1.0)
    all_compute = _terms({"compute": 3.0, "fixed": 0.0}, 5.0, 2.0)
    assert all_compute["forward"] + all_compute["backward"] == pytest.approx(10.0)
    assert sum(all_compute.values()) == pytest.approx(10.0)
    too_much = _terms({**parts, "compute": 9.0}, 5.0, 2.0)
    assert (too_much["forward"] + too_much["backward"], too_much["aggregate"]) == (pytest.approx(10.0), 0.0)


def test_indices_are_drawn_evenly_in_proportion_to_their_weights():
    assert _resampled(np.log([1.0, 3.0]), 8).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    assert _resampled(np.log([3.0, 1.0]) + 900, 4).tolist() == [0, 0, 0, 1]


def test_series_side_by_side_have_no_weight_where_they_have_no_point():
    packed = pack([series(), series({1: 50.0, 2: 60.0}, spread=3.0)], [0.0, 1.0])
    assert packed.weight[0] == pytest.approx(np.full(3, 1 / NOISE))
    assert packed.weight[1] == pytest.approx([1 / np.hypot(NOISE, 0.06), 1 / np.hypot(NOISE, 0.05), 0])
    assert packed.devices.tolist() == [[1, 2, 4], [1, 2, 1]]
    assert packed.log_seconds[1] == pytest.approx([np.log(1 / 50), np.log(2 / 60), 0])
    assert packed.overlap.tolist() == [[0], [1]]
    wide = pack([series({1: 50.0}, spread=40.0)], [0.0], [0.06])
    assert wide.weight[0] == pytest.approx([1 / np.hypot(0.06, 0.2)]), "a stated spread counts up to a fifth"


def planted(u, spread=None) -> tuple[Series, np.ndarray]:
    counts = (1, 2, 4, 8, 16, 32)
    rates = {n: n / float(curve.seconds(u, np.array([float(n)]), np.array([max(1.0, n / 8)]), np.zeros(1))[0])
             for n in counts}  # fmt: skip
    return series(rates, spread=spread), u


def test_the_most_probable_curve_is_where_the_loss_is_flat():
    u = curve_of(jitter=0.02)
    points, _ = planted(u)
    mean = (u + np.array([0.5, 0.3, -0.3, 0.1, 0.2, -0.2, 0.2, -0.1]))[None]
    precision = np.diag([1e-4, *[1 / 0.5**2] * 7])[None]
    packed = pack([points], [0.0])
    best, covariance = maximise(packed, mean, precision)

    def loss(v):
        fitted = np.log(curve.seconds(v, packed.devices[0], packed.hosts[0], np.zeros(1)))
        away = v - mean[0]
        return 0.5 * np.square((fitted - packed.log_seconds[0]) / NOISE).sum() + 0.5 * away @ precision[0] @ away

    steps = 1e-4 * np.eye(8)
    slopes = [(loss(best[0] + step) - loss(best[0] - step)) / 2e-4 for step in steps]
    assert np.abs(slopes) == pytest.approx(np.zeros(8), abs=0.05)
    assert loss(best[0]) < loss(mean[0])
    assert np.linalg.eigvalsh(covariance[0]).min() > 0
    sure = covariance[0] @ (np.linalg.inv(covariance[0]) - precision[0])
    assert 0 < np.trace(sure) <= 6, "six points tell at most six parameters"
    evidence = log_evidence(packed, (mean, precision), (best, covariance))
    by_hand = 0.5 * np.log(np.linalg.det(covariance[0])) - loss(best[0]) + 6 * np.log(1 / NOISE)
    assert evidence[0] == pytest.approx(by_hand, rel=1e-6)
    drawn = draw(packed, 0, (mean, precision), (best, covariance))
    assert drawn.shape == (500, 8)
    assert draw(packed, 0, (mean, precision), (best, covariance), share=0.1).shape == (50, 8)
    fitted = np.log(curve.seconds(drawn, packed.devices[0], packed.hosts[0], np.zeros(1)))
    assert np.abs(fitted - packed.log_seconds[0]).mean() < 2 * NOISE, "draws meet the measured points"
    assert drawn[:, 0].std() == pytest.approx(covariance[0, 0, 0] ** 0.5, rel=0.3)


def test_points_that_no_curve_meets_are_found_too_and_each_series_by_itself():
    """Where residuals are large, turns without the curve's bend creep: 4 % of published series were not found."""
    many = [one.first(one.num_points - 1) for one in published_series() if one.num_points > 2 and one.has_one_batch]
    packed = pack(many, [0.0] * len(many), [min(NOISES)] * len(many))
    mean, precision = prior_of(shipped_population(), many, [0.0] * len(many))
    best, covariance = maximise(packed, mean, precision)
    logs, slope = curve.log_seconds_and_slope(best, packed.places, packed.overlap)
    gradient = np.einsum("mni,mn->mi", slope, (logs - packed.log_seconds) * packed.weight**2)
    gradient += np.einsum("mij,mj->mi", precision, best - mean)
    step = np.einsum("mij,mj->mi", covariance, gradient)
    assert np.abs(step).max() < 1e-6
    alone = [
        maximise(packed.rows(np.arange(len(many)) == row), mean[[row]], precision[[row]])[0][0] for row in range(9)
    ]
    assert np.abs(alone - best[:9]).max() < 1e-9


def test_a_label_is_trusted_as_far_as_points_say_nothing():
    """One device exchanges nothing, so that its point speaks neither for overlap nor against it."""
    lone = series({1: 100.0})
    shares = [
        posteriors([replace(lone, how=how)], shipped_population())[0].overlapped for how in ("BSP", "NGC", "WFBP")
    ]
    assert shares == pytest.approx([0.2, 0.5, 0.8], abs=0.02)


def advice(points, at, **more):
    (found,) = extrapolate_series([points], [at], population=shipped_population(), force=True, **more)
    return {(one["kind"], one["value"]) for one in found.detail["measure_next"]}


def test_counts_up_to_the_supported_distance_and_the_first_crossing_are_advised():
    posterior = posteriors([series({1: 100.0, 4: 380.0}, per_host=8)], shipped_population())[0]
    population = replace(shipped_population(), supported=np.full(5, 2.0))
    made = forecast(posterior, None, 64.0, 64.0)
    assert _candidates(posterior, made, population) == [8, 16]
    assert _candidates(posterior, forecast(posterior, None, 16.0, 64.0), population) == [8]
    wide = replace(population, supported=np.full(5, 1.0))
    assert _candidates(posterior, made, wide) == [8, 16], "two hosts are the first crossing"
    crossed = posteriors([series({1: 100.0, 16: 1300.0}, per_host=8)], shipped_population())[0]
    assert _candidates(crossed, forecast(crossed, None, 128.0, 64.0), wide) == [32]
    three = posteriors([series({4: 380.0, 8: 700.0, 16: 1300.0}, per_host=4)], shipped_population())[0]
    assert _candidates(three, forecast(three, None, 128.0, 64.0), population) == [32, 64]


def test_a_batch_is_advised_where_only_the_batch_changes():
    kinds = {kind for kind, _ in advice(series({1: 100.0, 2: 190.0, 4: 370.0}), 8, global_batch=64)}
    assert "batch" in kinds
    assert "batch" not in {kind for kind, _ in advice(series({1: 100.0, 2: 190.0, 4: 370.0}), 8)}
    assert advice(series({1: 100.0, 2: 190.0, 4: 370.0}), 4) == set(), "what was measured needs no measurement"


def reaching(doublings):
    return replace(shipped_population(), supported=np.full(5, float(doublings)))


def test_the_distance_at_which_intervals_held_is_the_last_that_is_answered():
    points, population = series({25: 100.0, 50: 190.0, 100: 360.0}, per_host=1000.0), reaching(2)
    for count in (400, 402):  # a rounding of counts is no distance: up to 2.01 doublings
        (found,) = extrapolate_series([points], [count], population=population)
        assert found.predictions[0].supported
    with pytest.raises(Unsupported, match=r"refused: 404 devices are 4.04 times the largest measured count"):
        extrapolate_series([points], [404], population=population)
    (kept,) = extrapolate_series([points], [400, 404], population=population)
    assert [one.devices for one in kept.predictions] == [400]
    assert "refused: 404 devices" in kept.basis[0]
    assert "up to 4 times" in kept.basis[0]
    (forced,) = extrapolate_series([points], [400, 404], population=population, force=True)
    assert [one.supported for one in forced.predictions] == [True, False]
    assert "unsupported: 404 devices" in forced.basis[0]


def width(population, doubt):
    low, high = interval(population.discrepancy, doubt, 0.9)
    return np.exp(high) - np.exp(low)


def test_a_measurement_narrows_by_what_its_doubt_would_lose():
    population = reaching(3)
    points = series({1: 100.0, 2: 190.0, 4: 340.0, 8: 600.0}, per_host=1000.0, spread=20.0)
    posterior = posteriors([points], population)[0]
    made = forecast(posterior, None, 64.0, 64.0)
    found = {(one.kind, one.value): one.narrows for one in measure_next(posterior, made, population)}
    before = width(population, made.doubt)
    halved = 1 - width(population, replace(made.doubt, spread=made.doubt.spread / 2)) / before
    assert found["spread", 8.0] == pytest.approx(halved)
    flag = int(posterior.overlapped > 0.5)
    target, there = posterior.log_seconds(64.0)[flag], posterior.log_seconds(32.0)[flag]
    slope = np.cov(target, there)[0, 1] / (there.var(ddof=1) + NOISE**2)
    rest = (target.var(ddof=1) - slope * np.cov(target, there)[0, 1]) ** 0.5
    known = replace(
        made.doubt, doublings=1.0, posterior=min(rest, made.doubt.posterior), disagreement=made.doubt.disagreement / 3,
        hindcast=0.67 * scale_of(population.discrepancy, forecast(posterior, None, 32.0, 64.0).doubt),
    )  # fmt: skip
    assert found["devices", 32.0] == pytest.approx(1 - width(population, known) / before)
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert len(found) <= 3
    assert measure_next(posterior, forecast(posterior, None, 8.0, 64.0), population) == []


def test_a_count_on_several_hosts_makes_the_next_situation_known():
    population = reaching(3)
    points = series({1: 100.0, 2: 190.0, 4: 340.0})
    posterior = posteriors([points], population)[0]
    made = forecast(posterior, None, 32.0, 64.0)
    found = {(one.kind, one.value): one for one in measure_next(posterior, made, population)}
    two = found["devices", 16.0]
    assert two.what == "measure 16 devices (2 hosts)"
    flag = int(posterior.overlapped > 0.5)
    target, there = posterior.log_seconds(32.0)[flag], posterior.log_seconds(16.0)[flag]
    both = np.cov(target, there)
    rest = np.sqrt(both[0, 0] - both[0, 1] ** 2 / (both[1, 1] + NOISE**2))
    known = replace(
        made.doubt, situation=2, doublings=1.0, posterior=min(rest, made.doubt.posterior), inside=None,
        disagreement=made.doubt.disagreement / 3,
        hindcast=0.67 * scale_of(population.discrepancy, forecast(posterior, None, 16.0, 64.0).doubt),
    )  # fmt: skip
    before = width(population, made.doubt)
    assert two.narrows == pytest.approx(1 - width(population, known) / before)
    costs = np.column_stack([np.ones(len(target)), posterior.draws[flag][:, [4, 5]]])
    beside = target - costs @ np.linalg.lstsq(costs, target, rcond=None)[0]
    swept = replace(made.doubt, posterior=min(beside.std(), made.doubt.posterior))
    assert found["sweep", 2.0].narrows == pytest.approx(1 - width(population, swept) / before)


@pytest.mark.parametrize(("count", "hosts"), [(1, 1.0), (4, 1.0), (5, 2.0), (8, 2.0), (9, 3.0)])
def test_devices_need_as_many_hosts_as_hold_them(count: int, hosts: float) -> None:
    assert series(per_host=4.0).hosts_at(count) == hosts
    assert series(link="NVLink", per_host=4.0).hosts_at(count) == 1.0
