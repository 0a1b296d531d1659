"""Terminal output of campaigns: results, failures, notes, explanations, comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from paceline.measurements.results import CaseResult, Usage, campaign_results
from paceline.measurements.store import Store
from paceline.measurements.summary import Comparison
from paceline.report.tables import failure_table, phase_table, results_table
from paceline.report.terminal import print_rows, print_table, say
from paceline.report.terminal.watched import verdict_lines
from paceline.report.words import (
    gain_words,
    host_words,
    mfu_words,
    noise_words,
    over_peak_words,
    predicted_words,
    refuted_words,
    span_ms,
    tried_words,
)
from paceline.spec.study import Case
from paceline.units import SECONDS, format_count, format_share

if TYPE_CHECKING:  # Importing the model would make every verb slow to start.
    from paceline.bench.measure import Duration
    from paceline.explain.explanation import Explanation

__all__ = ["explanation_lines", "gate_lines", "show_campaigns", "show_cases", "show_launch_comparison", "show_results"]

MOST_FINDINGS = 8
MOST_GAPS = 4
ENOUGH_LAUNCHES = 5
UNKNOWN_BETWEEN = " between these launches; how much launches of one version differ is not known (three of each tell)"


def show_results(store: Store, campaign: str) -> None:
    """Throughput and scaling, then phases, failures and notes."""
    results = campaign_results(store, campaign)
    good = [result for result in results if result.throughput]
    if good:
        scaling = good[0].run.scaling
        title = f"{campaign}: throughput of all ranks, batch per device, {scaling} scaling"
        print_table(results_table(good, title=title))
    split = [result for result in good if result.phases]
    failures = failure_table(store.read_all(campaign=campaign))
    for table in (phase_table(split), failures):
        if table.rows:
            say("")
            print_table(table)
    say(*_notes(results))


def _notes(results: Sequence[CaseResult]) -> Iterator[str]:
    yield from over_peak_words(result.usage for result in results)
    yield from (f"\nHost: {words}" for words in filter(None, [host_words([result.run for result in results])]))
    fewest = min((result.num_counted for result in results if result.throughput), default=ENOUGH_LAUNCHES)
    if fewest < ENOUGH_LAUNCHES:
        few = format_count(fewest, "launch")
        yield f"\nNote: {few} per case; t intervals of so few are wide, five or more make them narrow."
    drifted = sum(result.num_drifted for result in results)
    left_out = sum(result.num_launches - result.num_failed - result.num_counted for result in results)
    if drifted:
        yield (
            "Note: the machine's own speed was off its median by more than the asked width in "
            f"{format_count(drifted, 'launch')}; {left_out or 'none'} of them left out."
        )
    for label in sorted({label for result in results for label in result.run.labels}):
        yield f"Note: {label}"


def show_campaigns(campaigns: Sequence[dict[str, object]]) -> None:
    """Every campaign of a store."""
    rows = [[campaign[name] for name in ("campaign", "started_at", "runs", "title")] for campaign in campaigns]
    print_rows("", ["campaign", "started", ">runs", "title"], rows)


def show_cases(study: str, cases: Sequence[Case], duration: Duration) -> None:
    """The cases of a study, which were not run, and how long that would take."""
    print_rows(f"{study}: {len(cases)} cases", ["case", "description"], [(case.id, case.label) for case in cases])
    (least, most), times = duration.launches, [SECONDS.format(one) for one in (duration.least_s, duration.most_s)]
    several = f" to {times[1]} ({most} launches, if intervals stay wide)" if most > least else ""
    say(f"\nTakes about {times[0]} ({least} launches){several}; rests on {duration.basis}.")


def show_launch_comparison(
    result: Comparison, names: tuple[str, str], confidence: float, usages: Sequence[Usage | None] = ()
) -> None:
    """Ratio of throughputs with its interval, t test, verdict; tokens or images and MFU of both where known."""
    sample, base = names
    ratio, percent = result.ratio, f"{100 * confidence:g} %"
    counts = f"{result.launches[0]} and {result.launches[1]} launches"
    test = f"t test on {result.num_pairs} rounds" if result.num_pairs else "Welch's t test"
    if result.steps:
        test, counts = "test of their steps", f"{result.steps[0]} and {result.steps[1]} steps of {counts}"
    known = math.isfinite(ratio.high)
    say(
        f"{sample}  against  {base}",
        f"  throughput ratio {ratio.value:.3f}, {percent} interval {ratio.low:.3f} to {ratio.high:.3f}"
        if known
        else f"  throughput ratio {ratio.value:.3f}, one launch: no interval",
        f"  {test} p = {result.p_value:.3g} with {counts}" if known else f"  {counts}",
        f"  {result.verdict}{UNKNOWN_BETWEEN if result.steps else ''}",
        *(f"  {name}: {_usage_words(usage)}" for name, usage in zip(names, usages, strict=False) if usage),
        *over_peak_words(usages),
    )


def _usage_words(usage: Usage) -> str:
    mfu = "" if usage.mfu is None else f", MFU {mfu_words(usage.mfu)}"
    return f"{usage.per_s:,.1f} {usage.unit}/s{mfu}"


def gate_lines(result: Comparison, code: int | None, least: float | None) -> list[str]:
    """The decision of a regression gate, with its exit code; empty without a gate."""
    few = result.verdict == "too few launches"
    why = (
        "three launches of each side are needed, or 20 steps of each launch"
        if few
        else "measure more steps or launches"
    )
    words = {
        0: f"  passes (exit code 0): the whole interval is at or above {least}",
        1: f"  fails (exit code 1): the whole interval is below {least}",
        2: f"  not decided (exit code 2): {'' if few else f'the interval contains {least}; '}{why}",
    }
    return [] if code is None else [words[code]]


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """Summary, findings, stragglers and gaps, line by line."""
    yield from explanation.summary
    for judgement in explanation.judgements:
        yield ""
        yield from verdict_lines(judgement, explanation.campaign, explanation.launcher)
    yield from _finding_lines(explanation)
    yield from _straggler_lines(explanation)
    yield from _gap_lines(explanation)


def _finding_lines(explanation: Explanation) -> Iterator[str]:
    if explanation.findings:
        yield "\nWhat would help, the most first:"
    for number, finding in enumerate(explanation.findings[:MOST_FINDINGS], start=1):
        yield f"\n{number}. {finding.title}  [{finding.cause}]"
        yield f"   {finding.case}"
        yield f"   predicted gain: {predicted_words(finding)}"
        if finding.measured_gain:
            yield f"   measured gain:  {gain_words(finding.measured_gain)}: {finding.verdict}"
        yield f"   {finding.change.kind}: {finding.change.what}"
        if finding.change.warning:
            yield f"   careful: {finding.change.warning}"
        yield from (f"   - {line}" for line in finding.evidence)
    more = len(explanation.findings) - MOST_FINDINGS
    if more > 0:
        yield f"\n{more} more with --json."
    yield from (f"\n{words}" for words in refuted_words(explanation.refuted))
    if explanation.unsure:
        yield f"\n{noise_words(explanation.unsure)}"


def _straggler_lines(explanation: Explanation) -> Iterator[str]:
    stragglers = [(case.evidence.label, item) for case in explanation.good for item in case.stragglers]
    if stragglers:
        yield "\nStragglers:"
    for label, item in stragglers[:MOST_FINDINGS]:
        yield (
            f"   rank {item.rank} on {item.host}, {item.kind}, in {item.phase}: {item.slower:.2f} x the others, "
            f"{SECONDS.format(item.cost_s.value)} a step ({label}; slowest in {format_share(item.share_slowest)})"
        )


def _gap_lines(explanation: Explanation) -> Iterator[str]:
    for gap in explanation.gaps[:MOST_GAPS]:
        yield f"\nWhy {gap.slow} takes {SECONDS.format(gap.seconds)} longer than {gap.fast}:"
        if gap.untrusted:
            yield f"   not to be trusted: {gap.untrusted}"
        for bar in gap.bars:
            span = span_ms(bar.interval, "+.3f")
            yield f"   {1e3 * bar.seconds:+10.3f} ms  {bar.cause}{f' ({span})' if span else ''}: {bar.evidence}"
            if words := tried_words(bar):
                yield f"   {'':13}  {words}"
        yield f"   {1e3 * gap.seconds:+10.3f} ms  the measured gap"
