"""Too many threads for the cores: what it costs that they wait for each other at the end of every kernel.

    compute = fixed + batch * per_sample,    fixed = kernels * (start + waiting of threads)

Waiting does not depend on the batch, so two batches with the same threads tell it from work; what starting kernels
usually takes is left out. With one batch alone the cost can be anything from nothing on, and nothing is shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.explain.advice.finding import Change, Finding, Trial
from paceline.explain.advice.gains import gain_of
from paceline.explain.advice.rules import make
from paceline.explain.evidence import CaseEvidence
from paceline.explain.lines import drawn_lines, line_through
from paceline.measurements.summary import Interval
from paceline.units import SECONDS

__all__ = ["crowding_of", "oversubscribed_threads"]

START_S = 60e-6
"""Usual time to start the kernels of one layer, forward and backward, by one thread of a processor."""
GUESS = 0.5
"""Share of compute that crowding may cost, where nothing tells; its interval begins at nothing."""


def crowding_of(case: CaseEvidence) -> float:
    """Compute threads for every core of the fullest host; 0 where nothing is known or compute needs no core."""
    threads = case.run.machine.threads
    return 0.0 if threads is None or case.is_emulated else threads * case.ranks_per_host / case.run.machine.cores


def oversubscribed_threads(case: CaseEvidence, batches: Sequence[CaseEvidence]) -> Finding | None:
    """Ranks of a host have more compute threads than it has cores; `batches` differ in the batch only."""
    crowding = crowding_of(case)
    if crowding <= 1 or not case.launches.passes:
        return None
    threads, cores, crowd = case.run.machine.threads, case.run.machine.cores, case.ranks_per_host
    fair = max(1, cores // crowd)
    waiting = _waiting(case, batches)
    plural = "rank" if crowd == 1 else "ranks"
    return make(
        case,
        "oversubscribed_threads",
        f"{crowd} {plural} x {threads} threads share {cores} cores",
        evidence=(
            f"{crowding:.3g} threads for every core: they wait for each other at the end of every kernel",
            _words(case, batches, waiting),
        ),
        gain=gain_of(case, waiting),
        change=Change("setting", f"protocol.threads = {fair} (OMP_NUM_THREADS={fair})"),
        trial=Trial(threads=fair),
    )


def _words(case: CaseEvidence, batches: Sequence[CaseEvidence], waiting: Interval) -> str:
    if len(batches) < 2:
        return "with one batch alone nothing tells what that costs: measure a second one, or use --confirm"
    sizes = ", ".join(str(item.run.batch) for item in batches)
    usual = SECONDS.format(START_S * _num_layers(case))
    return (
        f"{SECONDS.format(waiting.value)} of compute do not depend on the batch ({sizes}), "
        f"beyond the {usual} that starting kernels usually takes"
    )


def _waiting(case: CaseEvidence, batches: Sequence[CaseEvidence]) -> Interval:
    """Seconds of compute that do not depend on the batch, beyond the usual."""
    compute = float(np.median([passes["compute"] for passes in case.launches.passes]))
    if len(batches) < 2 or not all(item.launches.passes for item in batches):
        return Interval(GUESS * compute, 0.0, compute)
    sizes = np.array([float(item.run.batch) for item in batches])
    samples = [[passes["compute"] for passes in item.launches.passes] for item in batches]
    usual = START_S * _num_layers(case)
    fixed, _ = line_through(sizes, np.array([float(np.median(sample)) for sample in samples]))
    value = float(np.clip(fixed - usual, 0.0, compute))
    if min(len(sample) for sample in samples) < 2:
        return Interval(value, float("-inf"), float("inf"))
    drawn, _ = drawn_lines(sizes, samples)
    low, high = np.quantile(np.clip(drawn - usual, 0.0, compute), (0.025, 0.975))
    return Interval(value, min(value, float(low)), max(value, float(high)))


def _num_layers(case: CaseEvidence) -> int:
    return len({span.name for span in case.spans if span.phase == "forward"})
