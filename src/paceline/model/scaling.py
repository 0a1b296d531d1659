"""From a question to a curve: step time, throughput and efficiency over numbers of devices, with intervals.

Uncertain inputs are drawn together (a draw is the same for every number of devices); the recurrence runs over all draws
at once. Fixing one input at a time shows which measurement would narrow the interval most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from paceline.catalog import Policy, framework, resolve
from paceline.catalog.clusters import parse_hosts_expression
from paceline.catalog.devices import device_by_alias
from paceline.errors import InputError
from paceline.model.calibration import CATALOG_ONLY, Calibration
from paceline.model.compute import StepWork
from paceline.model.measured.names import normal
from paceline.model.measured.points import Series
from paceline.model.prediction import Curve, Prediction, doublings, estimate, knee_of
from paceline.model.question import (
    Question,
    check_question,
    cores_words,
    memory_use,
    precision_of,
    ranks_of,
    works_of,
)
from paceline.model.step import NOMINAL, Factors, Ranks, exchange_algorithms, fusion_choices, step_terms
from paceline.model.sweep import seconds_at
from paceline.spec.cluster import place
from paceline.units import BYTES

__all__ = [
    "basis_of",
    "draw_factors",
    "exchange_of",
    "exchange_words",
    "predict_curve",
    "spreads_of",
    "updated_by_points",
    "with_global_batch",
]

Floats = NDArray[np.float64]

NUM_DRAWS = 400
POINT_NOISE = 0.05
"""Standard deviation of the log of a measured throughput."""
EXCHANGES = {
    "double_tree": "double binary tree",
    "nvls": "sums in the NVSwitch (NVLS)",
    "servers": "parameter servers",
    "swept": "collectives as the sweep measured them",
}
"""Display names of algorithms whose setting is not descriptive."""
ADVICE = {
    "compute": "profile one step on one device (a capture, or `paceline run` on one rank) and predict from it",
    "bandwidth": "sweep the collective on the real link (`paceline bench-collectives`) and calibrate with it",
    "latency": "sweep the collective on the real link, small sizes included, and calibrate with it",
    "fixed": "run two devices once and calibrate with it: the fixed cost of being distributed is only assumed",
    "sharing": "sweep this number of ranks on this host (`paceline bench-collectives --ranks N`) and calibrate with it",
    "slowdown": "run two devices once with and without overlap: the slowdown under communication is only assumed",
    "waiting": "run two devices once and calibrate with it: how much their steps vary is only assumed",
}

ADVICE_MEASURED = {
    "compute": "profile again with more steps and launches on a quiet machine: the profile's own spread weighs most",
    "bandwidth": "sweep the collective again at this number of ranks and these sizes: the sweep's spread weighs most",
    "latency": "sweep the collective again at this number of ranks and small sizes: the sweep's spread weighs most",
}
"""Advice if the input was already measured."""


def predict_curve(
    question: Question,
    devices: tuple[int, ...],
    *,
    calibration: Calibration = CATALOG_ONLY,
    knee_gain: float = 0.5,
    seed: int = 0,
) -> Curve:
    """Predictions for each number of devices, smallest first."""
    counts = tuple(sorted(set(devices)))
    _check_shares(question, counts)
    policy, works = resolve(question.framework, question.strategy), works_of(question)
    doubled = doublings(1, min(question.cluster.num_devices, question.global_batch or question.cluster.num_devices))
    ranks = {
        count: ranks_of(_question_on(question, count), count, calibration, works) for count in {1, *counts, *doubled}
    }
    largest = ranks[counts[-1]]
    every = tuple(work(largest.batch) for work in works.values())
    spreads = spreads_of(every, counts[-1], calibration)
    factors = draw_factors(spreads, seed)
    steps = {count: step_terms(ranks[count], policy, calibration, factors) for count in {1, *counts}}
    predictions = tuple(_prediction(question, count, steps) for count in counts)
    fusion = fusion_choices(largest, policy, calibration)
    return Curve(
        label=question.label,
        predictions=predictions,
        knee=knee_of(doubled, [_nominal_rate(ranks[count], policy, calibration) for count in doubled], gain=knee_gain),
        knee_gain=knee_gain,
        advice=_advice(question, largest, policy, calibration=calibration, spreads=spreads, seed=seed),
        basis=basis_of(question, calibration, every),
        notes=tuple(
            dict.fromkeys(
                [
                    *(words for count in counts if (words := cores_words(question, count))),
                    *_share_notes(question, counts),
                ]
            )
        ),
        detail={
            "precision": precision_of(question),
            "memory": memory_use(_question_on(question, counts[0]), counts[0]),
            "exchange": exchange_words({count: ranks[count] for count in counts}, policy, calibration),
            "policy": policy.model_dump(mode="json", exclude_none=True),
            "fusion": {name: {"exchanges": count, "exposed_s": seconds} for name, (count, seconds) in fusion.items()},
        },
    )


def with_global_batch(question: Question, samples: int | None, batch: int | str | None) -> Question:
    """The question with these samples per step of all devices; `batch` is what was asked for each device."""
    if samples is not None and batch is not None:
        raise InputError(f"batch {batch} per device and global batch {samples}: expected one of them")
    if samples is not None and samples < 1:
        raise InputError(f"a global batch of {samples} is no batch", hint="a batch is at least 1 sample")
    return replace(question, global_batch=samples, assumed=question.assumed and samples is None)


def _question_on(question: Question, count: int) -> Question:
    """The question with the samples that a number of devices leaves for each of them: the largest share."""
    if question.global_batch is None:
        return question
    return replace(question, batch=-(-question.global_batch // (count * question.strategy.accumulate)))


def _check_shares(question: Question, counts: tuple[int, ...]) -> None:
    """Refuse what cannot be answered: each device needs a sample, and memory for its share."""
    if question.global_batch is None:
        check_question(question, counts)
        return
    passes, most = question.strategy.accumulate, question.cluster.num_devices
    if counts and question.global_batch < counts[-1] * passes:
        asked = f"a global batch of {question.global_batch} for {counts[-1]} devices"
        more = f" and {passes} passes" if passes > 1 else ""
        hint = "ask for fewer devices, or for a larger global batch"
        raise InputError(f"{asked}{more}: each needs a sample", hint=hint)
    check_question(replace(question, batch=1), counts)
    for count in counts:
        refused = _refused(question, count)
        if refused is not None:
            fits = next((f"from {more} on" for more in doublings(1, most) if not _refused(question, more)), "on none")
            hint = (
                f"numbers of devices whose shares fit: {fits}; --set strategy.accumulate=2 divides a step into passes"
            )
            raise InputError(f"{count} device{'s' * (count > 1)}: {refused.message}", hint=hint)


def _refused(question: Question, count: int) -> InputError | None:
    """The reason why the share of each of these devices cannot be trained; None if it can."""
    try:
        check_question(_question_on(question, count), (count,))
    except InputError as error:
        return error
    return None


def _share_notes(question: Question, counts: Sequence[int]) -> list[str]:
    """The samples of each device at each number of devices; none without a global batch."""
    if question.global_batch is None:
        return []
    each = [(count, _question_on(question, count).batch) for count in counts]
    said = ", ".join(f"{batch} on {count}" for count, batch in each)
    passes = question.strategy.accumulate
    uneven = any(batch * count * passes != question.global_batch for count, batch in each)
    notes = [f"samples per device: {said} devices" + "; the largest share, where it does not divide" * uneven]
    if _refused(question, 1):
        notes.append("efficiency: one device does not hold the whole batch; its step is predicted as if it did")
    return notes


def exchange_of(question: Question, counts: Sequence[int], calibration: Calibration = CATALOG_ONLY) -> str:
    """How the gradients of a question are exchanged at each number of devices."""
    works, policy = works_of(question), resolve(question.framework, question.strategy)
    return exchange_words({n: ranks_of(question, n, calibration, works) for n in counts}, policy, calibration)


def exchange_words(ranks: dict[int, Ranks], policy: Policy, calibration: Calibration) -> str:
    """The exchange algorithm at each number of devices, and its source; empty without exchange."""
    how: dict[str, list[int]] = {}
    for count, here in sorted(ranks.items()):
        if count > 1 and policy.aggregation != "none":
            how.setdefault(_messages(exchange_algorithms(here, policy, calibration)), []).append(count)
    if not how:
        return ""
    said = "; ".join(f"{words} at {', '.join(map(str, counts))}" for words, counts in how.items())
    nccl = any(here.fabric.nccl for here in ranks.values())
    if policy.algorithm is None and nccl and not policy.shard_stage and not calibration.collectives:
        return f"{said} devices: what NCCL expects to end first; strategy.algorithm names another"
    return f"{said} devices"


def _messages(algorithms: Sequence[str]) -> str:
    """`ring for 2, tree for 5 of 7 messages`, or one word if all are equal."""
    counts = Counter(algorithms)
    if len(counts) == 1:
        return EXCHANGES.get(algorithms[0], algorithms[0])
    parts = ", ".join(f"{EXCHANGES.get(name, name)} for {count}" for name, count in counts.most_common())
    return f"{parts} of {len(algorithms)} messages"


def spreads_of(works: Sequence[StepWork], largest: int, calibration: Calibration) -> dict[str, float]:
    """Standard deviation of the log of every uncertain input, for up to `largest` devices."""
    bandwidth, latency = calibration.reach.spread, calibration.latency.spread
    swept = seconds_at(calibration.collectives, "all_reduce", max(2, largest), np.array([1e6]))
    if swept is not None:
        bandwidth = latency = swept[1]
    return {
        "compute": max(work.spread for work in works),
        "bandwidth": bandwidth,
        "latency": latency,
        "fixed": calibration.fixed_per_gradient.spread,
        "slowdown": calibration.slowdown.spread,
        "sharing": 1.0,
        "waiting": max(work.jitter_spread for work in works) if calibration.jitter is None else 0.0,
    }


def draw_factors(spreads: dict[str, float], seed: int) -> Factors:
    """Draws of all uncertain inputs together; the first draw is nominal."""
    rng = np.random.default_rng(seed)
    draws = {name: np.exp(spread * rng.standard_normal(NUM_DRAWS)) for name, spread in sorted(spreads.items())}
    for values in draws.values():
        values[0] = 1.0
    return Factors(**draws)


def updated_by_points(
    question: Question, series: Sequence[Series], spreads: dict[str, float], *, calibration: Calibration, seed: int
) -> tuple[Factors, str]:
    """Draws moved towards measured throughputs of the question's network on its cluster, and one line about it.

    Evensen's ensemble Kalman update of the logarithms: x + C_xy (C_yy + R)^-1 (measured + noise - predicted).
    """
    points = _points_of(question, series)
    prior, policy, works = (
        draw_factors(spreads, seed),
        resolve(question.framework, question.strategy),
        works_of(question),
    )
    steps, measured = [], []
    for count, batch, rate in points:
        ranks = ranks_of(replace(question, batch=batch), count, calibration, works)
        steps.append(np.log(sum(step_terms(ranks, policy, calibration, prior).values(), np.zeros(NUM_DRAWS))))
        measured.append(np.log(batch * question.strategy.accumulate * count / rate))
    x, y = np.log(np.array(list(vars(prior).values()))), np.array(steps)
    noise = POINT_NOISE * np.random.default_rng(seed + 1).standard_normal(y.shape)
    noise[:, 0] = 0.0
    both = np.cov(np.vstack([x, y]))
    gain = both[: len(x), len(x) :] @ np.linalg.inv(both[len(x) :, len(x) :] + POINT_NOISE**2 * np.eye(len(y)))
    moved = np.exp(x + gain @ (np.array(measured)[:, None] + noise - y))
    ratio = float(np.exp(np.median(np.array(measured) - y[:, 0])))
    note = f"{len(points)} measured points: a step takes {ratio:.2f} of what was predicted without them"
    return Factors(**dict(zip(vars(prior), moved, strict=True))), note


def _points_of(question: Question, series: Sequence[Series]) -> list[tuple[int, int, float]]:
    """Number of devices, samples per device and samples per second of every point that the question can have."""
    alike = [one for one in series if normal(one.network) == normal(question.subject)]
    most = question.cluster.num_devices
    points = [
        (round(count), round(one.batch or question.batch), float(rate))
        for one in alike
        for count, rate in zip(one.devices, one.samples_per_s, strict=True)
        if count <= most
    ]
    if not points:
        names = ", ".join(sorted({one.network for one in series}))
        raise InputError(
            f"no measured point is of {question.subject} on at most {most} devices: the points are of {names}",
            hint="give points of this network, measured on this cluster",
        )
    return points


def _prediction(question: Question, count: int, steps: dict[int, dict[str, Floats]]) -> Prediction:
    step = sum(steps[count].values(), np.zeros(NUM_DRAWS))
    single = sum(steps[1].values(), np.zeros(NUM_DRAWS))
    batch = _question_on(question, count).batch
    samples = question.global_batch or batch * question.strategy.accumulate * count
    times = 1 if question.global_batch else count  # as many samples as one device would have trained
    placed = place(question.cluster, count)
    prices = [rank.device.price for rank in placed]
    hourly = sum(price for price in prices if price) if all(price is not None for price in prices) else None
    return Prediction(
        devices=count,
        batch_per_device=batch,
        step_s=estimate(float(step[0]), step),
        samples_per_s=estimate(samples / float(step[0]), samples / step),
        efficiency=times / count * float(single[0] / step[0]),
        speed_up=estimate(times * float(single[0] / step[0]), times * single / step),
        terms={name: float(values[0]) for name, values in steps[count].items()},
        cost=None if hourly is None else hourly / 3600 * float(step[0]) / samples * 1e6,
    )


def _nominal_rate(ranks: Ranks, policy: Policy, calibration: Calibration) -> float:
    """Samples per second of all ranks."""
    terms = step_terms(ranks, policy, calibration, NOMINAL)
    return ranks.batch * sum(ranks.counts) / sum(float(values[0]) for values in terms.values())


def _advice(
    question: Question,
    ranks: Ranks,
    policy: Policy,
    *,
    calibration: Calibration,
    spreads: dict[str, float],
    seed: int,
) -> str:
    """The input whose own uncertainty moves the largest case most."""
    widths = {}
    for name in spreads:
        alone = {other: (spread if other == name else 0.0) for other, spread in spreads.items()}
        terms = step_terms(ranks, policy, calibration, draw_factors(alone, seed))
        widths[name] = float(np.std(np.log(sum(terms.values(), np.zeros(NUM_DRAWS)))))
    widest = max(widths, key=lambda key: widths[key])
    return ADVICE_MEASURED[widest] if _is_measured(question, calibration, widest) else ADVICE[widest]


def _is_measured(question: Question, calibration: Calibration, name: str) -> bool:
    """Whether this input was measured already, so that only a better measurement helps."""
    if name == "compute":
        device = question.cluster.hosts[0].devices[0].name
        profile = question.profile
        if profile is None or profile.is_outline:
            return False
        return profile.device is None or device in (profile.device, device_by_alias(profile.device))
    return name in ("bandwidth", "latency") and bool(calibration.collectives)


def basis_of(question: Question, calibration: Calibration, works: Sequence[StepWork]) -> tuple[str, ...]:
    """The sources of a prediction, one line each."""
    policy = resolve(question.framework, question.strategy)
    overlap = "overlapped with backward" if policy.overlap else "after backward"
    usual = "the buckets that end earliest" if policy.fusion == "optimal" else f"one exchange per {policy.fusion}"
    fused = f"buckets of {BYTES.format(policy.bucket)}" if policy.bucket else usual
    rule = f"{framework(question.framework)} {policy.version}: {policy.aggregation}, {fused}, {overlap}"
    batch = f"batch {question.batch} per device: assumed, as none was given (--batch)"
    links = _assumed_links(question)
    return (*sorted({work.basis for work in works}), rule, calibration.source, *links, *[batch] * question.assumed)


def _assumed_links(question: Question) -> list[str]:
    """What a cluster that is written as its devices does not state: the link inside a host, the ports of a host."""
    host, several = question.cluster.hosts[0], len(question.cluster.hosts) > 1
    written = parse_hosts_expression(question.cluster.name)
    if written is None or written.count * written.hosts == 1:
        return []
    inside = [f"{host.inside.name} inside a host"] if written.count > 1 else []
    between = [f"{host.nics} port{'s' * (host.nics > 1)} of {host.link.name} for each host"] if several else []
    how = f'; "over {2 * host.nics}x {host.link.name}" states others' if several else ""
    return [f"assumed links: {', '.join([*inside, *between])}{how}"]
