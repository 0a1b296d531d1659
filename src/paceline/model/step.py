"""The terms of one data-parallel step on ranks placed on a cluster, for many draws of the uncertain inputs at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paceline.catalog import Policy
from paceline.cost import recurrence
from paceline.cost.buckets import bucket_bytes, mgwfbp_buckets, optimal_buckets, policy_buckets
from paceline.cost.collective import Fabric, allreduce_parts, chosen_algorithms, gather_parts, parameter_server
from paceline.cost.host import (
    SharingProbe,
    alone_ratio,
    at_once,
    fair_threads,
    meeting_seconds,
    together,
    turns,
    unknown_parallel,
)
from paceline.errors import Unsupported
from paceline.model.calibration import ASSUMED_SLOWDOWN, Calibration
from paceline.model.compute import StepWork
from paceline.model.prediction import TERMS
from paceline.model.sweep import seconds_at

__all__ = [
    "NOMINAL",
    "Factors",
    "Ranks",
    "exchange_algorithms",
    "exchange_seconds",
    "fusion_choices",
    "jitter_of",
    "shared_work",
    "step_terms",
]

Floats = NDArray[np.float64]

COMPRESSED = {"none": 1.0, "float16": 0.5, "1bit": 1 / 32, "powersgd": 1 / 16}
"""Share of bytes that is left on the wire; PowerSGD at rank 4 on convolutional networks."""


MOST_LOST = 0.97
"""Largest share of hidden exchange that compute loses; exchange that delays compute fully is not hidden."""
MOST_RETURNED = 0.5
"""Least share of a backward pass that is left where threads met while it was measured, and no longer do."""


@dataclass(frozen=True)
class Factors:
    """Draws of the uncertain inputs; the first entry is 1, the nominal case."""

    compute: Floats
    bandwidth: Floats
    latency: Floats
    fixed: Floats
    slowdown: Floats
    sharing: Floats
    """Slow-down of ranks that share a host, raised to the spread of each case."""
    waiting: Floats
    """How much the steps of equal devices vary."""


NOMINAL = Factors(*(np.ones(1) for _ in range(7)))
"""Factors without uncertainty."""


@dataclass(frozen=True)
class Ranks:
    """The ranks of one case: distinct devices with their work, how many of each, and the fabric between them."""

    works: tuple[StepWork, ...]
    counts: tuple[int, ...]
    fabric: Fabric
    batch: int
    memory_per_byte: float
    """Seconds per byte of the slowest device's memory; 0 if not known."""
    input_s: tuple[float, float] = (0.0, 0.0)
    """io and h2d of one batch on the host where they take longest."""
    accumulate: int = 1
    element_share: float = 1.0
    """Bytes on the wire per byte of the profile's gradients, from a reduced precision of the exchange."""
    straggle: tuple[float, float] = (0.0, 1.0)
    """Probability that some rank slows a step down, and by which factor."""
    cores: int | None = None
    """Cores of the one host on which all ranks compute; none if there are several, or the devices are no processors."""
    threads: int = 1
    """Compute threads of each rank on these cores."""
    shared_spread: float = 0.0
    """Standard deviation of the log of what ranks of a host cost each other."""

    @property
    def turns(self) -> float:
        """Slowdown of a thread relative to a dedicated core, because ranks are time-sliced."""
        return turns(self.fabric.ranks, self.cores)

    @property
    def full(self) -> bool:
        """Whether compute occupies all cores, so that an exchange takes its time from compute."""
        return self.cores is not None and self.fabric.ranks * self.threads >= self.cores

    @property
    def lead(self) -> StepWork:
        """The work of the slowest device."""
        return max(self.works, key=lambda work: work.compute)


def shared_work(
    work: StepWork, ranks: int, threads: int, *, cores: int, probes: tuple[SharingProbe, ...]
) -> tuple[StepWork, float]:
    """The work with other numbers of threads and of ranks on the host than measured, and the standard deviation of the
    logarithm of the change."""
    before = work.threads or fair_threads(cores, work.crowd)
    parallel, unsure = (work.parallel, 0.0) if work.parallel is not None else unknown_parallel(before, threads)
    stretch, spread = together(ranks, threads, cores, parallel=parallel, probes=probes)
    was, _ = together(work.crowd, before, cores, parallel=parallel, probes=probes)
    factor = alone_ratio(parallel, before, threads) * stretch / was
    waits, waits_spread = _waits(work, ranks, threads, cores=cores, probes=probes)
    longer = max(MOST_RETURNED, 1 + waits / (factor * float(work.backward.sum())))
    changed = replace(
        work, forward=work.forward * factor, backward=work.backward * factor * longer, update=work.update * factor,
        before=work.before * factor,
    )  # fmt: skip
    if (ranks, threads) == (work.crowd, before):
        return changed, unsure
    share = max(0.0, waits) / (changed.compute + changed.update)
    return changed, math.hypot((1 - share) * math.hypot(spread, unsure), share * waits_spread)


