"""Ranking of frameworks and strategies within one network, batch and number of ranks. Pairs are compared by
`summary.compare`, the rule of `paceline compare`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from paceline.measurements.results import Launches
from paceline.measurements.summary import Comparison, Interval, compare, median_interval
from paceline.units import format_count

__all__ = ["RankedCase", "Ranking", "rank_launches"]


@dataclass(frozen=True)
class RankedCase:
    """One contender of a ranking."""

    name: str
    """Framework, with the name of its strategy if it is not the default."""
    case_id: str
    throughput: Interval
    behind: Comparison | None
    """This contender against the first; None for the first."""


@dataclass(frozen=True)
class Ranking:
    """Contenders that differ in framework or strategy only, the fastest median first."""

    network: str
    cluster: str
    launcher: str
    input: str
    batch: int
    ranks: int
    places: tuple[RankedCase, ...]

    @property
    def label(self) -> str:
        """The common parameters of the compared cases."""
        where = "" if self.cluster == "local" else f", {self.cluster}"
        source = "" if self.input == "resident" else f", {self.input} input"
        return f"{self.network}, batch {self.batch} x {format_count(self.ranks, 'rank')}{where}{source}"

    @property
    def equals(self) -> tuple[RankedCase, ...]:
        """Contenders that are not shown to be slower than the first."""
        return tuple(place for place in self.places[1:] if place.behind and place.behind.verdict != "slower")

    @property
    def winner(self) -> RankedCase | None:
        """The first, if every other contender is shown to be slower."""
        return self.places[0] if len(self.places) > 1 and not self.equals else None

    @property
    def verdict(self) -> str:
        """'faster' if the first is the winner; otherwise the verdict of the comparison with a rival, empty without
        one."""
        if self.winner:
            return "faster"
        return next((place.behind.verdict for place in self.equals if place.behind), "")

    @property
    def lead(self) -> Interval | None:
        """How many times as fast the first is as the second; None without a second."""
        ratio = self.places[1].behind.ratio if len(self.places) > 1 and self.places[1].behind else None
        return Interval(1 / ratio.value, _inverse(ratio.high), _inverse(ratio.low)) if ratio else None


def _inverse(bound: float) -> float:
    """The bound of 1 / ratio; that of one launch is infinite."""
    return 1 / bound if 0 < bound < float("inf") else float("inf") if bound <= 0 else float("-inf")


def rank_launches(cases: Iterable[Launches]) -> tuple[Ranking, ...]:
    """A ranking for each network, cluster, input, batch and number of ranks, in the order of the cases."""
    groups: dict[tuple[str, str, str, str, int, int], list[Launches]] = defaultdict(list)
    for case in cases:
        if case.throughputs:
            run = case.first
            groups[run.network, run.cluster, run.launcher, run.input, run.batch, run.ranks].append(case)
    return tuple(Ranking(*key, places=_places(_contenders(group))) for key, group in groups.items())


def _contenders(group: list[Launches]) -> list[Launches]:
    """One rank exchanges nothing, so the strategies of a framework do not differ: the first represents all."""
    if group[0].first.ranks > 1:
        return group
    return list({case.first.framework: case for case in reversed(group)}.values())


def _places(group: list[Launches]) -> tuple[RankedCase, ...]:
    rates = {id(case): median_interval(case.throughputs, pilot=case.first.pilot) for case in group}
    ordered = sorted(group, key=lambda case: -rates[id(case)].value)
    first = ordered[0]
    return tuple(
        RankedCase(
            name=case.first.contender,
            case_id=case.first.case_id,
            throughput=rates[id(case)],
            behind=compare(case.throughputs, first.throughputs, rounds=(case.rounds, first.rounds)) if place else None,
        )
        for place, case in enumerate(ordered)
    )
