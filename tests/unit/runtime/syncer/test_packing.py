"""Numbers that travel between groups in fewer bytes."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.errors import InputError
from paceline.runtime.syncer.packing import check_packing, pack_numbers, unpack_numbers

NUMBERS = np.random.default_rng(0).normal(size=1001).astype(np.float32)


@pytest.mark.parametrize(("packing", "ratio", "error"), [("none", 1.0, 0.0), ("half", 0.5, 2e-3), ("int8", 0.26, 0.02)])
def test_what_is_packed_is_smaller_and_close(packing: str, ratio: float, error: float) -> None:
    data = pack_numbers(NUMBERS, packing)
    assert len(data) <= ratio * NUMBERS.nbytes + 8
    assert np.abs(unpack_numbers(data, packing) - NUMBERS).max() <= error


@pytest.mark.parametrize("packing", ["none", "half", "int8"])
@pytest.mark.parametrize("size", [0, 1, 255, 256, 257])
def test_any_number_of_zeros_and_ones_survives(packing: str, size: int) -> None:
    numbers = (np.arange(size) % 2).astype(np.float32)
    assert unpack_numbers(pack_numbers(numbers, packing), packing).tolist() == numbers.tolist()


def test_each_block_has_its_own_scale() -> None:
    numbers = np.concatenate([np.full(256, 1e-6), np.full(256, 1e3)]).astype(np.float32)
    assert unpack_numbers(pack_numbers(numbers, "int8"), "int8") == pytest.approx(numbers, rel=1e-6)


def test_damaged_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        unpack_numbers(pack_numbers(NUMBERS, "int8")[:-1], "int8")


def test_an_unknown_packing_is_an_error() -> None:
    with pytest.raises(InputError, match="expected one of none, half, int8"):
        check_packing("gzip")
