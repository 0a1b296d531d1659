"""Time dilation: the factor at which this machine can emulate a cluster, and the check whether it kept up.

Links and compute are slowed by the same factor and every time is divided by it. The factor is the smallest round one at
which moving the gradients costs the machine little compared with the emulated links, or overlaps with compute.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.bench.virtual.shaping import LEAST_LATENCY_S, PLAYABLE_LATENCY_S
from paceline.cost.collective import bus_factor

__all__ = ["ExchangeLoad", "Faithfulness", "choose_dilation", "judge"]

MOVED_PER_CORE = 300e6
"""Bytes per second of gradients of all ranks that one core moves without measurable disturbance."""
STEP_S = 1.5e-3
"""Seconds of a step that the host of a rank spends on hooks, copies and wake-ups."""
COPIES, COPIED_PER_S = 2, 2e9
"""Number of exposed copies of the last gradient that a device would make itself, and the copy rate of the host."""
HOP_S = 100e-6
HOP_PER_RANK_S = 10e-6
"""Seconds of one hop of a ring on this machine: a constant, and a part per rank that shares its cores."""
DISTURBANCE = 0.0075
"""Largest share of a step that the machine's own cost may add."""
LARGEST = 20000.0

LARGEST_ERROR = 0.03
"""Largest share of a step that the machine may have added to a valid run."""


@dataclass(frozen=True)
class ExchangeLoad:
    """The load of one step of a case on the machine, in emulated time."""

    ranks: int
    rates: tuple[float, ...]
    """Bytes per second of each rank's link."""
    buckets: tuple[float, ...]
    """Bytes of each exchange, in order."""
    backward_s: float
    step_s: float
    """Compute of the fastest device."""
    latency: float = 0.0
    """Shortest requested one-way latency between hosts."""


@dataclass(frozen=True)
class Faithfulness:
    """The accuracy of an emulated run: the largest shares over its ranks, and the time they may have added."""

    late_share: float
    """Share of the time that a host was late for its device."""
    queued_share: float
    """Share of the time that a communication thread waited for a core."""
    dilation: float
    beyond_share: float = math.inf
    """Share of the exchange after the end of compute, minus that of the links; minimum of all ranks."""

    @property
    def error(self) -> float:
        """Upper bound of the share of a step that the machine added: the lower of two bounds.

        Waiting of threads may be hidden behind compute. The time after the compute of the rank that waited least, minus
        the time of the links for the last gradients, includes everything that was added.
        """
        return min(self.late_share + self.queued_share, self.beyond_share)

    @property
    def _bounded(self) -> bool:
        return math.isfinite(self.beyond_share)

    @property
    def holds(self) -> bool:
        """Whether the machine kept up."""
        return self.error <= LARGEST_ERROR

    def __str__(self) -> str:
        return (
            f"host late {100 * self.late_share:.1f} %, thread kept waiting {100 * self.queued_share:.1f} %, "
            + (f"exchange up to {100 * self.beyond_share:.1f} % longer than it need be, " if self._bounded else "")
            + f"dilation {self.dilation:g}"
        )


def choose_dilation(load: ExchangeLoad, *, cores: int | None = None, slower: float = 1.0) -> float:
    """The smallest round factor at which this machine emulates the load accurately; `slower` multiplies it."""
    if load.ranks < 2 or load.step_s <= 0:
        return 1.0
    moved = (cores or os.cpu_count() or 1) * MOVED_PER_CORE
    ring = bus_factor("all_reduce", load.ranks)
    cost = [ring * size * load.ranks / moved + _hops(load.ranks) for size in load.buckets]
    keep_rate = sum(load.rates) / moved
    hide = max(2 * sum(cost) / max(load.backward_s, 1e-9), max(cost) / (DISTURBANCE * load.step_s))
    copies = COPIES * max(load.buckets) / COPIED_PER_S
    fixed = (STEP_S + _hops(load.ranks) + copies) / (DISTURBANCE * load.step_s)
    factor = _round_up(slower * max(1.0, fixed, min(keep_rate, hide)))
    if LEAST_LATENCY_S <= factor * load.latency < PLAYABLE_LATENCY_S:
        return _round_up(PLAYABLE_LATENCY_S / load.latency)
    return factor


def _hops(ranks: int) -> float:
    return 2 * (ranks - 1) * (HOP_S + HOP_PER_RANK_S * ranks)


def _round_up(factor: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..., so that cases can share a cluster."""
    scale = 1.0
    while scale <= LARGEST:
        for step in (1, 2, 5):
            if step * scale >= factor * 0.999:
                return step * scale
        scale *= 10
    return LARGEST


def judge(reports: Sequence[Mapping[str, float]], *, dilation: float) -> Faithfulness:
    """The maximum over all ranks; for the time after compute the minimum, because ranks wait for the slowest."""
    return Faithfulness(
        late_share=max(report["late_share"] for report in reports),
        queued_share=max(report["queued_share"] for report in reports),
        dilation=dilation,
        beyond_share=min(report.get("beyond_share", math.inf) for report in reports),
    )
