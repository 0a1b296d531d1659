import numpy as np
import pytest

from paceline.errors import Unsupported
from paceline.model.sweep import CollectiveFit, SweepPoint, _held_out, _solve, fit_sweep, seconds_at

N = np.array([1e6])


def sweep(startup, per_byte, *, root=0.0, ranks=2):
    sizes = 2.0 ** np.arange(10, 28)
    return [SweepPoint("all_reduce", ranks, size, startup + per_byte * size + root * np.sqrt(size)) for size in sizes]


def test_a_sweep_gives_back_its_constants():
    (fit,) = fit_sweep(sweep(1e-4, 1e-9))
    assert fit.startup == pytest.approx(1e-4, rel=1e-3)
    assert fit.per_byte == pytest.approx(1e-9, rel=1e-3)
    assert fit.spread < 1e-3


def test_the_data_choose_the_form():
    assert fit_sweep(sweep(1e-4, 1e-9, root=1e-6))[0].form == "saturating"
    flat = [SweepPoint("all_reduce", 2, n, max(1e-3, 1e-9 * n)) for n in 2.0 ** np.arange(10, 28)]
    assert fit_sweep(flat)[0].form == "largest"


def test_outside_the_sweep_it_is_less_sure():
    (fit,) = fit_sweep(sweep(1e-4, 1e-9))
    assert fit.uncertainty(1e12) > 4 * fit.uncertainty(1e6)


def test_other_counts_follow_the_measured_trend():
    fits = fit_sweep(sweep(1e-4, 1e-9) + sweep(2e-4, 1.5e-9, ranks=4))
    seconds, spread = seconds_at(fits, "all_reduce", 8, N)
    at_four, surer = seconds_at(fits, "all_reduce", 4, N)
    assert seconds[0] > at_four[0]
    assert spread > surer
    assert seconds_at(fits, "all_gather", 4, N) is None
    assert seconds_at(fits, "all_reduce", 1, N)[0][0] == 0.0


def test_two_sizes_are_not_a_sweep():
    with pytest.raises(Unsupported, match="at least 3"):
        fit_sweep(sweep(1e-4, 1e-9)[:2])


def made(form="additive", ranks=2, per_byte=1e-9, **changes):
    given = {"startup": 0.0, "root": 0.0, "spread": 0.1, "smallest": 1e3, "largest": 1e6, **changes}
    return CollectiveFit("all_reduce", ranks, form, per_byte=per_byte, **given)


def test_each_form_by_hand():
    sizes = np.array([0.0, 4.0, 100.0])
    assert made(startup=0.5, per_byte=2.0).seconds(sizes).tolist() == [0.0, 8.5, 200.5]
    assert made("largest", startup=10.0, per_byte=2.0).seconds(sizes).tolist() == [0.0, 10.0, 200.0]
    assert made("saturating", startup=0.5, per_byte=2.0, root=3.0).seconds(sizes).tolist() == [0.0, 14.5, 230.5]


@pytest.mark.parametrize(("size", "spread"), [(1e3, 0.1), (1e6, 0.1), (4e6, 0.2), (16e6, 0.4), (250.0, 0.2)])
def test_uncertainty_doubles_for_every_factor_of_four_outside(size, spread):
    assert made().uncertainty(size) == pytest.approx(spread)
    assert made(spread=0.0).uncertainty(size) == pytest.approx(spread / 10), "never surer than one percent"


def test_a_count_that_was_not_measured_by_hand():
    # From 2 to 4 ranks 1.5 times as long, so to 8 ranks 1.5 times again.
    seconds, spread = seconds_at((made(), made(ranks=4, per_byte=1.5e-9)), "all_reduce", 8, N)
    assert seconds[0] == pytest.approx(2.25e-3)
    assert spread == pytest.approx((0.1**2 + 0.12**2) ** 0.5)
    # With one count alone, as a ring: 3/4 of the bytes instead of a half.
    seconds, spread = seconds_at((made(),), "all_reduce", 8, N)
    assert seconds[0] == pytest.approx(1e-3 * (7 / 8) / (1 / 2))
    assert spread == pytest.approx((0.1**2 + 0.24**2) ** 0.5)
    # No trend is steeper than the number of ranks, and none falls.
    assert seconds_at((made(), made(ranks=4, per_byte=9e-9)), "all_reduce", 8, N)[0][0] == pytest.approx(18e-3)
    assert seconds_at((made(), made(ranks=4, per_byte=0.5e-9)), "all_reduce", 8, N)[0][0] == pytest.approx(0.5e-3)