def _waits(
    work: StepWork, ranks: int, threads: int, *, cores: int, probes: tuple[SharingProbe, ...]
) -> tuple[float, float]:
    """Seconds of a step in which threads that meet wait for a core, more than while it was measured, and the standard
    deviation of their log."""
    before = work.threads or fair_threads(cores, work.crowd)
    now, spread = meeting_seconds(ranks, threads, cores, probes=probes)
    was, _ = meeting_seconds(work.crowd, before, cores, probes=probes)
    return work.meetings * (now - was), spread


def _buckets(policy: Policy, work: StepWork, cost: Callable[[ArrayLike], Floats]) -> list[int]:
    """Index of the last gradient of each bucket under a framework's policy; `cost` is that of one exchange."""
    ready = np.cumsum(work.backward).tolist()
    return policy_buckets(policy, work.gradients.tolist(), ready, cost, layers=work.layer.tolist())


def fusion_choices(ranks: Ranks, policy: Policy, calibration: Calibration) -> dict[str, tuple[int, float]]:
    """Number of exchanges and exposed seconds under the policy, under MG-WFBP's rule, and at the exact optimum.

    Slowdown of backward by hidden communication is ignored, so that only the buckets differ.
    Empty where fusion has no choice: one rank, no overlap, servers, shards, or gradients in order of priority.
    """
    whole = policy.aggregation == "allreduce" and policy.overlap and policy.order != "priority"
    if ranks.fabric.ranks == 1 or not whole:
        return {}
    lead = ranks.lead
    sizes = lead.gradients
    ready = np.max([np.cumsum(work.backward) for work in ranks.works], axis=0)
    pace, full = calibration.overlap_rate, _nominal(ranks, policy, calibration)

    def cost(size: ArrayLike) -> Floats:
        return full(size) / pace

    small, large = cost(np.array([1.0, 1.0 + sizes.sum()]))
    per_byte = float(large - small) / float(sizes.sum())
    choices = {
        "policy": _buckets(policy, lead, full),
        "mgwfbp": mgwfbp_buckets(sizes.tolist(), ready.tolist(), startup=float(small), per_byte=per_byte),
        "optimal": optimal_buckets(sizes, ready.tolist(), cost),
    }
    return {
        name: (len(last), pace * float(recurrence.exposed_fifo(ready[last], cost(bucket_bytes(sizes, last)))))
        for name, last in choices.items()
    }


def _share(ranks: Ranks, policy: Policy) -> float:
    return COMPRESSED[policy.compression] * ranks.element_share


def _nominal(ranks: Ranks, policy: Policy, calibration: Calibration) -> Callable[[ArrayLike], Floats]:
    """Seconds of one exchange by the bytes of its gradients, with nothing uncertain."""

    def cost(size: ArrayLike) -> Floats:
        sizes = np.asarray(size, dtype=np.float64) * _share(ranks, policy)
        return np.asarray(_comm(ranks, policy, calibration, sizes=sizes, factors=NOMINAL)[0])

    return cost


def exchange_seconds(ranks: Ranks, policy: Policy, calibration: Calibration) -> float:
    """Seconds of all exchanges of one step, hidden or not."""
    cost = _nominal(ranks, policy, calibration)
    return float(cost(bucket_bytes(ranks.lead.gradients, _buckets(policy, ranks.lead, cost))).sum())


def exchange_algorithms(ranks: Ranks, policy: Policy, calibration: Calibration) -> list[str]:
    """How each exchange of a step is done, one word each: an algorithm, `servers`, or `swept` if a sweep measured
    it."""
    last = _buckets(policy, ranks.lead, _nominal(ranks, policy, calibration))
    if policy.aggregation == "parameter_server":
        return ["servers"] * len(last)
    swept = "reduce_scatter" if policy.shard_stage == 3 else "all_reduce"
    if any(fit.operation == swept for fit in calibration.collectives):
        return ["swept"] * len(last)
    if policy.shard_stage == 3 or (policy.shard_stage and policy.algorithm is None):
        return ["ring"] * len(last)
    slow = ranks.fabric.slowed(1.0, 1 / calibration.reach.value)
    sizes = np.asarray(bucket_bytes(ranks.lead.gradients, last)) * _share(ranks, policy)
    return chosen_algorithms(slow, sizes, policy.algorithm)


