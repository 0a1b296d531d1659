"""The evidence of a campaign: launches by case, times of each rank, spans, policy."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, wraps
from statistics import median
from typing import TypeVar
from weakref import WeakKeyDictionary

from paceline.catalog.frameworks import Policy
from paceline.measurements.results import (
    CaseResult,
    Launches,
    cluster_of,
    load_launches,
    policy_of,
    results_of,
    strategy_of,
)
from paceline.measurements.run import Run, Span
from paceline.measurements.store import Store
from paceline.measurements.tables import RankPass, rank_passes, read_spans
from paceline.spec.cluster import Cluster, Placed, place
from paceline.spec.strategy import Strategy

__all__ = ["CaseEvidence", "load_evidence", "once_per_case"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class CaseEvidence:
    """One case of a campaign with all its measurements; compared by identity."""

    result: CaseResult
    launches: Launches
    rank_passes: tuple[RankPass, ...]
    """All passes of every rank and launch; with individual steps for passes without exchange."""
    spans: tuple[Span, ...]
    """Layers, gradients and exchanges of the traced steps of one launch."""

    @property
    def run(self) -> Run:
        """A run of the case, for its parameters."""
        return self.result.run

    @property
    def label(self) -> str:
        """A short label for tables."""
        return self.run.label

    @cached_property
    def policy(self) -> Policy | None:
        """The policy of the framework under this strategy; None if the framework is not in the catalog."""
        return policy_of(self.run)

    @property
    def strategy(self) -> Strategy:
        """The strategy of the case."""
        return strategy_of(self.run)

    @cached_property
    def cluster(self) -> Cluster | None:
        """The cluster of the case."""
        return cluster_of(self.run)

    @cached_property
    def placed(self) -> tuple[Placed, ...]:
        """Placement of each rank; empty if unknown."""
        if self.cluster is None or self.cluster.num_devices < self.run.ranks:
            return ()
        return place(self.cluster, self.run.ranks, spread=self.run.case.get("placement") == "spread")

    @property
    def is_emulated(self) -> bool:
        """Whether devices are emulated; timed waits need no core."""
        return any(item.device.emulation is not None for item in self.placed)

    @property
    def ranks_per_host(self) -> int:
        """Largest number of ranks of one host; all hosts of a virtual cluster are one machine."""
        hosts = [item.host for item in self.placed] if self.run.launcher != "virtual" else []
        return max((hosts.count(host) for host in hosts), default=self.run.ranks)

    @cached_property
    def shares_cores(self) -> bool:
        """Whether exchanges and compute need the same cores: ranks on processors use every core of a host."""
        if self.is_emulated or any(item.device.kind != "cpu" for item in self.placed):
            return False
        return (self.run.machine.threads or 1) * self.ranks_per_host >= self.run.machine.cores

    def host_of(self, rank: int) -> str:
        """Name of the rank's host."""
        if self.cluster is None or not self.placed:
            return self.run.machine.host
        named = self.cluster.hosts[self.placed[rank].host].name
        return self.run.machine.host if self.run.launcher == "local" and len(self.cluster.hosts) == 1 else named

    @cached_property
    def rank_times(self) -> dict[str, dict[int, dict[str, list[float]]]]:
        """Seconds by pass, rank and launch."""
        times: dict[str, dict[int, dict[str, list[float]]]] = {}
        for item in self.rank_passes:
            if item.steps:
                times.setdefault(item.pass_name, {}).setdefault(item.rank, {})[item.run] = item.steps
        return times

    def rank_median(self, pass_name: str) -> dict[int, float]:
        """Median of one pass by rank, over all launches."""
        times = self.rank_times.get(pass_name, {})
        return {rank: median(s for steps in times[rank].values() for s in steps) for rank in sorted(times)}

    def pass_medians(self) -> dict[int, dict[str, float]]:
        """Median seconds of every pass by rank, over launches."""
        medians: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for item in self.rank_passes:
            medians[item.rank][item.pass_name].append(item.median_s)
        return {rank: {name: median(seconds) for name, seconds in medians[rank].items()} for rank in sorted(medians)}


def once_per_case(function: Callable[[CaseEvidence], T]) -> Callable[[CaseEvidence], T]:
    """Cache a result per case; the cache entry ends with the case."""
    known: WeakKeyDictionary[CaseEvidence, T] = WeakKeyDictionary()

    @wraps(function)
    def once(evidence: CaseEvidence) -> T:
        if evidence not in known:
            known[evidence] = function(evidence)
        return known[evidence]

    return once


def load_evidence(store: Store, campaign: str) -> tuple[CaseEvidence, ...]:
    """All cases of a campaign, in the order of its results."""
    launches = load_launches(store, campaign)
    results = {result.run.case_id: result for result in results_of(launches)}
    by_case = {item.first.case_id: item for item in launches}
    good = [run.id for case in launches for run in case.counted]
    passes: dict[str, list[RankPass]] = defaultdict(list)
    for item in rank_passes(store, good, steps_of=("forward", "compute")):
        passes[item.run].append(item)
    spans = read_spans(store, [item.counted[0].id for item in launches if item.counted])
    return tuple(
        CaseEvidence(
            result=result,
            launches=by_case[case_id],
            rank_passes=tuple(item for run in by_case[case_id].counted for item in passes.get(run.id, ())),
            spans=spans.get(result.run.id, ()),
        )
        for case_id, result in results.items()
    )
