"""The breakdown of a step: exposed phases, hidden communication, by rank and by layer.

Shares sum to one: `other` is the difference between the step and its phases. It is negative when the instrumented
passes were slower than the clean pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Literal

from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.cases.exchange import gradient_exchange
from paceline.measurements.run import Span
from paceline.measurements.summary import Interval, amount_interval, phases_of, split_closes

__all__ = ["Breakdown", "Part", "RankPhases", "TracedLayer", "break_down", "hidden_by_rank", "layers_of"]

HiddenSource = Literal["traced", "timers", "model"]


@dataclass(frozen=True)
class Part:
    """One exposed phase of the step, or `other`."""

    name: str
    seconds: float
    share: float
    interval: Interval
    """Interval of the seconds over launches."""


@dataclass(frozen=True)
class RankPhases:
    """The phases of one rank; its exposed exchange includes the time that it waits for slower ranks."""

    rank: int
    host: str
    seconds: dict[str, float]
    """Seconds by phase, with `other`; they sum to the step of the rank."""
    hidden_s: float | None
    """Exchange time hidden behind the backward pass, if traced."""


@dataclass(frozen=True)
class TracedLayer:
    """The median times of one layer, and the bytes of its gradients."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: int


@dataclass(frozen=True)
class Breakdown:
    """The breakdown of one case."""

    case_id: str
    label: str
    network: str
    step_s: Interval
    parts: tuple[Part, ...]
    hidden_s: float | None
    """Communication that overlapped with the backward pass; None if unknown."""
    hidden_source: HiddenSource | None
    """Source of `hidden`: traced exchanges, the framework's own timers, or the model."""
    ranks: tuple[RankPhases, ...]
    layers: tuple[TracedLayer, ...]
    is_observed: bool = False
    """Whether the remainder was measured, too."""

    @property
    def closes(self) -> bool:
        """Whether the parts can be trusted: they sum to the step without a large remainder, or it was measured."""
        return self.is_observed or split_closes({part.name: part.seconds for part in self.parts})

    def part(self, name: str) -> Part:
        """The part of this name."""
        return next(part for part in self.parts if part.name == name)

    @property
    def compute_s(self) -> float:
        """Forward and backward."""
        return self.part("forward").seconds + self.part("backward").seconds


def break_down(evidence: CaseEvidence) -> Breakdown | None:
    """The breakdown of a case; None without a successful launch with instrumented passes."""
    result = evidence.result
    if result.step_s is None or not result.phases:
        return None
    ranks = _ranks(evidence)
    hidden_s, hidden_source = _hidden(evidence, ranks)
    split = [phases_of(passes) for passes in evidence.launches.passes]
    total = sum(result.phases.values())
    parts = tuple(
        Part(name, seconds, seconds / total, _around(seconds, [phases[name] for phases in split]))
        for name, seconds in result.phases.items()
    )
    return Breakdown(
        case_id=evidence.run.case_id,
        label=evidence.label,
        network=evidence.run.network,
        step_s=result.step_s,
        parts=parts,
        hidden_s=hidden_s,
        hidden_source=hidden_source,
        ranks=ranks,
        layers=layers_of(evidence),
        is_observed=evidence.run.is_observed,
    )


def _around(value: float, sample: list[float]) -> Interval:
    """The interval over launches, extended to contain `value`."""
    if len(sample) > 1 and min(sample) == max(sample):
        return Interval(value, min(value, sample[0]), max(value, sample[0]))
    interval = amount_interval(sample)
    return Interval(value, min(interval.low, value), max(interval.high, value))


def _hidden(evidence: CaseEvidence, ranks: tuple[RankPhases, ...]) -> tuple[float, HiddenSource] | tuple[None, None]:
    """Hidden seconds and their source: the trace of the rank that waited least, native timers, or the model."""
    if evidence.run.ranks < 2:
        return None, None
    traced = [rank.hidden_s for rank in ranks if rank.hidden_s is not None]
    if traced:
        return min(traced), "traced"
    native, exchange = evidence.result.native, gradient_exchange(evidence)
    if "ddp_overlap" in native:
        return native["ddp_overlap"], "timers"
    if "communication" in native:
        return max(0.0, native["communication"] - evidence.result.phases["aggregate"]), "timers"
    if exchange is not None:
        return max(0.0, exchange.communication - exchange.exposed), "model"
    return None, None


def _ranks(evidence: CaseEvidence) -> tuple[RankPhases, ...]:
    traced = hidden_by_rank(evidence.spans)
    return tuple(
        RankPhases(rank, evidence.host_of(rank), phases_of(passes), traced.get(rank))
        for rank, passes in evidence.pass_medians().items()
        if "clean" in passes and len(passes) > 1
    )


def hidden_by_rank(spans: Iterable[Span]) -> dict[int, float]:
    """For each rank, the median over traced steps of the exchange time before the last gradient was ready."""
    steps: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in spans:
        if span.phase in ("backward", "aggregate"):
            steps[span.rank, span.step].append(span)
    hidden: dict[int, list[float]] = defaultdict(list)
    for (rank, _), parts in steps.items():
        ready = max((part.start_s + part.seconds for part in parts if part.phase == "backward"), default=0.0)
        exchanges = sorted((p.start_s, p.start_s + p.seconds) for p in parts if p.phase == "aggregate")
        if exchanges:
            hidden[rank].append(_covered(exchanges, ready))
    return {rank: median(seconds) for rank, seconds in hidden.items()}


def _covered(stretches: list[tuple[float, float]], until: float) -> float:
    """Time before `end` that is covered by sorted intervals."""
    total = reached = 0.0
    for begin, end in stretches:
        begin, end = max(begin, reached), min(end, until)
        total += max(0.0, end - begin)
        reached = max(reached, end)
    return total


def layers_of(evidence: CaseEvidence, rank: int = 0) -> tuple[TracedLayer, ...]:
    """Median times of each layer over the traced steps of one rank, in the order of the forward pass."""
    forward: dict[str, list[float]] = {}
    backward: dict[str, dict[int, float]] = {}
    sizes: dict[str, dict[str, int]] = {}
    for span in evidence.spans:
        if span.rank != rank:
            continue
        if span.phase == "forward":
            forward.setdefault(span.name, []).append(span.seconds)
        elif span.phase == "backward":
            layer = span.name.rsplit(".", 1)[0]
            steps = backward.setdefault(layer, {})
            steps[span.step] = steps.get(span.step, 0.0) + span.seconds
            sizes.setdefault(layer, {})[span.name] = span.size_bytes or 0
    return tuple(
        TracedLayer(
            name=name,
            forward_s=median(times),
            backward_s=median(backward.get(name, {0: 0.0}).values()),
            gradient_bytes=sum(sizes.get(name, {}).values()),
        )
        for name, times in forward.items()
    )
