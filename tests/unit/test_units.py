import math

import pytest

from paceline.errors import UnitError
from paceline.units import BANDWIDTH, BYTES, FLOPS, PRICE, SECONDS, format_share


@pytest.mark.parametrize(
    ("dimension", "text", "value"),
    [
        (SECONDS, "60 us", 60e-6),
        (SECONDS, "1.5 ms", 1.5e-3),
        (SECONDS, "2min", 120.0),
        (SECONDS, 3, 3.0),
        (BYTES, "25 MiB", 25 * 2**20),
        (BYTES, "16 GB", 16e9),
        (BYTES, "1_000 B", 1000.0),
        (BANDWIDTH, "10 Gb/s", 1.25e9),
        (BANDWIDTH, "10 GB/s", 1e10),
        (BANDWIDTH, "100 Gbps", 12.5e9),
        (FLOPS, "1.0752 Tflop/s", 1.0752e12),
        (FLOPS, "15.7 TFLOPS", 15.7e12),
        (PRICE, "$".join(["3.06 ", "/h"]), 3.06),
    ],
)
def test_parse_is_exact_to_the_last_bit(dimension, text, value):
    assert dimension.parse(text) == value


@pytest.mark.parametrize(
    "given", ["", "fast", "3 lightyears", "1 e3 s", "nan s", "inf s", True, None, [1], {}, "1e999 s"]
)
def test_what_is_no_time_is_refused_with_an_example(given):
    with pytest.raises(UnitError, match="a time such as"):
        SECONDS.parse(given)


def test_infinite_numbers_are_refused():
    for given in (math.inf, -math.inf, math.nan):
        with pytest.raises(UnitError):
            BYTES.parse(given)


def test_a_misspelt_unit_is_suggested():
    with pytest.raises(UnitError) as caught:
        BYTES.parse("25 Mib")
    assert caught.value.hint == "did you mean 'MiB'?"


@pytest.mark.parametrize(
    ("dimension", "value", "text"),
    [
        (SECONDS, 0.0012345, "1.23 ms"),
        (SECONDS, 0, "0 ns"),
        (SECONDS, 1.14e-19, "0 ns"),
        (SECONDS, -1e-15, "0 ns"),
        (SECONDS, 6e-13, "0.000600 ns"),
        (SECONDS, 0.9999, "1.00 s"),
        (SECONDS, 7200, "2.00 h"),
        (BYTES, 25 * 2**20, "25.0 MiB"),
        (BANDWIDTH, 1.25e9, "1.25 GB/s"),
        (FLOPS, 125e12, "125 Tflop/s"),
    ],
)
def test_format_keeps_three_digits(dimension, value, text):
    assert dimension.format(value) == text


@pytest.mark.parametrize(
    ("dimension", "text"),
    [(BYTES, "16 GB"), (BYTES, "25 MiB"), (BANDWIDTH, "900 GB/s"), (BANDWIDTH, "10 Gb/s"), (SECONDS, "60 us")],
)
def test_exact_text_reads_as_people_write_it(dimension, text):
    assert dimension.exact(dimension.parse(text)) == text


def test_share():
    assert format_share(0.1234) == "12.3 %"


def test_what_is_below_nothing_has_the_unit_of_its_size():
    assert (SECONDS.format(-0.0015), SECONDS.format(-90.0)) == ("-1.50 ms", "-1.50 min")
    assert BYTES.format(-2048.0) == "-2.00 KiB"


def test_units_of_one_kind_agree():
    for text in ("10 Gbit/s", "10 Gb/s", "10 Gbps", "1.25 GB/s", "10000 Mbit/s"):
        assert BANDWIDTH.parse(text) == 1.25e9, text
    assert (SECONDS.parse("1 d"), SECONDS.parse("24 h"), SECONDS.parse("1440 min")) == (86400.0,) * 3
    assert (BYTES.parse("1 TiB"), BYTES.parse("1 TB")) == (2.0**40, 1e12)
