"""Laws of quantities: text and value convert without loss, and dimensions cannot be mixed."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import UnitError
from paceline.units import BANDWIDTH, BYTES, FLOPS, PRICE, SECONDS

DIMENSIONS = (SECONDS, BYTES, BANDWIDTH, FLOPS, PRICE)
values = st.floats(min_value=0, max_value=1e300, allow_subnormal=False)


@given(st.sampled_from(DIMENSIONS), values)
def test_exact_text_parses_back(dimension, value):
    assert dimension.parse(dimension.exact(value)) == value


@given(st.sampled_from(DIMENSIONS), st.integers(1, 10**6), st.data())
def test_values_in_every_unit_survive_a_round_trip(dimension, number, data):
    text = f"{number} {data.draw(st.sampled_from([unit for unit in dimension.units if unit]))}"
    assert dimension.parse(dimension.exact(dimension.parse(text))) == dimension.parse(text)


@given(st.sampled_from(DIMENSIONS), st.floats(min_value=1e-9, max_value=1e18))
def test_printed_text_is_within_half_a_digit(dimension, value):
    printed = dimension.parse(dimension.format(value))
    smallest = dimension.steps[0][1]
    assert printed == pytest.approx(value, rel=0.0051, abs=0.0051 * smallest)


@given(st.sampled_from(list(itertools.permutations(DIMENSIONS, 2))), values, st.data())
def test_dimensions_cannot_be_mixed(pair, value, data):
    one, other = pair
    unit = data.draw(st.sampled_from([name for name in one.units if name]))
    with pytest.raises(UnitError):
        other.parse(f"{value!r} {unit}")


@given(st.sampled_from(DIMENSIONS), st.text(max_size=30))
def test_any_text_is_a_finite_number_or_a_unit_error(dimension, text):
    try:
        value = dimension.parse(text)
    except UnitError as error:
        message = str(error)
    else:
        message = dimension.example
        assert abs(value) < float("inf")
    assert dimension.example in message
