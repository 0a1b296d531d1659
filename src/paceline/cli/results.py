"""Results of a campaign as a table for people and a document for machines; shared by `run` and `show`."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from paceline.cli.output import say, table
from paceline.measurements.results import CaseResult, campaign_results
from paceline.measurements.run import PHASES
from paceline.measurements.store import Store
from paceline.measurements.summary import Interval
from paceline.units import SECONDS, format_share

__all__ = ["plain_interval", "results_document", "show_results"]


def results_document(store: Store, campaign: str) -> dict[str, Any]:
    """Every figure of the campaign."""
    results = campaign_results(store, campaign)
    return {"campaign": campaign, "store": str(store.root), "cases": [_case_document(result) for result in results]}


def _case_document(result: CaseResult) -> dict[str, Any]:
    run = result.run
    asked = ("case_id", "network", "framework", "strategy", "cluster", "launcher", "ranks", "batch", "scaling", "input")
    return {
        **{name: getattr(run, name) for name in asked},
        "launches": result.num_launches,
        "failed": result.num_failed,
        "drifted": result.num_drifted,
        "timed_steps": result.num_steps,
        "samples_per_s": plain_interval(result.throughput),
        "step_s": plain_interval(result.step_s),
        "speedup": plain_interval(result.speedup),
        "base_ranks": result.base_ranks,
        "efficiency": result.efficiency,
        "phases_s": result.phases,
        "shares": result.shares,
        "instrument_overhead": result.instrument_overhead,
        "native_timers_s": result.native,
        "labels": list(run.labels),
        "versions": run.machine.versions,
        "failure": run.failure.model_dump(mode="json") if run.failure else None,
    }


def plain_interval(interval: Interval | None) -> dict[str, float | None] | None:
    """An interval as JSON data; a bound that one launch alone cannot give is null."""
    if interval is None:
        return None
    return {name: value if math.isfinite(value) else None for name, value in asdict(interval).items()}


def show_results(store: Store, campaign: str) -> None:
    """Throughput and scaling, then phases, then failures."""
    results = campaign_results(store, campaign)
    good = [result for result in results if result.throughput]
    if good:
        _show_throughput(campaign, good)
        _show_phases([result for result in good if result.phases])
    failed = [result for result in results if result.num_failed]
    if failed:
        table("\nFailures", ["case", "where", "why"], [_failure_row(store, campaign, result) for result in failed])
    _show_notes(results)


def _show_throughput(campaign: str, results: list[CaseResult]) -> None:
    columns = ["network", "framework", ">ranks", ">batch", ">samples/s", ">± 95 %", ">step", ">speed-up", ">efficiency"]
    rows = [
        (
            _network(result, results),
            _framework(result, results),
            result.run.ranks,
            result.run.batch,
            f"{result.throughput.value:,.1f}" if result.throughput else "",
            _half(result.throughput),
            SECONDS.format(result.step_s.value) if result.step_s else "",
            _speedup(result),
            format_share(result.efficiency) if result.efficiency is not None else "",
        )
        for result in results
    ]
    scaling = results[0].run.scaling
    table(
        f"{campaign}: throughput of all ranks, batch per device, {scaling} scaling",
        [*columns, ">launches"],
        [(*row, result.num_launches - result.num_failed) for row, result in zip(rows, results, strict=True)],
    )


def _network(result: CaseResult, results: list[CaseResult]) -> str:
    """The network, and where it ran if that differs."""
    several = len({other.run.cluster for other in results}) > 1
    return f"{result.run.network} on {result.run.cluster}" if several else result.run.network


def _framework(result: CaseResult, results: list[CaseResult]) -> str:
    """Its name; on one rank without the mode, unless the table has several modes of it."""
    run = result.run
    short = run.framework.split("/")[0]
    modes = {other.run.framework for other in results if other.run.framework.split("/")[0] == short}
    named = "" if run.strategy == "default" else f" {run.strategy}"
    return (run.framework if run.ranks > 1 or len(modes) > 1 else short) + named


def _half(interval: Interval | None) -> str:
    return f"{100 * interval.half:.1f} %" if interval and math.isfinite(interval.half) else "one launch"


def _speedup(result: CaseResult) -> str:
    if result.speedup is None or result.base_ranks is None:
        return ""
    if result.run.ranks == result.base_ranks:
        return f"base ({result.base_ranks})"
    return f"{result.speedup.value:.2f} x"


def _show_phases(results: list[CaseResult]) -> None:
    if not results:
        return
    names = (*PHASES, "other")
    columns = ["network", "framework", ">ranks", *(f">{name}" for name in names), ">instrument"]
    rows = [
        (
            _network(result, results),
            _framework(result, results),
            result.run.ranks,
            *(format_share(result.shares[name]) for name in names),
            f"{100 * result.instrument_overhead:+.1f} %" if result.instrument_overhead is not None else "",
        )
        for result in results
    ]
    table("\nWhere the step goes (exposed shares, they sum to one)", columns, rows)


def _failure_row(store: Store, campaign: str, result: CaseResult) -> tuple[str, str, str]:
    runs = [run for run in store.read_all(campaign=campaign) if run.case_id == result.run.case_id and run.failure]
    failure = runs[-1].failure
    assert failure is not None
    what = f"{result.run.network} {_framework(result, [result])} x {result.run.ranks} on {result.run.cluster}"
    return what, f"{failure.phase}: {failure.reason}", f"{failure.message} ({_launches(result.num_failed)})"


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count} launches"


def _show_notes(results: list[CaseResult]) -> None:
    fewest = min((r.num_launches - r.num_failed for r in results if r.throughput), default=5)
    if fewest < 5:
        say(f"\nNote: {_launches(fewest)} per case, as asked; five or more make intervals trustworthy.")
    drifted = sum(result.num_drifted for result in results)
    if drifted:
        say(f"Note: the machine's own speed was off its median by more than the asked width in {_launches(drifted)}.")
    for label in sorted({label for result in results for label in result.run.labels}):
        say(f"Note: {label}")
