"""Too many threads for the cores: what crowding costs, fitted where two cases of a study are crowded differently.

    compute = work * (ranks of the host / cores) * crowding ** exponent,    crowding = threads * ranks / cores

Two numbers of ranks with the same threads give the exponent; one alone takes a usual value, with a wide interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.explain.advice.finding import Change, Finding, Trial
from paceline.explain.advice.gains import gain_of
from paceline.explain.advice.rules import make
from paceline.explain.evidence import CaseEvidence
from paceline.measurements.summary import Interval, median_interval
from paceline.units import SECONDS

__all__ = ["oversubscribed_threads"]

USUAL, LEAST, MOST = 0.5, 0.1, 1.5
"""Exponents: without a fit, and the bounds of one."""


def oversubscribed_threads(case: CaseEvidence, others: Sequence[CaseEvidence]) -> Finding | None:
    """Ranks of a host have more compute threads than it has cores; `others` differ in the number of ranks only."""
    threads, cores, compute = case.run.environment.threads, case.run.environment.cores, _compute(case)
    crowding = _crowding(case)
    if threads is None or compute is None or crowding is None or crowding <= 1:
        return None
    crowd = case.ranks_per_host
    fair = max(1, cores // crowd)
    exponent = _fitted(case, others)
    words = "fitted from the cases of this study" if exponent is not None else "assumed: no other case is crowded"
    return make(
        case,
        "oversubscribed_threads",
        f"{crowd} ranks x {threads} threads share {cores} cores",
        evidence=(
            f"{crowding:.3g} threads for every core: they wait for each other at the end of every kernel",
            f"forward and backward take {SECONDS.format(compute)}",
            f"compute grows with crowding to the power {exponent if exponent is not None else USUAL:.2f} ({words})",
        ),
        gain=_gain(case, crowding, exponent),
        change=Change("setting", f"protocol.threads = {fair} (OMP_NUM_THREADS={fair})"),
        trial=Trial(threads=fair),
    )


def _gain(case: CaseEvidence, crowding: float, exponent: float | None) -> Interval:
    def saved(power: float) -> Interval:
        return gain_of(case, median_interval([p["compute"] * (1 - crowding**-power) for p in case.launches.passes]))

    if exponent is not None:
        return saved(exponent)
    return Interval(saved(USUAL).value, saved(LEAST).low, saved(MOST).high)


def _fitted(case: CaseEvidence, others: Sequence[CaseEvidence]) -> float | None:
    """The exponent by which this case and another with other crowding differ."""
    mine, crowding = _compute(case), _crowding(case)
    for other in others:
        theirs, their_crowding = _compute(other), _crowding(other)
        if mine is None or theirs is None or not crowding or not their_crowding or crowding == their_crowding:
            continue
        if min(crowding, their_crowding) < 1 or other.run.environment.threads != case.run.environment.threads:
            continue
        share = case.ranks_per_host / other.ranks_per_host
        power = math.log(mine / theirs / share) / math.log(crowding / their_crowding)
        return min(MOST, max(LEAST, power))
    return None


def _compute(case: CaseEvidence) -> float | None:
    phases = case.result.phases
    return phases["forward"] + phases["backward"] if phases else None


def _crowding(case: CaseEvidence) -> float | None:
    threads = case.run.environment.threads
    if threads is None or case.is_emulated:
        return None
    return threads * case.ranks_per_host / case.run.environment.cores
