"""From what was measured to a choice: the model ranks the ways to train, and the reason is one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline.cost.split import Cost
from paceline.model.plan.candidate import Candidate, Member
from paceline.model.plan.ways import ranked_ways
from paceline.runtime.auto.links import Links

__all__ = ["Choice", "Measured", "choose", "one_group"]

GAIN = 1.1
"""Another way must promise this much more than the present one, since changing costs and measures are noisy."""
LIKE = 1.25
"""Devices whose costs per sample are within this factor are of one kind."""


@dataclass(frozen=True)
class Measured:
    """What is known of the ranks, in the order of the view."""

    costs: tuple[Cost, ...]
    links: Links
    straggling: tuple[tuple[float, float], ...]
    gradient_bytes: float


@dataclass(frozen=True)
class Choice:
    """How the ranks train together from now on."""

    groups: tuple[tuple[int, ...], ...]
    """Ranks of each group; one group is synchronous training."""
    samples: tuple[int, ...]
    """Of a step of each group."""
    local_steps: int
    quorum: int
    predicted_throughput: float
    reason: str

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    @classmethod
    def of(cls, plain: dict[str, Any]) -> Choice:
        """From JSON data."""
        groups = tuple(tuple(group) for group in plain["groups"])
        return cls(**{**plain, "groups": groups, "samples": tuple(plain["samples"])})

    @property
    def way(self) -> tuple[object, ...]:
        """What a change of which means that ranks train differently."""
        return (self.groups, self.local_steps, self.quorum)


def one_group(size: int, batch: int, reason: str = "nothing measured yet") -> Choice:
    """All ranks step together."""
    return Choice((tuple(range(size)),), (batch,), 1, 1, 0.0, reason)


def choose(measured: Measured, batch: int, *, present: Choice, may_split: bool = True) -> Choice:
    """The best way that uses all ranks; the present one unless another is clearly better."""
    members = _members(measured, batch)
    ranked = [
        way
        for way in ranked_ways(members, batch, size=measured.gradient_bytes)
        if sum(len(group) for group in way.groups) == len(members) and (may_split or len(way.groups) == 1)
    ]
    best = ranked[0]
    kept = [way for way in ranked if way.groups == present.groups]
    if kept and best.groups != present.groups and best.score < kept[0].score * GAIN:
        best = kept[0]
    others = [way for way in ranked if way is not best]
    return Choice(
        best.groups,
        tuple(sum(shares) for shares in best.shares),
        best.local_steps,
        best.quorum,
        best.predicted_throughput,
        _reason(measured, _each(measured, batch), [best, *others], may_split=may_split),
    )


def _members(measured: Measured, batch: int) -> list[Member]:
    links, kinds = measured.links, _kinds(_each(measured, batch))
    rows = zip(links.places, kinds, measured.costs, links.inside, links.between, measured.straggling, strict=True)
    return [Member(place, kind, cost, inside, link, late) for place, kind, cost, inside, link, late in rows]


def _each(measured: Measured, batch: int) -> list[float]:
    """Seconds per sample of each rank in an equal share of the batch, its constant part included."""
    share = max(1, batch // len(measured.costs))
    return [cost.seconds(share) / share for cost in measured.costs]


def _kinds(each: Sequence[float]) -> list[str]:
    """Names for devices of like speed: each begins where the next faster one is more than a factor away."""
    order = sorted(range(len(each)), key=lambda i: each[i])
    names, kind = [""] * len(each), 0
    for before, index in zip([order[0], *order], order, strict=False):
        kind += each[index] > LIKE * each[before]
        names[index] = f"kind {kind}"
    return names


def _reason(measured: Measured, each: Sequence[float], ways: Sequence[Candidate], *, may_split: bool) -> str:
    best, *others = ways
    rates = [seconds * 1e3 for seconds in each]
    slowest = min(bandwidth for bandwidth, _ in measured.links.between) / 1e6
    seen = f"a sample costs {min(rates):.3g} to {max(rates):.3g} ms, the slowest link carries {slowest:.3g} MB/s"
    late = max(share for share, _ in measured.straggling)
    if late:
        seen += f", up to {late:.0%} of steps straggle"
    text = f"{_named(best)}, because {seen}: predicted {best.predicted_throughput:.4g} samples/s"
    if others:
        next_best = others[0]
        text += f"; next best is {_named(next_best)} with {next_best.score / best.score:.0%} of its progress"
    return text if may_split else text + "; several groups need batches(epochs=...), float32 and no checkpoint"


def _named(way: Candidate) -> str:
    if len(way.groups) == 1:
        return "one balanced group"
    waits = "all" if way.quorum == len(way.groups) else str(way.quorum)
    return f"{len(way.groups)} groups exchanging every {way.local_steps} steps with a quorum of {waits}"
