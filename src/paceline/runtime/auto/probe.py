"""Messages between pairs of ranks, timed one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.runtime.auto.links import LARGE, SMALL, Links, links_from, pairs_of

__all__ = ["measure_links"]


def measure_links(wire: Any, addresses: Sequence[str]) -> Links:
    """Time all pairs, one after the other; every rank calls this and gets the same answer."""
    pairs = pairs_of(addresses)
    times = torch.zeros(len(pairs), 2, dtype=torch.float64)
    for index, (one, other) in enumerate(pairs):
        for column, size in enumerate((SMALL, LARGE)):
            seconds = wire.ping(one, other, size)
            if wire.rank == one:
                times[index, column] = seconds
    wire.all_reduce(times)()
    return links_from(addresses, dict(zip(pairs, [(row[0], row[1]) for row in times.tolist()], strict=True)))
