import numpy as np
import pytest

from paceline.errors import Unsupported
from paceline.model.sweep import SweepPoint, fit_sweep, seconds_at

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
