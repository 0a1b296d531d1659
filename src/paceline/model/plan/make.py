"""A plan for a cluster: its devices, and the best strategies, priced by the same step time that a prediction has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.catalog import resolve
from paceline.cost.collective import Endpoint, endpoint_of
from paceline.cost.split import Cost, split_batch
from paceline.errors import InputError
from paceline.model.calibration import CATALOG_ONLY, Calibration
from paceline.model.compute import StepWork, WorkAt, in_chunks
from paceline.model.everyday import PlannedRun, everyday_of
from paceline.model.measured.points import Series
from paceline.model.plan.search import (
    Candidate,
    Group,
    GroupStep,
    PlannedDevice,
    asynchrony_sentence,
    exchange_seconds_of,
    ranked_candidates,
    throughputs,
)
from paceline.model.prediction import Estimate, estimate
from paceline.model.question import (
    Question,
    check_workload,
    cores_words,
    device_key,
    largest_batches,
    memory_bytes,
    precision_of,
    ranks_with,
    shared_works,
    works_of,
)
from paceline.model.scaling import basis_of, draw_factors, exchange_words, spreads_of, updated_by_points
from paceline.model.step import Factors, Ranks, step_terms
from paceline.model.sweep import seconds_at
from paceline.spec.cluster import Device, place

__all__ = ["Plan", "make_plan"]

SHOWN = 5
BASELINE = "pytorch/ddp"
"""The framework of training without a plan, with equal shares."""
SWEPT_BYTES = 16e6
"""Size of a message that sweeps measure accurately, from which the rate of a link is taken."""

Floats = NDArray[np.float64]
NO_JOB = PlannedRun()


@dataclass(frozen=True)
class DeviceLoad:
    """The load of one device, or of several equal devices of a host."""

    host: str
    device: str
    count: int
    samples: int
    """Samples of each device and step."""
    passes: int
    """Forward and backward passes whose gradients are summed; more than one where the samples do not fit at once."""
    memory: float | None
    """Bytes of one pass; none where the network's layers are not known."""
    capacity: float | None


@dataclass(frozen=True)
class Baseline:
    """Equal shares under DistributedDataParallel, and the gain of the best plan over it."""

    throughput: Estimate
    gain: Estimate
    """The plan's throughput over the baseline's, less 1."""
    passes: int
    """Passes of the device that needs most."""


