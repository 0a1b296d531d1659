"""Where a step goes: exposed phases that sum to it, communication hidden beside it, rank by rank and layer by layer.

Shares sum to one: `other` is the difference between the step and its phases, shown and never hidden. It is negative
when the passes that split the step were slower than the clean pass.
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
from paceline.measurements.summary import Interval, median_interval, phases_of

__all__ = ["Breakdown", "Part", "RankPhases", "TracedLayer", "break_down", "hidden_by_rank", "layers_of"]

HiddenSource = Literal["traced", "timers", "model"]


@dataclass(frozen=True)
class Part:
    """One exposed phase of the step, or `other`."""

    name: str
    seconds: float
    share: float
    interval: Interval
    """Of the seconds, over launches."""


@dataclass(frozen=True)
class RankPhases:
    """One rank's phases; its exposed exchange holds the time for which it waits for slower ranks."""

    rank: int
    host: str
    seconds: dict[str, float]
    """By phase, and `other`; they sum to the rank's step."""
    hidden_s: float | None
    """Its exchanges beside backward, where they were traced."""


@dataclass(frozen=True)
class TracedLayer:
    """One layer: median seconds of its forward, of its gradients, and their bytes."""

    name: str
    forward_s: float
    backward_s: float
    gradient_bytes: int


@dataclass(frozen=True)
class Breakdown:
    """One case taken apart."""

    case_id: str
    label: str
    network: str
    step_s: Interval
    parts: tuple[Part, ...]
    hidden_s: float | None
    """Communication that ran beside the backward pass; None if nobody can tell."""
    hidden_source: HiddenSource | None
    """Who says so: exchanges that were traced, the framework's own timers, or the model."""
    ranks: tuple[RankPhases, ...]
    layers: tuple[TracedLayer, ...]

    def part(self, name: str) -> Part:
        """The part of this name."""
        return next(part for part in self.parts if part.name == name)

    @property
    def compute_s(self) -> float:
        """Forward and backward."""
        return self.part("forward").seconds + self.part("backward").seconds


def break_down(evidence: CaseEvidence) -> Breakdown | None:
    """The breakdown of a case; None if it has no successful launch that was split into phases."""
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
    )


def _around(value: float, sample: list[float]) -> Interval:
    """The interval over launches, about a value that may be a remainder."""
    if len(sample) > 1 and min(sample) == max(sample):
        return Interval(value, min(value, sample[0]), max(value, sample[0]))
    found = median_interval(sample)
    return Interval(value, min(found.low, value), max(found.high, value))


def _hidden(evidence: CaseEvidence, ranks: tuple[RankPhases, ...]) -> tuple[float, HiddenSource] | tuple[None, None]:
    """As traced on the rank that waited least for others, by the framework's own timers, or by the model."""
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
    """Median over traced steps of the time for which exchanges ran before a rank's last gradient was ready."""
    steps: dict[tuple[int, int], list[Span]] = defaultdict(list)
    for span in spans:
        if span.phase in ("backward", "aggregate"):
            steps[span.rank, span.step].append(span)
    found: dict[int, list[float]] = defaultdict(list)
    for (rank, _), parts in steps.items():
        ready = max((part.start_s + part.seconds for part in parts if part.phase == "backward"), default=0.0)
        exchanges = sorted((p.start_s, p.start_s + p.seconds) for p in parts if p.phase == "aggregate")
        if exchanges:
            found[rank].append(_covered(exchanges, ready))
    return {rank: median(seconds) for rank, seconds in found.items()}


def _covered(stretches: list[tuple[float, float]], until: float) -> float:
    """How much of the time until a moment lies in any of these stretches, which are sorted."""
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
