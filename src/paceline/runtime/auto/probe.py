"""Messages between pairs of ranks, timed one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from paceline.runtime.auto.links import SMALL, Links, large_message, links_from, pairs_of

__all__ = ["measure_links"]


def measure_links(wire: Any, addresses: Sequence[str], *, gradient_bytes: float) -> Links:
    """Time all pairs, one after the other; every rank calls this and gets the same answer."""
    pairs, large = pairs_of(addresses), large_message(gradient_bytes)
    times = torch.zeros(len(pairs), 2, dtype=torch.float64)
    for index, (one, other) in enumerate(pairs):
        for column, size in enumerate((SMALL, large)):
            seconds = wire.ping(one, other, size)
            if wire.rank == one:
                times[index, column] = seconds
    wire.all_reduce(times)()
    timings = dict(zip(pairs, [(row[0], row[1]) for row in times.tolist()], strict=True))
    return links_from(addresses, timings, large=large)
