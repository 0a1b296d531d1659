"""Pickles read as data: what Python reads, without what Python would execute, allocate or hash."""

import pickle
import pickletools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.measurements.foreign import pickles
from paceline.measurements.foreign.pickles import unpickle_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)  # fmt: skip


@given(data=PLAIN, protocol=st.integers(2, 5))
def test_data_are_what_python_reads(data: object, protocol: int) -> None:
    assert unpickle_plain(pickle.dumps([data, data], protocol)) == [data, data]


def test_a_list_that_the_writer_in_cpp_names_is_that_list() -> None:
    assert unpickle_plain(b"\x80\x02ctorch.jit._pickle\nbuild_intlist\n](K\x01K\x02e\x85R.") == [1, 2]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x04cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "import os.system"),
        (b"\x80\x04X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93.", "import os.system"),
        (b"(ios\nsystem\n.", "import os.system"),
        (b"\x80\x05\x96\xff\xff\xff\x7f\x00\x00\x00\x00.", "expected 2147483647 bytes"),
        (b"\x80\x05\x96\x01\x00\x00\x00\x00\x00\x00\x00x.", "do not need: BYTEARRAY8"),
        (b"\x80\x02K\x01Q.", "do not need: BINPERSID"),
        (b"\x80\x02K\x01)R.", "no function"),
        (b"\x80\x02K\x01K\x02a.", "int stands where a list"),
        (b"\x80\x02}K\x01s.", "out of range"),
        (b"\x80\x02K\x01s.", "more than there is"),
        (b"\x80\x02})K\x01s.", "tuple stands where a str"),
    ],
)
def test_what_is_no_data_is_refused(content: bytes, words: str) -> None:
    with pytest.raises((pickle.UnpicklingError, ValueError, IndexError), match=words):
        unpickle_plain(content)


def test_a_large_number_of_the_memo_takes_no_memory() -> None:
    assert unpickle_plain(b"\x80\x02]r\xff\xff\xff\x7f.") == []


def test_tuples_that_repeat_each_other_are_no_keys() -> None:
    # Two to the power of 60 steps to hash.
    bomb = b"\x80\x02}" + b")" + 60 * b"2\x86" + b"K\x01s."
    with pytest.raises(pickle.UnpicklingError, match="tuple stands"):
        unpickle_plain(bomb)


def test_instructions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    content = pickle.dumps(list(range(10)), 2)
    count = len(list(pickletools.genops(content)))
    monkeypatch.setattr(pickles, "MOST_INSTRUCTIONS", count - 1)
    assert unpickle_plain(content) == list(range(10))
    monkeypatch.setattr(pickles, "MOST_INSTRUCTIONS", count - 2)
    with pytest.raises(pickle.UnpicklingError, match="instructions"):
        unpickle_plain(content)
