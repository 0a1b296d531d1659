"""Findings that need more than one case: how the step depends on the batch and on the number of ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from paceline.explain.advice.finding import Change, Finding, Trial
from paceline.explain.advice.rules import make
from paceline.explain.advice.threads import crowding_of, oversubscribed_threads
from paceline.explain.evidence import CaseEvidence
from paceline.explain.lines import draws, line_through
from paceline.measurements.run import Run
from paceline.measurements.summary import Interval, median_interval, speedup_interval
from paceline.units import SECONDS, format_share

__all__ = ["compare_cases"]

TARGET_SHARE = 0.1
"""A batch is large enough when at most this share of its step does not depend on it."""
LARGEST_FACTOR = 16
"""How much larger a batch is suggested at most: beyond that, what was measured says too little."""


def compare_cases(cases: Iterable[CaseEvidence]) -> list[Finding]:
    """Too small batches, fixed overheads and too many devices, by what differs along one axis."""
    good = [case for case in cases if case.result.step_s is not None]
    findings = [_small_batch(case, group) for group in _along(good, "batch") for case in group]
    findings += [_fixed_overhead(case) for case in good]
    families: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in good:
        families[_others(case.run, "batch")].append(case)
    findings += [oversubscribed_threads(case, family) for family in families.values() for case in family]
    findings += [_fewer_devices(case, group) for group in _along(good, "ranks") for case in group]
    return [finding for finding in findings if finding is not None]


def _along(cases: list[CaseEvidence], axis: str) -> list[list[CaseEvidence]]:
    """Groups of cases that differ in one field only, in its order."""
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        groups[_others(case.run, axis)].append(case)
    return [sorted(group, key=lambda case: int(getattr(case.run, axis))) for group in groups.values() if len(group) > 1]


def _others(run: Run, axis: str) -> tuple[object, ...]:
    fields = ("network", "cluster", "framework", "strategy", "input", "launcher", "ranks", "batch")
    return tuple(getattr(run, field) for field in fields if field != axis)


def _small_batch(case: CaseEvidence, group: list[CaseEvidence]) -> Finding | None:
    """Part of the step does not shrink with the batch: step = fixed + batch x per_sample.

    Where threads crowd the cores, that part is theirs first.
    """
    if crowding_of(case) > 1:
        return None
    batches = np.array([float(item.run.batch) for item in group])
    assert case.result.step_s is not None
    batch, step = case.run.batch, case.result.step_s.value
    steps = np.array([item.result.step_s.value for item in group if item.result.step_s])
    fixed, per_sample = (float(value) for value in line_through(batches, steps))
    wanted = _enough(batch, fixed / max(per_sample, 1e-12))
    if fixed <= 0 or wanted <= batch:
        return None
    after = fixed / wanted + per_sample
    return make(
        case,
        "small_batch",
        f"A batch of {batch} is too small to fill the device",
        evidence=(
            f"{SECONDS.format(fixed)} of the {SECONDS.format(step)} step do not depend on the batch",
            f"a sample takes {SECONDS.format(step / batch)}, at batch {wanted} about {SECONDS.format(after)}",
            f"fitted through batches {', '.join(str(int(value)) for value in batches)}",
        ),
        gain=_batch_gain(case, group, wanted, after),
        change=Change(
            "setting",
            f"batch = [{wanted}]",
            warning="a larger global batch can cost accuracy: scale the learning rate with it, warm up, and check",
        ),
        trial=Trial(batch=wanted),
    )


def _batch_gain(case: CaseEvidence, group: list[CaseEvidence], wanted: int, after: float) -> Interval:
    """The gain of a larger batch; its interval from lines through launches drawn at random."""
    assert case.result.step_s is not None
    value = 1 - after * case.run.batch / case.result.step_s.value
    if any(len(item.launches.steps) < 2 for item in group):
        return Interval(max(0.0, value), float("-inf"), float("inf"))
    drawn = draws([item.launches.steps for item in group])
    fixed, slope = line_through(np.array([float(item.run.batch) for item in group]), drawn)
    mine = drawn[:, group.index(case)] / case.run.batch
    low, high = np.quantile(1 - (fixed / wanted + slope) / mine, (0.025, 0.975))
    return Interval(max(0.0, value), min(value, float(low)), max(value, float(high)))


def _enough(batch: int, ratio: float) -> int:
    """The batch, in doublings, at which the fixed part is small enough, or the largest that may be suggested."""
    wanted = batch
    while ratio / (ratio + wanted) > TARGET_SHARE and wanted < LARGEST_FACTOR * batch:
        wanted *= 2
    return wanted


def _fixed_overhead(case: CaseEvidence) -> Finding | None:
    """Time before the first layer begins: the same whatever the batch.

    As a share of the traced step, because hooks make all of it longer. What no phase accounts for is none of it: every
    pass runs the same loop, so that is how passes disagree.
    """
    shares = _shares_before(case)
    if not shares or case.result.step_s is None:
        return None
    gain = median_interval(shares)
    before = SECONDS.format(gain.value * case.result.step_s.value)
    return make(
        case,
        "fixed_overhead",
        "Part of every step passes before the network begins",
        evidence=(
            f"{format_share(gain.value)} of every traced step pass before its first layer, {before} of a clean one",
        ),
        gain=gain,
        change=Change(
            "code", "profile the training loop itself: logging, checks on weights, callbacks, `.item()` calls"
        ),
    )


def _shares_before(case: CaseEvidence) -> list[float]:
    """Share of each traced step that its last rank to begin passes before its first span."""
    steps: dict[tuple[int, int], tuple[float, float]] = {}
    for span in case.spans:
        key = (span.step, span.rank)
        begin, end = steps.get(key, (span.start_s, 0.0))
        steps[key] = min(begin, span.start_s), max(end, span.start_s + span.seconds)
    found: dict[int, float] = {}
    for (step, _), (begin, end) in steps.items():
        found[step] = max(found.get(step, 0.0), begin / end if end > 0 else 0.0)
    return list(found.values())


def _fewer_devices(case: CaseEvidence, group: list[CaseEvidence]) -> Finding | None:
    """More ranks than another case, and yet no more samples a second."""
    mine = case.result.throughput
    fewer = [item for item in group if item.run.ranks < case.run.ranks and item.result.throughput]
    if mine is None or not fewer:
        return None
    best = max(fewer, key=lambda item: item.result.throughput.value if item.result.throughput else 0.0)
    rate = best.result.throughput
    assert rate is not None
    if mine.value >= rate.value:
        return None
    return make(
        case,
        "too_many_devices",
        f"{'1 rank is' if best.run.ranks == 1 else f'{best.run.ranks} ranks are'} as fast as {case.run.ranks}",
        evidence=(
            f"{mine.value:,.1f} samples/s with {case.run.ranks} ranks, {rate.value:,.1f} with {best.run.ranks}",
            f"efficiency is {format_share(case.result.efficiency or 0.0)}",
        ),
        gain=_fewer_gain(case, best),
        change=Change("setting", f"devices = [{best.run.ranks}]"),
        trial=Trial(ranks=best.run.ranks),
    )


def _fewer_gain(case: CaseEvidence, best: CaseEvidence) -> Interval:
    ratio = speedup_interval(case.launches.throughputs, best.launches.throughputs)
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)