def jitter_of(ranks: Ranks, calibration: Calibration) -> float:
    """Deviation of a rank's step, as a share of it: the calibrated one, or that of the least steady device."""
    return max(work.jitter for work in ranks.works) if calibration.jitter is None else calibration.jitter


def _expected_slowest(ranks: int, jitter: float) -> float:
    """Expected excess of the slowest of P normal step times, as a share of the mean (Blom's approximation)."""
    return float(jitter * NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)))


def step_terms(ranks: Ranks, policy: Policy, calibration: Calibration, factors: Factors) -> dict[str, Floats]:
    """Seconds of every term, one entry per draw; they sum to the step."""
    terms = {name: np.zeros_like(factors.compute) for name in TERMS}
    factors = replace(factors, compute=factors.compute * factors.sharing**ranks.shared_spread)
    easier = min(1.0, _crowding(ranks, calibration))
    mean_forward, mean_backward, slowest = _compute(ranks, factors, easier=easier)
    terms["forward"], terms["backward"] = mean_forward, mean_backward
    count = ranks.fabric.ranks
    parts = count if policy.shard_stage else 1  # every rank updates its own shard of the parameters
    terms["update"] = factors.compute * easier * max(work.update for work in ranks.works) / parts
    if count > 1:
        if policy.aggregation == "none":
            raise Unsupported(
                "this framework's policy aggregates nothing, so it runs on one device only",
                hint="choose another framework or mode; `paceline catalog` lists them",
            )
        _add_distributed(terms, ranks, policy, calibration=calibration, factors=factors)
        if policy.synchrony == "asynchronous":
            _without_barrier(terms, ranks)
            _add_input(terms, ranks.input_s, overlapped=policy.input_overlap)
            return terms
    spread = _expected_slowest(count, jitter_of(ranks, calibration))
    late = factors.waiting * spread + ranks.straggle[0] * (ranks.straggle[1] - 1)
    terms["waiting"] = np.maximum(slowest - mean_forward - mean_backward, 0.0) + slowest * late
    _add_input(terms, ranks.input_s, overlapped=policy.input_overlap)
    return terms


def _without_barrier(terms: dict[str, Floats], ranks: Ranks) -> None:
    """Asynchronous ranks do not wait: the mean step is the harmonic mean of the devices' own steps."""
    weights = np.asarray(ranks.counts, dtype=np.float64) / sum(ranks.counts)
    times = np.asarray([work.compute for work in ranks.works])
    share = float(1 / (weights @ (1 / times)) / (weights @ times))
    terms["forward"] = terms["forward"] * share
    terms["backward"] = terms["backward"] * share


def _compute(ranks: Ranks, factors: Factors, *, easier: float) -> tuple[Floats, Floats, Floats]:
    """Mean forward and backward over the devices, and the compute of the slowest."""
    weights = np.asarray(ranks.counts, dtype=np.float64) / sum(ranks.counts)
    scale = factors.compute * ranks.accumulate * easier
    forward = scale * float(weights @ [work.start for work in ranks.works])
    backward = scale * float(weights @ [work.backward.sum() for work in ranks.works])
    return forward, backward, scale * max(work.compute for work in ranks.works)


def _add_distributed(
    terms: dict[str, Floats], ranks: Ranks, policy: Policy, *, calibration: Calibration, factors: Factors
) -> None:
    lead = ranks.lead
    last = _buckets(policy, lead, _nominal(ranks, policy, calibration))
    sizes = np.asarray(bucket_bytes(lead.gradients, last)) * _share(ranks, policy)
    comm = _comm(ranks, policy, calibration, sizes=sizes, factors=factors)
    if policy.block_samples:
        comm = comm / max(1.0, policy.block_samples / ranks.batch)
    pace = calibration.overlap_rate if policy.overlap else 1.0
    exposed = pace * _exposed(ranks, policy, lead, last=last, comm=comm / pace, factors=factors, slower=np.ones(1))
    # Without a measurement: compute on all cores leaves no core for an exchange.
    known = calibration.slowdown != ASSUMED_SLOWDOWN or not ranks.full
    share = np.minimum(calibration.slowdown.value * factors.slowdown if known else MOST_LOST, MOST_LOST)
    lost = share * np.maximum(comm.sum(axis=-1) - exposed, 0.0)
    crowded = max(0.0, _crowding(ranks, calibration) - 1)
    slower = 1 + crowded + lost / np.maximum(factors.compute * float(lead.backward.sum()), 1e-12)
    # A slower backward pass hides more of the exchange. During compute the exchange runs at `pace`; the part that
    # remains after the backward pass runs at full speed.
    terms["aggregate"] = pace * _exposed(
        ranks, policy, lead, last=last, comm=comm / pace, factors=factors, slower=slower
    )
    work = ranks.accumulate * lead.compute + lead.update
    terms["slowdown"] = lost + crowded * factors.compute * work
    per_gradient = calibration.fixed_per_gradient.value * lead.num_gradients
    per_byte = ranks.memory_per_byte if calibration.copy_per_byte is None else calibration.copy_per_byte
    terms["fixed"] = (
        ranks.turns * factors.fixed * (per_gradient + calibration.fixed_copies.value * lead.total_bytes * per_byte)
    )


