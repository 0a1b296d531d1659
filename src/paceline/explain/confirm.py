"""Confirm a finding by a run that changes only its cause: the two cases as data, and the gain that they measured.

Nothing is run here: who runs campaigns takes the cases, and hands back what they measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from paceline.errors import InputError
from paceline.explain.cases.evidence import CaseEvidence
from paceline.explain.findings.finding import Finding, Trial
from paceline.explain.gap import Bar, difference
from paceline.measurements.summary import Interval, speedup_interval
from paceline.spec.network import Network
from paceline.spec.strategy import Strategy
from paceline.spec.study import Case

__all__ = ["Confirmation", "bar_with_measured", "confirmation_of", "with_measured"]


@dataclass(frozen=True)
class Confirmation:
    """A case as it was, and the same case with only one cause changed."""

    before: Case
    after: Case


def confirmation_of(trial: Trial | None, evidence: CaseEvidence, network: Network) -> Confirmation | None:
    """What to run to confirm a cause; None if settings alone cannot try it here."""
    if trial is None or evidence.cluster is None or not _same_network(evidence, network):
        return None
    before, after = _case(evidence, network, Trial()), _case(evidence, network, trial)
    return Confirmation(before, after) if before.id != after.id else None


def _same_network(evidence: CaseEvidence, network: Network) -> bool:
    asked: Any = evidence.run.case.get("network", {})
    return bool(asked.get("digest") == network.digest)


def _case(evidence: CaseEvidence, network: Network, trial: Trial) -> Case:
    run = evidence.run
    assert evidence.cluster is not None
    asked = {**evidence.strategy.model_dump(), "name": "tried" if trial != Trial() else run.strategy, **trial.strategy}
    return Case(
        network=network,
        cluster=evidence.cluster,
        framework=run.framework,
        strategy=Strategy.model_validate(asked),
        ranks=trial.ranks or run.ranks,
        batch=trial.batch or run.batch,
        scaling=_literal(run.scaling, ("weak", "strong")),
        placement=_literal(run.case.get("placement", "packed"), ("packed", "spread")),
        input=_literal(trial.input or run.input, ("resident", "copied", "files")),
        threads=trial.threads or run.case.get("threads"),
    )


def _literal(value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise InputError(f"{value!r} in a stored run is none of {', '.join(allowed)}")
    return value


def with_measured(finding: Finding, before: list[float], after: list[float]) -> Finding:
    """The finding with the gain that its trial measured, from the samples per second of both cases' launches."""
    if not before or not after:
        return finding
    ratio = speedup_interval(before, after)
    return replace(finding, measured_gain=Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low))


def bar_with_measured(bar: Bar, samples: int, *, has: list[float], lacks: list[float], tried: str) -> Bar:
    """The bar with the seconds that its cause really takes of a step of so many samples.

    The samples per second of launches of a case that has the cause, and of the same case without it.
    """
    if not has or not lacks:
        return replace(bar, tried=f"{tried}: the trial failed")
    ours, theirs = [samples / rate for rate in has], [samples / rate for rate in lacks]
    return replace(bar, measured_s=difference(ours, theirs, median(ours) - median(theirs)), tried=tried)
