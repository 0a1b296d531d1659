"""An explanation in words, for a terminal: summary, findings, stragglers, gaps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from paceline.explain.explanation import Explanation
from paceline.explain.gap import Bar
from paceline.measurements.summary import Interval
from paceline.report.findings import gain_words, unsure_words
from paceline.units import SECONDS, format_share

__all__ = ["explanation_lines", "tried_words"]

MOST_FINDINGS = 8
MOST_GAPS = 4


def explanation_lines(explanation: Explanation) -> Iterator[str]:
    """The explanation line by line; the tables of phases are the caller's."""
    yield from explanation.summary
    yield from _finding_lines(explanation)
    yield from _straggler_lines(explanation)
    yield from _gap_lines(explanation)


def _finding_lines(explanation: Explanation) -> Iterator[str]:
    if explanation.findings:
        yield "\nWhat would help, the most first:"
    for number, finding in enumerate(explanation.findings[:MOST_FINDINGS], start=1):
        yield f"\n{number}. {finding.title}  [{finding.cause}]"
        yield f"   {finding.case}"
        yield f"   predicted gain: {gain_words(finding.gain)}"
        if finding.measured_gain:
            yield f"   measured gain:  {gain_words(finding.measured_gain)}"
        yield f"   {finding.change.kind}: {finding.change.what}"
        if finding.change.warning:
            yield f"   careful: {finding.change.warning}"
        for line in finding.evidence:
            yield f"   - {line}"
    more = len(explanation.findings) - MOST_FINDINGS
    if more > 0:
        yield f"\n{more} more with --json."
    if explanation.unsure:
        yield f"\n{unsure_words(explanation.unsure)}"


def _straggler_lines(explanation: Explanation) -> Iterator[str]:
    found = [(case.evidence.label, item) for case in explanation.good for item in case.stragglers]
    if found:
        yield "\nStragglers:"
    for label, item in found[:MOST_FINDINGS]:
        yield (
            f"   rank {item.rank} on {item.host}, {item.kind}, in {item.phase}: {item.slower:.2f} x the others, "
            f"{SECONDS.format(item.cost_s.value)} a step ({label}; slowest in {format_share(item.share_slowest)})"
        )


def _gap_lines(explanation: Explanation) -> Iterator[str]:
    for gap in explanation.gaps[:MOST_GAPS]:
        yield f"\nWhy {gap.slow} takes {SECONDS.format(gap.seconds)} longer than {gap.fast}:"
        for bar in gap.bars:
            yield f"   {1e3 * bar.seconds:+10.3f} ms  {bar.cause}{_between(bar.interval)}: {bar.evidence}"
            if words := tried_words(bar):
                yield f"   {'':13}  {words}"
        yield f"   {1e3 * gap.seconds:+10.3f} ms  the measured gap"


def _between(interval: Interval | None) -> str:
    if interval is None or not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return ""
    return f" ({1e3 * interval.low:+.3f} to {1e3 * interval.high:+.3f})"


def tried_words(bar: Bar) -> str:
    """What a run that changed only this cause showed; nothing if none was made."""
    if bar.measured_s is None:
        return bar.tried
    return f"tried, {bar.tried}: {1e3 * bar.measured_s.value:+.3f} ms{_between(bar.measured_s)}"
