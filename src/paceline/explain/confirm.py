"""Confirmation of a finding: two cases that differ in its cause only, and the measured gain.

This module runs nothing: `bench` measures the cases, and this module evaluates the throughputs.
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
    """The original case, and the same case with one cause changed."""

    before: Case
    after: Case


def confirmation_of(trial: Trial | None, evidence: CaseEvidence, network: Network) -> Confirmation | None:
    """The cases that confirm a cause; None if a change of settings cannot test it."""
    if trial is None or evidence.cluster is None or not _same_network(evidence, network):
        return None
    before, after = _case(evidence, network, Trial()), _case(evidence, network, trial)
    return Confirmation(before, after) if before.id != after.id else None


def _same_network(evidence: CaseEvidence, network: Network) -> bool:
    stored: Any = evidence.run.case.get("network", {})
    return bool(stored.get("digest") == network.digest)


def _case(evidence: CaseEvidence, network: Network, trial: Trial) -> Case:
    run = evidence.run
    assert evidence.cluster is not None
    strategy = {
        **evidence.strategy.model_dump(),
        "name": "tried" if trial != Trial() else run.strategy,
        **trial.strategy,
    }
    return Case(
        network=network,
        cluster=evidence.cluster,
        framework=run.framework,
        strategy=Strategy.model_validate(strategy),
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
    """The finding with the measured gain of its trial, from the samples per second of the launches of both cases."""
    if not before or not after:
        return finding
    ratio = speedup_interval(before, after)
    return replace(finding, measured_gain=Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low))


def bar_with_measured(bar: Bar, samples: int, *, has: list[float], lacks: list[float], tried: str) -> Bar:
    """The bar with the measured seconds of its cause in a step of `samples` samples.

    `has` and `lacks` are the samples per second of the launches of a case with the cause, and of the same case without it.
    """
    if not has or not lacks:
        return replace(bar, tried=f"{tried}: the trial failed")
    ours, theirs = [samples / rate for rate in has], [samples / rate for rate in lacks]
    return replace(bar, measured_s=difference(ours, theirs, median(ours) - median(theirs)), tried=tried)
