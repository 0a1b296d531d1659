"""The processor as PyTorch uses it: its rates on the present threads, and what several threads gain for a step.

Standard library and torch only; about half a second.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["host_rates", "seconds_of_turns", "thread_gain", "typical_seconds"]

SIDE = 768
"""Rows of the matrices whose product is timed: large enough to be limited by arithmetic."""
COPIED = 16 * 2**20
"""Elements of the copied array, 64 MiB: larger than caches."""
RATE_S = 0.15
"""Seconds for each rate."""


def host_rates() -> dict[str, Any]:
    """Cores, threads, FLOP/s of a matrix product and bytes/s of a copy on the present threads."""
    left, right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    product = typical_seconds(lambda: torch.mm(left, right), RATE_S)
    source, target = torch.ones(COPIED), torch.empty(COPIED)
    copy = typical_seconds(lambda: target.copy_(source), RATE_S)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "peak": 2.0 * SIDE**3 / product,
        "bandwidth": 2.0 * COPIED * source.element_size() / copy,
    }


def typical_seconds(action: Callable[[], object], budget: float, *, least: int = 3) -> float:
    """Median seconds of an action that is repeated for about `budget` seconds, after one that does not count."""
    return statistics.median(seconds_of_turns(action, budget, least=least))


def seconds_of_turns(action: Callable[[], object], budget: float, *, least: int) -> list[float]:
    """Seconds of each turn of an action that is repeated for about `budget` seconds, after one that does not count."""
    action()
    times: list[float] = []
    while sum(times) < budget or len(times) < least:
        begin = time.perf_counter()
        action()
        times.append(time.perf_counter() - begin)
    return times


def thread_gain(step: Callable[[], object], budget: float = 0.5) -> float:
    """How many times faster a step is on the present threads than on one: the fastest steps of both, timed in turn.

    Other load only ever lengthens a step, and lengthens steps of several threads most.
    """
    threads = torch.get_num_threads()
    best: dict[int, float] = {}
    for count in (threads, 1) * 3:
        torch.set_num_threads(count)
        try:
            best[count] = min(best.get(count, math.inf), *seconds_of_turns(step, budget / 6, least=2))
        finally:
            torch.set_num_threads(threads)
    return best[1] / best[threads]
