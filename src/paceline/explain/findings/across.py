"""Findings that need more than one case: how the step depends on the batch and on the number of ranks.

If a host has more ranks than cores, only as many ranks as it has cores compute at a time. If there are more threads
than cores, threads wait for each other at the end of every kernel:

    compute = fixed + batch * per_sample,    fixed = kernels * (start + waiting of threads)

The waiting does not depend on the batch, so two batch sizes with the same threads separate it from work; the usual
time of kernel launches is subtracted. With one batch size the cost is unknown, and the finding says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.findings import Change, Finding, Trial, gain_of
from paceline.explain.findings.rules import make
from paceline.measurements.run import Run
from paceline.measurements.summary import Interval, amount_interval, speedup_interval
from paceline.units import SECONDS, format_share

__all__ = ["compare_cases"]

TARGET_SHARE = 0.1
"""A batch is large enough if at most this share of its step does not depend on the batch."""
LARGEST_FACTOR = 16
"""Largest factor between a suggested and a measured batch, which limits the extrapolation."""
START_S = 60e-6
"""Usual time of the kernel launches of one layer, forward and backward, on one thread of a processor."""
UNKNOWN_GAIN = Interval(0.0, float("-inf"), float("inf"))
DRAWS = 1000
Floats = NDArray[np.float64]


def compare_cases(cases: Iterable[CaseEvidence]) -> list[Finding]:
    """Findings on batch size, fixed overhead and number of devices, from cases that differ in one field."""
    good = [case for case in cases if case.result.step_s is not None]
    findings = [_small_batch(case, group) for group in _along(good, "batch") for case in group]
    findings += [_fixed_overhead(case) for case in good]
    findings += [_oversubscribed(case, group) for group in _along(good, "batch", least=1) for case in group]
    for group in _along(good, "ranks", least=1):
        findings += [
            finding for case in group for finding in (_too_few_cores(case, group), _fewer_devices(case, group))
        ]
    return [finding for finding in findings if finding is not None]


def _along(cases: list[CaseEvidence], axis: str, *, least: int = 2) -> list[list[CaseEvidence]]:
    """Groups of at least `least` cases that differ in one field only, ordered by it."""
    groups: dict[tuple[object, ...], list[CaseEvidence]] = defaultdict(list)
    for case in cases:
        groups[_others(case.run, axis)].append(case)
    return [
        sorted(group, key=lambda case: int(getattr(case.run, axis))) for group in groups.values() if len(group) >= least
    ]


def _others(run: Run, axis: str) -> tuple[object, ...]:
    fields = ("network", "cluster", "framework", "strategy", "input", "launcher", "ranks", "batch")
    return tuple(getattr(run, field) for field in fields if field != axis)


def _small_batch(case: CaseEvidence, group: list[CaseEvidence]) -> Finding | None:
    """Part of the step does not shrink with the batch: step = fixed + batch x per_sample.

    With more threads than cores, the finding on threads has priority.
    """
    if _crowding(case) > 1:
        return None
    batches = np.array([float(item.run.batch) for item in group])
    assert case.result.step_s is not None
    batch, step = case.run.batch, case.result.step_s.value
    steps = np.array([item.result.step_s.value for item in group if item.result.step_s])
    fixed, per_sample = (float(value) for value in _line_through(batches, steps))
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
    """The gain of a larger batch; its interval is from lines through random draws of launches."""
    assert case.result.step_s is not None
    value = 1 - after * case.run.batch / case.result.step_s.value
    if any(len(item.launches.steps) < 2 for item in group):
        return Interval(max(0.0, value), float("-inf"), float("inf"))
    drawn = _draws([item.launches.steps for item in group])
    fixed, slope = _line_through(np.array([float(item.run.batch) for item in group]), drawn)
    mine = drawn[:, group.index(case)] / case.run.batch
    low, high = np.quantile(1 - (fixed / wanted + slope) / mine, (0.025, 0.975))
    return Interval(max(0.0, value), min(value, float(low)), max(value, float(high)))


def _enough(batch: int, ratio: float) -> int:
    """The smallest doubling of the batch with a small enough fixed part, or the largest allowed batch."""
    wanted = batch
    while ratio / (ratio + wanted) > TARGET_SHARE and wanted < LARGEST_FACTOR * batch:
        wanted *= 2
    return wanted


def _fixed_overhead(case: CaseEvidence) -> Finding | None:
    """Time before the first layer starts, which does not depend on the batch.

    It is a share of the traced step, because hooks lengthen all of the step. The phase `other` is not part of it: every
    pass runs the same loop, so `other` is the disagreement between passes. With more threads than cores a rank may
    wait for a core before its first layer, so that such cases have no such finding.
    """
    shares = _shares_before(case)
    if not shares or case.result.step_s is None or _crowding(case) > 1:
        return None
    gain = amount_interval(shares)
    before = SECONDS.format(gain.value * case.result.step_s.value)
    return make(
        case,
        "fixed_overhead",
        "Part of every step passes before the network begins",
        evidence=(
            f"{format_share(gain.value)} of every traced step pass before its first layer, {before} of a clean one",
        ),
        gain=gain,
        change=Change("code", _before_words(case.run.framework)),
    )


def _before_words(framework: str) -> str:
    """What may run before the first layer: any code in a user's script, only the framework in Paceline's own loop."""
    if framework.startswith("script"):
        return "profile the training loop itself: logging, checks on weights, callbacks, `.item()` calls"
    return f"profile what {framework} does at the start of a step: the measured loop only clears gradients before it"


def _shares_before(case: CaseEvidence) -> list[float]:
    """Share of each traced step before the first span, for the rank that starts last."""
    steps: dict[tuple[int, int], tuple[float, float]] = {}
    for span in case.spans:
        key = (span.step, span.rank)
        begin, end = steps.get(key, (span.start_s, 0.0))
        steps[key] = min(begin, span.start_s), max(end, span.start_s + span.seconds)
    shares: dict[int, float] = {}
    for (step, _), (begin, end) in steps.items():
        shares[step] = max(shares.get(step, 0.0), begin / end if end > 0 else 0.0)
    return list(shares.values())


def _fewer_devices(case: CaseEvidence, group: list[CaseEvidence]) -> Finding | None:
    """A case has more ranks than another, but no more samples per second."""
    best = _fastest(item for item in group if item.run.ranks < case.run.ranks)
    if best is None or _rate(case) >= _rate(best) or case.ranks_per_host > case.run.machine.cores:
        return None
    return make(
        case,
        "too_many_devices",
        _fewer_title(case, best),
        evidence=(_rates_words(case, best), f"efficiency is {format_share(case.result.efficiency or 0.0)}"),
        gain=_fewer_gain(case, best),
        change=Change("setting", f"devices = [{best.run.ranks}]"),
        trial=Trial(ranks=best.run.ranks),
    )


def _fastest(cases: Iterable[CaseEvidence]) -> CaseEvidence | None:
    return max(cases, key=_rate, default=None)


def _rate(case: CaseEvidence) -> float:
    return case.result.throughput.value if case.result.throughput else 0.0


def _rates_words(case: CaseEvidence, best: CaseEvidence) -> str:
    ranks = case.run.ranks
    return f"{_rate(case):,.1f} samples/s with {ranks} ranks, {_rate(best):,.1f} with {best.run.ranks}"


def _fewer_title(case: CaseEvidence, best: CaseEvidence) -> str:
    """How much faster fewer ranks are; "as fast" only where the launches show no difference."""
    rounds = (best.launches.rounds, case.launches.rounds)
    ratio = speedup_interval(best.launches.throughputs, case.launches.throughputs, rounds=rounds)
    fewer = "1 rank is" if best.run.ranks == 1 else f"{best.run.ranks} ranks are"
    times = f"{ratio.value:.2f} times as fast" if not ratio.low <= 1 <= ratio.high else "as fast"
    return f"{fewer} {times} as {case.run.ranks}"


def _fewer_gain(case: CaseEvidence, best: CaseEvidence) -> Interval:
    rounds = (case.launches.rounds, best.launches.rounds)
    ratio = speedup_interval(case.launches.throughputs, best.launches.throughputs, rounds=rounds)
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low)


def _too_few_cores(case: CaseEvidence, group: list[CaseEvidence]) -> Finding | None:
    """A host has more ranks than cores; `group` differs in the number of ranks only."""
    crowd, cores = case.ranks_per_host, case.run.machine.cores
    if crowd <= cores or _crowding(case) <= 1:
        return None
    best = _fastest(item for item in group if item.ranks_per_host <= cores)
    unknown = "" if best else f"no case of this study has at most {cores} ranks on a host"
    least = f"{_rates_words(case, best)}, which have a core each" if best else unknown
    most = best.run.ranks if best else max(1, case.run.ranks * cores // crowd)
    return make(
        case,
        "too_few_cores",
        f"{crowd} ranks share {cores} cores",
        evidence=(
            f"at most {cores} ranks of a host compute at a time: a rank has {cores / crowd:.2g} of a core",
            least,
        ),
        gain=_fewer_gain(case, best) if best else UNKNOWN_GAIN,
        change=Change("setting", f"devices = [{most}]"),
        trial=Trial(ranks=most),
        first=True,
        unknown=unknown,
    )


def _crowding(case: CaseEvidence) -> float:
    """Compute threads per core of the fullest host; 0 if unknown or if devices are emulated."""
    threads = case.run.machine.threads
    return 0.0 if threads is None or case.is_emulated else threads * case.ranks_per_host / case.run.machine.cores


def _oversubscribed(case: CaseEvidence, batches: Sequence[CaseEvidence]) -> Finding | None:
    """The ranks of a host have more compute threads than the host has cores; `batches` differ in the batch only."""
    crowding = _crowding(case)
    threads, cores, crowd = case.run.machine.threads, case.run.machine.cores, case.ranks_per_host
    fair = max(1, cores // crowd)
    if crowding <= 1 or threads == fair or not case.launches.passes:
        return None
    waiting = _waiting(case, batches)
    plural = "rank" if crowd == 1 else "ranks"
    return make(
        case,
        "oversubscribed_threads",
        f"{crowd} {plural} x {threads} threads share {cores} cores",
        evidence=(
            f"{crowding:.3g} threads for every core: they wait for each other at the end of every kernel",
            _batch_words(case, batches, waiting),
        ),
        gain=gain_of(case, waiting) if waiting else UNKNOWN_GAIN,
        first=True,
        unknown="" if waiting else "one batch size does not tell",
        change=Change("setting", f"protocol.threads = {fair} (OMP_NUM_THREADS={fair})"),
        trial=Trial(threads=fair),
    )


def _batch_words(case: CaseEvidence, batches: Sequence[CaseEvidence], waiting: Interval | None) -> str:
    if waiting is None:
        return (
            "one batch alone does not tell the cost: measure a second one, or try it with `paceline explain --confirm`"
        )
    sizes = ", ".join(str(item.run.batch) for item in batches)
    usual = SECONDS.format(START_S * _num_layers(case))
    return (
        f"{SECONDS.format(waiting.value)} of compute do not depend on the batch ({sizes}), "
        f"beyond the {usual} that starting kernels usually takes"
    )


def _waiting(case: CaseEvidence, batches: Sequence[CaseEvidence]) -> Interval | None:
    """Seconds of compute that do not depend on the batch, minus the usual kernel launches; None with one batch."""
    compute = float(np.median([passes["compute"] for passes in case.launches.passes]))
    if len(batches) < 2 or not all(item.launches.passes for item in batches):
        return None
    sizes = np.array([float(item.run.batch) for item in batches])
    samples = [[passes["compute"] for passes in item.launches.passes] for item in batches]
    usual = START_S * _num_layers(case)
    fixed, _ = _line_through(sizes, np.array([float(np.median(sample)) for sample in samples]))
    value = float(np.clip(fixed - usual, 0.0, compute))
    if min(len(sample) for sample in samples) < 2:
        return Interval(value, float("-inf"), float("inf"))
    drawn, _ = _line_through(sizes, _draws(samples))
    low, high = np.quantile(np.clip(drawn - usual, 0.0, compute), (0.025, 0.975))
    return Interval(value, min(value, float(low)), max(value, float(high)))


def _num_layers(case: CaseEvidence) -> int:
    return len({span.name for span in case.spans if span.phase == "forward"})


def _line_through(batches: Floats, seconds: Floats) -> tuple[Floats, Floats]:
    """Intercept and positive slope of the line through each row of seconds."""
    centred = batches - batches.mean()
    slope = np.maximum(0.0, (seconds * centred).sum(axis=-1) / (centred**2).sum())
    return seconds.mean(axis=-1) - slope * batches.mean(), slope


def _draws(samples: Sequence[Sequence[float]]) -> Floats:
    """Random draws of one launch of each case, one row per draw."""
    random = np.random.default_rng(0)
    return np.stack([random.choice(np.asarray(sample), size=DRAWS) for sample in samples], axis=-1)
