"""What ranks on the processor of one host leave each other: its cores, their threads, its memory bandwidth.

A step alone on t threads, of which a share p runs in parallel (Amdahl, 1967):

    alone(t) = alone(1) ((1 - p) + p / t)

R ranks of t threads on c cores. Threads of a rank meet at the end of every kernel and spin until the last arrives, so
a rank occupies t cores for as long as it computes. Where there are fewer, ranks take turns:

    together(R, t) = alone(t) turns,    turns = max(1, R t / c)

A rank of several threads that takes turns also waits for threads of its own that are not running. What ranks cost each
other through memory and caches is the calibration's `crowding`, for the ranks that compute at the same time:
`at_once`. `Sharing` holds what a probe measured of all this.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Sharing",
    "alone_ratio",
    "at_once",
    "fair_threads",
    "parallel_share",
    "shared_words",
    "together",
    "turns",
    "unknown_parallel",
]

MEETING = 0.25
"""Share by which ranks of several threads that take turns are slower than turns alone, where no probe says it."""
USUAL_PARALLEL = 0.9
"""Share of a step that runs in parallel, where nothing was measured on two numbers of threads."""
UNKNOWN_PARALLEL_SPREAD = 0.2
"""Standard deviation of the log of a step that moves to another number of threads by the usual share."""
PROBED_SPREAD = 0.04
"""Standard deviation of the log of a stretch that a probe measured; of turns alone; of taking turns by threads."""
TURNS_SPREAD = 0.06
MEETING_SPREAD = 0.3


@dataclass(frozen=True)
class Sharing:
    """What a probe measured: how many times as long as alone compute takes on `ranks` ranks of `threads` threads."""

    cores: int
    ranks: int
    threads: int
    stretch: float


def fair_threads(cores: int, ranks: int) -> int:
    """Compute threads of each of the ranks of a host: an even share of its cores, at least one."""
    return max(1, cores // max(1, ranks))


def parallel_share(gain: float, threads: int) -> float:
    """The share of a step that runs in parallel, from how many times faster `threads` threads are than one."""
    if threads < 2:
        return USUAL_PARALLEL
    return min(1.0, max(0.0, (1 - 1 / gain) / (1 - 1 / threads)))


def alone_ratio(parallel: float, before: int, after: int) -> float:
    """Seconds of a step alone on `after` threads over those on `before` threads."""
    return ((1 - parallel) + parallel / after) / ((1 - parallel) + parallel / before)


def unknown_parallel(before: int, after: int) -> tuple[float, float]:
    """The usual parallel share, and the standard deviation of the log of a step that moves between these threads."""
    return USUAL_PARALLEL, 0.0 if before == after else UNKNOWN_PARALLEL_SPREAD


def together(ranks: int, threads: int, cores: int, probes: tuple[Sharing, ...] = ()) -> tuple[float, float]:
    """How many times as long compute takes as alone on the same threads, and the standard deviation of its log."""
    if ranks == 1 and threads <= cores:
        return 1.0, 0.0
    known = [probe for probe in probes if probe.cores == cores]
    same = next((probe for probe in known if (probe.ranks, probe.threads) == (ranks, threads)), None)
    if same is not None:
        return max(1.0, same.stretch), PROBED_SPREAD
    stretch = _stretch(ranks, threads, cores)
    alike = [probe for probe in known if probe.ranks > 1 and (probe.threads > 1) == (threads > 1)]
    if alike:  # the probe that is most alike says by how much turns alone are off
        near = min(alike, key=lambda probe: abs(probe.ranks * probe.threads - ranks * threads))
        return max(1.0, stretch * near.stretch / _stretch(near.ranks, near.threads, cores)), 1.5 * PROBED_SPREAD
    return stretch, MEETING_SPREAD if threads > 1 and ranks * threads > cores else TURNS_SPREAD


def _stretch(ranks: int, threads: int, cores: int) -> float:
    meets = threads > 1 and ranks * threads > cores
    return turns(ranks, threads, cores) * (1 + MEETING * meets)


def turns(ranks: int, threads: int, cores: int | None) -> float:
    """How many times as long as on a core of its own a thread takes, because ranks take turns on the cores."""
    return 1.0 if cores is None else max(1.0, ranks * threads / cores)


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
