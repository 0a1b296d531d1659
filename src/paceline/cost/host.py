"""How ranks on the CPU of one host share its cores and threads.

A step alone on t threads, of which a share p runs in parallel (Amdahl, 1967):

    alone(t) = alone(1) / gain,    gain = 1 / ((1 - p) + p / t)

A step that several threads slow down, because they wait for each other, has a gain below 1, and a negative p.

R ranks of t threads on c cores. Ranks that have too few cores wait passively (`OMP_WAIT_POLICY=passive`, which
launchers set for them): a waiting thread leaves its core to others, and a rank that computes occupies `gain` cores.
What threads lose by waiting for each other on free cores, they do not lose where other ranks use these cores meanwhile:

    together(R, t) = alone(t) max(min(1, gain), R gain / c)    where R t > c, R > 1

Threads of one rank that meet inside a kernel do not wait passively: they spin until the last of them has come. oneDNN
does so where threads split the batch of a convolution, and must sum its weight gradients. If one of the threads has no
core at that moment, the others burn their turn, so each such meeting wastes about one turn of one core:

    together(R, t) + meetings wait R / c    where R t > c, t > 1

The calibration's `crowding` models contention for memory and caches between concurrent ranks (`at_once`).
`SharingProbe` holds the excess that a probe without meetings measured over this formula, and the wait of a meeting. The
logarithm of the excess is shrunk towards zero, weighted by the spread of the formula and the standard error of the
probe's repetitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = [
    "SharingProbe",
    "alone_ratio",
    "at_once",
    "fair_threads",
    "meeting_seconds",
    "meets",
    "parallel_share",
    "shared_words",
    "threads_gain",
    "together",
    "turns",
    "unknown_parallel",
]

USUAL_PARALLEL = 0.9
"""Share of a step that runs in parallel, where nothing was measured on two numbers of threads."""
LEAST_PARALLEL = -1.0
"""Two threads that take more than one and a half times as long as one were disturbed."""
UNKNOWN_PARALLEL_SPREAD = 0.2
"""Standard deviation of the log of a step that moves to another number of threads by the usual share."""
PROBED_SPREAD = 0.04
"""Standard deviation of the log of a stretch that a probe measured on another network; then of turns, and of turns of
several threads."""
TURNS_SPREAD = 0.08
THREADS_SPREAD = 0.15
USUAL_WAIT, USUAL_WAIT_SPREAD, PROBED_WAIT_SPREAD = 3e-3, 0.6, 0.3
"""Seconds of a core that a meeting of threads wastes where no probe measured them: about a turn of Linux's scheduler;
standard deviations of the log of these seconds, and of those that a probe measured on another network."""
MOST_WAIT = 10e-3
"""A longer wait was another load on the machine."""
SUMMED = 16
"""Convolutions with this many bytes of input and output for each byte of weights split the batch between threads: in
oneDNN's estimate of memory traffic a weight counts as much as eight elements of the output."""


@dataclass(frozen=True)
class SharingProbe:
    """Measured by a probe: compute of `ranks` ranks of `threads` threads takes this many times the time-slicing
    model."""

    cores: int
    ranks: int
    threads: int
    excess: float
    spread: float = 0.0
    """Standard error of the log of the excess over the turns of the probe; 0 where the turns are not known."""
    wait: float | None = None
    """Seconds of a core that a meeting of a rank's threads wasted. None on one thread. A probe of several threads
    without it is not used: its excess contains meetings."""


def fair_threads(cores: int, ranks: int) -> int:
    """Compute threads of each of the ranks of a host: an even share of its cores, at least one."""
    return max(1, cores // max(1, ranks))


def parallel_share(gain: float, threads: int) -> float:
    """The share of a step that runs in parallel, from how many times faster `threads` threads are than one."""
    if threads < 2:
        return USUAL_PARALLEL
    return min(1.0, max(LEAST_PARALLEL, (1 - 1 / gain) / (1 - 1 / threads)))


def alone_ratio(parallel: float, before: int, after: int) -> float:
    """Seconds of a step alone on `after` threads over those on `before` threads."""
    return ((1 - parallel) + parallel / after) / ((1 - parallel) + parallel / before)


def unknown_parallel(before: int, after: int) -> tuple[float, float]:
    """The usual parallel share, and the standard deviation of the log of a step that moves between these threads."""
    return USUAL_PARALLEL, 0.0 if before == after else UNKNOWN_PARALLEL_SPREAD


def threads_gain(parallel: float, threads: int) -> float:
    """How many times faster a step is on this many threads than on one: the cores that it keeps busy."""
    return 1 / ((1 - parallel) + parallel / threads)


def together(
    ranks: int, threads: int, cores: int, *, parallel: float = USUAL_PARALLEL, probes: tuple[SharingProbe, ...] = ()
) -> tuple[float, float]:
    """How many times as long compute takes as alone on the same threads, and the standard deviation of its log."""
    if ranks == 1 and threads <= cores:
        return 1.0, 0.0
    gain, crowded = threads_gain(parallel, threads), ranks * threads > cores
    stretch = max(min(1.0, gain) if ranks > 1 else 1.0, ranks * gain / cores) if crowded else 1.0
    alike = [one for one in probes if one.cores == cores and (one.threads == 1 or one.wait is not None)]
    spread = THREADS_SPREAD if threads > 1 and crowded else TURNS_SPREAD
    if alike:
        near = min(alike, key=lambda one: (abs(one.ranks - ranks), abs(one.threads - threads)))
        far = (near.ranks, near.threads) != (ranks, threads)
        trust = spread**2 / (spread**2 + near.spread**2)
        moved = PROBED_SPREAD * (1.5 if far else 1.0)
        return max(min(1.0, stretch), stretch * near.excess**trust), math.hypot(moved, trust**0.5 * near.spread)
    return stretch, spread


def meets(moved: float, weights: float) -> bool:
    """Whether threads meet in the backward pass of a convolution, from its bytes in and out, and of weights."""
    return weights > 0 and moved > SUMMED * weights


def meeting_seconds(
    ranks: int, threads: int, cores: int, *, probes: tuple[SharingProbe, ...] = ()
) -> tuple[float, float]:
    """Seconds that a step takes longer for each meeting of threads, and the standard deviation of their log."""
    if threads == 1 or ranks * threads <= cores:
        return 0.0, 0.0
    alike = [one for one in probes if one.cores == cores and one.wait is not None]
    if not alike:
        return USUAL_WAIT * ranks / cores, USUAL_WAIT_SPREAD
    near = min(alike, key=lambda one: (abs(one.ranks - ranks), abs(one.threads - threads)))
    return min(near.wait or 0.0, MOST_WAIT) * ranks / cores, PROBED_WAIT_SPREAD


def turns(ranks: int, cores: int | None) -> float:
    """Slowdown of single-threaded work of a rank, relative to a dedicated core."""
    return 1.0 if cores is None else max(1.0, ranks / cores)


def at_once(ranks: int, threads: int, cores: int | None) -> float:
    """How many ranks compute at the same time."""
    return float(ranks) if cores is None else max(1.0, min(ranks, cores / threads))


def shared_words(ranks: int, threads: int, cores: int) -> str:
    """`4 ranks share 2 cores`, with the threads of each."""
    each = f"{threads} thread{'s' * (threads != 1)} each"
    if ranks == 1:
        return f"1 rank of {threads} thread{'s' * (threads != 1)} on {cores} core{'s' * (cores != 1)}"
    verb = "share" if ranks * threads > cores else "on"
    return f"{ranks} ranks {verb} {cores} core{'s' * (cores != 1)}, {each}"