def _crowding(ranks: Ranks, calibration: Calibration) -> float:
    """Ratio of compute with this case's neighbouring ranks to compute with those of the profile."""
    crowd = max(work.crowd for work in ranks.works)
    local, before = (at_once(count, ranks.threads, ranks.cores) for count in (ranks.fabric.local, crowd))
    return (1 + calibration.crowding * (local - 1)) / (1 + calibration.crowding * (before - 1))


def _exposed(
    ranks: Ranks, policy: Policy, lead: StepWork, *, last: list[int], comm: Floats, factors: Factors, slower: Floats
) -> Floats:
    """Exposed aggregation: the time from the end of the slowest device's compute to the end of the last exchange."""
    if not policy.overlap and policy.shard_stage != 3:
        return recurrence.exposed_none(comm)
    scale = (factors.compute * slower)[:, None]
    if policy.shard_stage == 3 or policy.order == "priority":
        ready = scale * np.max([recurrence.bucket_ready(work.backward, last) for work in ranks.works], axis=0)
        forward = scale * np.add.reduceat(lead.forward, np.append(0, np.asarray(last[:-1], dtype=np.int64) + 1))
        if policy.shard_stage != 3:
            return recurrence.exposed_priority(ready, comm, forward)
        third = comm / 3
        ahead, behind = recurrence.exposed_sharded(forward, ready, gather=third, scatter=third, overlap=policy.overlap)
        return ahead + behind
    return recurrence.exposed_fifo(_ready(ranks, last, factors, slower), comm)


def _ready(ranks: Ranks, last: list[int], factors: Factors, slower: Floats) -> Floats:
    """When the slowest device has each bucket, since the step began; `slower` stretches backward."""
    before = ranks.accumulate - 1
    rows = [
        before * work.compute + work.start + slower[:, None] * recurrence.bucket_ready(work.backward, last)
        for work in ranks.works
    ]
    ready: Floats = factors.compute[:, None] * np.max(rows, axis=0)
    return ready


def _comm(ranks: Ranks, policy: Policy, calibration: Calibration, *, sizes: Floats, factors: Factors) -> Floats:
    """Seconds of each bucket's exchange, draws first."""
    fabric, cores = ranks.fabric, ranks.cores
    if policy.aggregation != "parameter_server":
        name = "reduce_scatter" if policy.shard_stage == 3 else "all_reduce"
        swept = seconds_at(calibration.collectives, name, fabric.ranks, sizes, cores=cores)
        if swept is not None:
            times = 3.0 if policy.shard_stage == 3 else 1.0
            return times * swept[0][None, :] * factors.bandwidth[:, None]
    # NCCL's own latencies contain its software.
    slow = fabric.slowed(1.0 if fabric.nccl else calibration.latency.value, 1 / calibration.reach.value)
    late, wide = _parts(slow, policy, sizes)
    return turns(fabric.ranks, cores) * (
        late[None, :] * factors.latency[:, None] + wide[None, :] * factors.bandwidth[:, None]
    )


def _parts(fabric: Fabric, policy: Policy, sizes: Floats) -> tuple[Floats, Floats]:
    """Seconds of each exchange that wait for latencies, and seconds that carry bytes."""
    if policy.aggregation == "parameter_server":
        servers = policy.servers or 0
        late = parameter_server(fabric.slowed(1.0, 0.0), sizes, servers=servers)
        return late, parameter_server(fabric.slowed(0.0, 1.0), sizes, servers=servers)
    if policy.shard_stage == 3 or (policy.shard_stage and policy.algorithm is None):
        times = 3 if policy.shard_stage == 3 else 2
        late, wide = gather_parts(fabric, sizes)
        return times * late, times * wide
    return allreduce_parts(fabric, sizes, policy.algorithm)


def _add_input(terms: dict[str, Floats], input_s: tuple[float, float], *, overlapped: bool) -> None:
    """Input overlaps with the rest of the step if the next batch is prefetched."""
    total = sum(input_s)
    if total <= 0:
        return
    rest = sum(terms.values(), np.zeros_like(terms["forward"]))
    exposed = np.maximum(total - rest, 0.0) if overlapped else np.full_like(rest, total)
    terms["io"] = exposed * (input_s[0] / total)
    terms["h2d"] = exposed * (input_s[1] / total)