@dataclass(frozen=True)
class Plan:
    """The ranked strategies, best first, and the sources of their predictions."""

    network: str
    cluster: str
    global_batch: int
    devices: tuple[PlannedDevice, ...]
    ranked: tuple[Candidate, ...]
    basis: tuple[str, ...] = ()
    precision: str = ""
    """The precision of compute, and the reason."""
    exchange: str = ""
    """How the best plan exchanges gradients."""
    baseline: Baseline | None = None
    """Plain DDP on the same devices; none where the batch has fewer samples than devices."""
    loads: tuple[DeviceLoad, ...] = ()
    """The load of each device in the best plan."""
    asynchrony: str = ""
    """Whether asynchrony pays, in one sentence."""
    everyday: dict[str, Any] = field(default_factory=dict)
    """The best plan's throughput in everyday units."""

    @property
    def best(self) -> Candidate:
        """The best candidate."""
        return self.ranked[0]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, best first, for JSON."""
        return {
            "network": self.network,
            "cluster": self.cluster,
            "global_batch": self.global_batch,
            "precision": self.precision,
            "exchange": self.exchange,
            "basis": list(self.basis),
            "asynchrony": self.asynchrony,
            "baseline": None if self.baseline is None else _plain_baseline(self.baseline),
            "loads": [vars(load) for load in self.loads],
            "everyday": self.everyday,
            "candidates": [self._plain(candidate) for candidate in self.ranked],
        }

    def _plain(self, candidate: Candidate) -> dict[str, Any]:
        groups = [
            [{"rank": i, "device": self.devices[i].name, "samples": n} for i, n in zip(group, shares, strict=True)]
            for group, shares in zip(candidate.groups, candidate.shares, strict=True)
        ]
        plain = {name: getattr(candidate, name) for name in _PLAIN}
        for level in ("interval_50", "interval_90"):
            low, high = getattr(candidate, level)
            plain[level] = [low, high]
            plain[f"step_s_{level}"] = [self.global_batch / high, self.global_batch / low]
        return {**plain, "predicted_step_s": candidate.predicted_step, "groups": groups}


def _plain_baseline(baseline: Baseline) -> dict[str, Any]:
    plain: dict[str, Any] = {"framework": BASELINE, "passes": baseline.passes}
    for name, one in (("throughput", baseline.throughput), ("gain", baseline.gain)):
        plain |= {name: one.value, f"{name}_interval_90": list(one.interval_90)}
    return plain


_PLAIN = (
    "kind", "local_steps", "quorum", "predicted_throughput", "predicted_utilisation", "staleness", "efficiency",
    "reason",
)  # fmt: skip


def make_plan(
    question: Question,
    *,
    global_batch: int | None = None,
    calibration: Calibration = CATALOG_ONLY,
    measured: Sequence[Series] = (),
    shown: int = SHOWN,
    seed: int = 0,
    job: PlannedRun = NO_JOB,
) -> Plan:
    """Search, rank, and keep the best few that differ.

    `question` contains network or profile, cluster, framework and strategy; without a global batch every device has the
    batch of the question. `measured` are throughputs of this network on this cluster.
    """
    devices = question.cluster.num_devices
    batch = question.batch * devices if global_batch is None else global_batch
    _check_plannable(question, batch)
    works = works_of(question, stated_for=batch)
    every = tuple(work(max(1, batch // devices)) for work in works.values())
    spreads = spreads_of(every, devices, calibration)
    factors, notes = draw_factors(spreads, seed), list(basis_of(question, calibration, every))
    if measured:
        factors, note = updated_by_points(question, measured, spreads, calibration=calibration, seed=seed)
        notes.append(note)
    if words := cores_words(question, devices):
        notes.append(words)
    if global_batch is None:
        assumed = ", assumed" if question.assumed else ""
        notes.append(f"global batch {batch}: {question.batch} samples on each of {devices} devices{assumed}")
    pricer = _Pricer(question, batch, calibration, works, factors)
    ranked = ranked_candidates(pricer.devices, batch, size=pricer.size, price=pricer.price)
    known = tuple(pricer.with_intervals(candidate) for candidate in ranked[:shown])
    best, plain = known[0], _Pricer(replace(question, framework=BASELINE), batch, calibration, works, factors)
    rates = (best.predicted_throughput, *(best.interval_90 or ()))
    return Plan(
        network=question.subject,
        cluster=question.cluster.name,
        global_batch=batch,
        devices=pricer.devices,
        ranked=known,
        basis=tuple(notes),
        precision=precision_of(question),
        exchange=pricer.exchange(best),
        baseline=_baseline(plain, pricer, best, batch),
        loads=pricer.loads(best),
        asynchrony=asynchrony_sentence(ranked),
        everyday=everyday_of(question, pricer.used(best), rates, job),
    )


def _check_plannable(question: Question, batch: int) -> None:
    """Refuse what no plan can be made for."""
    check_workload(question)
    if batch < 1:
        raise InputError(f"a global batch of {batch} has no sample", hint="a global batch is at least 1 sample")
    if question.strategy.accumulate != 1:
        raise InputError(
            f"a plan of {question.strategy.accumulate} accumulated batches: expected 1",
            hint="give the global batch; a device whose memory is too small accumulates gradients automatically",
        )
    if resolve(question.framework, question.strategy).synchrony == "asynchronous":
        raise InputError(
            f"ranks of {question.framework} do not wait for each other: expected a framework whose ranks step together",
            hint="a plan makes groups of ranks that step together; groups may exchange seldom, and need not wait",
        )


def _baseline(plain: _Pricer, pricer: _Pricer, best: Candidate, batch: int) -> Baseline | None:
    """Equal shares on all devices, against the best plan in the same possible worlds."""
    count = len(plain.devices)
    if batch < count:
        return None
    shares = tuple(batch // count + (index < batch % count) for index in range(count))
    draws = batch / plain.seconds(tuple(range(count)), shares)
    gains = pricer.rates(best) / draws - 1
    passes = max(plain.passes(index, samples) for index, samples in enumerate(shares))
    return Baseline(estimate(float(draws[0]), draws), estimate(float(gains[0]), gains), passes)


class _Pricer:
    """Steps of groups of devices under a question, computed once for equal groups."""

    def __init__(
        self, question: Question, batch: int, calibration: Calibration, works: dict[str, WorkAt], factors: Factors
    ) -> None:
        self._question, self._calibration, self._works, self._factors = question, calibration, works, factors
        self._nominal = Factors(*(draws[:1] for draws in vars(factors).values()))
        self._policy = resolve(question.framework, question.strategy)
        self._placed = place(question.cluster, question.cluster.num_devices)
        keys = {id(rank.device): device_key(rank.device) for rank in self._placed}
        self._kinds = [keys[id(rank.device)] for rank in self._placed]
        self._largest = largest_batches(question)
        self._steps: dict[tuple[str, int], StepWork] = {}
        self._priced: dict[Hashable, GroupStep] = {}
        self.size = self._work(self._kinds[0], 1).total_bytes
        """Bytes of all gradients."""
        self.devices = self._planned(batch)

    def _planned(self, batch: int) -> tuple[PlannedDevice, ...]:
        """Every device with its cost and links; the cost of equal devices is computed once."""
        share = max(1, batch // len(self._placed))
        costs = {
            kind: (self._line(kind, share), self._work(kind, batch).compute) for kind in dict.fromkeys(self._kinds)
        }
        planned = []
        for rank, kind, slower in zip(self._placed, self._kinds, self._stretches(share), strict=True):
            (cost, alone), emulation = costs[kind], rank.device.emulation
            cost, alone = replace(cost, a=cost.a * slower, b=cost.b * slower), alone * slower
            host = self._question.cluster.hosts[rank.host]
            slow = (emulation.straggle, emulation.straggle_factor) if emulation and emulation.straggle else (0.0, 1.0)
            end = self._effective(endpoint_of(host, host.name))
            planned.append(PlannedDevice(host.name, rank.device.name, cost, batch / alone, end.inside, end.link, slow))
        return tuple(planned)

    def _stretches(self, share: int) -> list[float]:
        """How many times as long each device computes as alone on its host, when all devices train."""
        works = [self._work(kind, share) for kind in self._kinds]
        shared, _ = shared_works(self._question, self._placed, works, calibration=self._calibration)
        return [beside.compute / work.compute for beside, work in zip(shared, works, strict=True)]

    def _effective(self, end: Endpoint) -> Endpoint:
        """An endpoint with the link rates of the calibration: those that an exchange between two ranks reaches."""
        calibration = self._calibration
        swept = seconds_at(calibration.collectives, "all_reduce", 2, np.array([SWEPT_BYTES]))
        software, late = calibration.base_latency, calibration.latency.value
        links = []
        for (bandwidth, latency), base in ((end.inside, software / 5), (end.link, software)):
            reached = bandwidth * calibration.reach.value if swept is None else SWEPT_BYTES / float(swept[0][0])
            links.append((min(bandwidth, reached), (latency + base) * late))
        return Endpoint(end.host, links[0], links[1])

    def _line(self, kind: str, share: int) -> Cost:
        """Constant and slope of the seconds of a step near a share of the batch."""
        largest = self._largest[kind]
        few = max(1, min(share, largest or share) // 2)
        many = max(few + 1, min(2 * share, largest or 2 * share))
        small, large = (self._works[kind](count).compute for count in (few, many))
        slope = max((large - small) / (many - few), 1e-12)
        return Cost(max(0.0, small - slope * few), slope, largest)

    def _work(self, kind: str, samples: int) -> StepWork:
        """The step of a kind of device, one object for equal steps."""
        if (kind, samples) not in self._steps:
            self._steps[kind, samples] = in_chunks(self._works[kind], samples, self._largest[kind])
        return self._steps[kind, samples]

    def price(self, group: Group, batch: int, everyone: Group) -> GroupStep:
        """Shares and nominal seconds of a group's step."""
        key = self._key(group, batch, everyone)
        if key not in self._priced:
            shares = split_batch([self.devices[i].cost for i in group], batch).samples
            seconds, exposed = self._seconds(group, shares, self._nominal, everyone=everyone)
            self._priced[key] = GroupStep(shares, float(seconds[0]), float(exposed[0]))
        return self._priced[key]

    def _key(self, group: Group, batch: int, everyone: Group) -> Hashable:
        """Key of a group: equal for groups of equal devices with equal links that share their hosts with equally many
        devices."""
        hosts: dict[int, int] = {}
        alike = []
        for i in group:
            device = self.devices[i]
            host = hosts.setdefault(self._placed[i].host, len(hosts))
            alike.append((self._kinds[i], host, device.inside, device.link))
        present = Counter(self._placed[i].host for i in everyone)
        return batch, tuple(alike), tuple(present[host] for host in hosts)

    def _seconds(
        self, group: Group, shares: Sequence[int], factors: Factors, *, everyone: Group
    ) -> tuple[Floats, Floats]:
        """Seconds of the step, and of its exposed exchange, for each draw."""
        ranks = self._ranks(group, shares, everyone)
        terms = step_terms(ranks, self._policy, self._calibration, factors)
        return sum(terms.values(), np.zeros_like(factors.compute)), terms["aggregate"]

    def _ranks(self, group: Group, shares: Sequence[int], everyone: Group) -> Ranks:
        works = [self._work(self._kinds[i], samples) for i, samples in zip(group, shares, strict=True)]
        placed, present = ([self._placed[i] for i in some] for some in (group, everyone))
        return ranks_with(self._question, placed, works, calibration=self._calibration, present=present)

    def exchange(self, best: Candidate) -> str:
        """How the devices of a plan's largest group exchange, and its groups."""
        group, shares = max(zip(best.groups, best.shares, strict=True), key=lambda pair: len(pair[0]))
        inside = exchange_words({len(group): self._ranks(group, shares, group)}, self._policy, self._calibration)
        if len(best.groups) == 1:
            return inside
        between = f"{len(best.groups)} groups through the syncer every {best.local_steps} steps"
        return f"{between}; inside a group {inside}" if inside else between

    def seconds(self, group: Group, shares: Sequence[int]) -> Floats:
        """Seconds of a step of a group that trains alone, one for each draw."""
        return self._seconds(group, shares, self._factors, everyone=group)[0]

    def passes(self, index: int, samples: int) -> int:
        """Passes that a device needs for its samples, if its memory is known."""
        largest = self._largest[self._kinds[index]]
        return 1 if largest is None else max(1, -(-samples // largest))

    def used(self, candidate: Candidate) -> list[Device]:
        """The devices that a plan gives samples to."""
        pairs = zip(candidate.groups, candidate.shares, strict=True)
        return [self._placed[i].device for group, shares in pairs for i, n in zip(group, shares, strict=True) if n]

    def loads(self, candidate: Candidate) -> tuple[DeviceLoad, ...]:
        """Samples, passes and memory of every device that a plan uses; equal devices of a host are one entry."""
        found: dict[Hashable, DeviceLoad] = {}
        needed: dict[Hashable, float | None] = {}
        for group, shares in zip(candidate.groups, candidate.shares, strict=True):
            for i, samples in zip(group, shares, strict=True):
                device, key = self._placed[i].device, (self._placed[i].host, self._kinds[i], samples)
                if not samples:
                    continue
                if key in found:
                    found[key] = replace(found[key], count=found[key].count + 1)
                    continue
                passes, host = self.passes(i, samples), self.devices[i].host
                each = (self._kinds[i], -(-samples // passes))
                if each not in needed:
                    needed[each] = memory_bytes(self._question, device, each[1])
                found[key] = DeviceLoad(host, device.name, 1, samples, passes, needed[each], device.memory)
        return tuple(found.values())

    def with_intervals(self, candidate: Candidate) -> Candidate:
        """The candidate with the intervals of its throughput."""
        throughput = estimate(candidate.predicted_throughput, self.rates(candidate))
        return replace(candidate, interval_50=throughput.interval_50, interval_90=throughput.interval_90)

    def rates(self, candidate: Candidate) -> Floats:
        """Samples per second of a candidate: every draw is one possible world."""
        groups = list(zip(candidate.groups, candidate.shares, strict=True))
        everyone = tuple(index for group in candidate.groups for index in group)
        keys = [self._key(group, sum(shares), everyone) for group, shares in groups]
        known: dict[Hashable, Floats] = {}
        for key, (group, shares) in zip(keys, groups, strict=True):
            if key not in known:
                known[key] = self._seconds(group, shares, self._factors, everyone=everyone)[0]
        seconds = np.array([known[key] for key in keys])
        exchanges = np.array(exchange_seconds_of(self.devices, candidate.groups, self.size))[:, None]
        return throughputs(candidate, self.devices, seconds, exchanges * self._factors.bandwidth)