def test_the_median_of_repeated_sizes_counts():
    points = [SweepPoint("all_reduce", 2, n, 1e-9 * n * factor) for n in (1e3, 1e4, 1e5, 1e6) for factor in (1, 1, 50)]
    (fit,) = fit_sweep(points)
    assert fit.per_byte == pytest.approx(1e-9, rel=1e-3)
    assert (fit.smallest, fit.largest) == (1e3, 1e6)


def test_ranks_that_share_cores_take_turns_where_one_count_alone_was_swept():
    ring = (7 / 8) / (1 / 2)
    for cores, turns in ((None, 1), (16, 1), (4, 2), (1, 4)):  # against the turns of two ranks on these cores
        assert seconds_at((made(),), "all_reduce", 8, N, cores=cores)[0][0] == pytest.approx(1e-3 * ring * turns)
    both = (made(), made(ranks=4, per_byte=1.5e-9))
    assert seconds_at(both, "all_reduce", 8, N, cores=1)[0][0] == pytest.approx(2.25e-3), "the trend holds them"


def test_the_trend_is_that_of_the_nearest_two_counts():
    fits = (made(per_byte=1e-10), made(ranks=4, per_byte=2e-9), made(ranks=8, per_byte=3e-9))
    assert seconds_at(fits, "all_reduce", 16, N)[0][0] == pytest.approx(4.5e-3)
    assert seconds_at(fits, "all_reduce", 3, N)[0][0] == pytest.approx(2e-3 * 3 / 4), "of equally near ones the smaller"
    assert seconds_at(fits, "all_reduce", 4, N) == (pytest.approx([2e-3]), 0.1)
    assert seconds_at((made(ranks=4), made(ranks=4)), "all_gather", 1, N) == (pytest.approx([0.0]), 0.0)


def test_a_size_that_is_left_out_by_hand():
    many = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1.0, 2.0, 3.0, 8.0])
    assert _held_out("largest", *many).tolist() == [1.0, 1.0], "the ends are not left out"
    few = np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 8.0])
    assert _held_out("largest", *few).tolist() == [1.0, 1.0, -0.5]


def test_the_largest_of_two_takes_the_medians_of_a_third_at_either_end():
    n, t = np.array([1.0, 2.0, 4.0, 8.0, 10.0, 20.0, 30.0]), np.array([5.0, 7.0, 9.0, 9.0, 9.0, 40.0, 120.0])
    assert _solve("largest", n, t) == (6.0, 3.0, 0.0)
    assert _solve("additive", n, 3 + 2 * n) == (pytest.approx(3), pytest.approx(2), 0.0)
    assert _solve("saturating", n, 3 + 2 * n + 5 * np.sqrt(n)) == (
        pytest.approx(3), pytest.approx(2), pytest.approx(5),
    )  # fmt: skip


def test_the_spread_is_that_of_the_median_error():
    sizes = np.array([1e3, 1e4, 1e5, 1e6, 1e7])
    seconds = (1e-3 + 1e-8 * sizes) * np.array([1, 1.1, 0.9, 1.05, 1])
    (fit,) = fit_sweep([SweepPoint("all_reduce", 2, n, t) for n, t in zip(sizes, seconds, strict=True)])
    errors = {form: np.abs(_held_out(form, sizes, seconds)) for form in ("additive", "largest", "saturating")}
    best = min(errors, key=lambda form: errors[form].mean())
    assert (fit.form, fit.spread) == (best, pytest.approx(1.48 * np.median(errors[best])))


def test_nothing_swept_is_refused():
    with pytest.raises(Unsupported, match="no collective"):
        fit_sweep([])
    assert len(fit_sweep(sweep(1e-4, 1e-9)[:3])) == 1
