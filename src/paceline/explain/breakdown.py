"""Where a step goes: exposed phases that sum to it, communication hidden beside it, rank by rank and layer by layer.

Shares sum to one: `other` is the difference between the step and its phases, shown and never hidden. It is negative
when the passes that split the step were slower than the clean pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from paceline.explain.evidence import CaseEvidence
from paceline.measurements.summary import Interval, median_interval, phases_of

__all__ = ["Breakdown", "LayerTime", "Part", "RankPhases", "break_down", "layers_of"]


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
    """One rank's own phases: its compute alone, before it waits for anybody."""

    rank: int
    host: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class LayerTime:
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
    """Communication that ran beside the backward pass; None if the framework's timers do not tell."""
    ranks: tuple[RankPhases, ...]
    layers: tuple[LayerTime, ...]

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
        hidden_s=_hidden(result.native, result.phases["aggregate"]),
        ranks=_ranks(evidence),
        layers=layers_of(evidence),
    )


def _around(value: float, sample: list[float]) -> Interval:
    """The interval over launches, about a value that may be a remainder."""
    if len(sample) > 1 and min(sample) == max(sample):
        return Interval(value, min(value, sample[0]), max(value, sample[0]))
    found = median_interval(sample)
    return Interval(value, min(found.low, value), max(found.high, value))


def _hidden(native: dict[str, float], exposed: float) -> float | None:
    if "ddp_overlap" in native:
        return native["ddp_overlap"]
    if "communication" in native:
        return max(0.0, native["communication"] - exposed)
    return None


def _ranks(evidence: CaseEvidence) -> tuple[RankPhases, ...]:
    forward, compute = evidence.rank_median("forward"), evidence.rank_median("compute")
    return tuple(
        RankPhases(
            rank=rank,
            host=evidence.host_of(rank),
            seconds={"forward": forward[rank], "backward": max(0.0, compute[rank] - forward[rank])},
        )
        for rank in sorted(compute)
        if rank in forward
    )


def layers_of(evidence: CaseEvidence, rank: int = 0) -> tuple[LayerTime, ...]:
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
        LayerTime(
            name=name,
            forward_s=median(times),
            backward_s=median(backward.get(name, {0: 0.0}).values()),
            gradient_bytes=sum(sizes.get(name, {}).values()),
        )
        for name, times in forward.items()
    )
