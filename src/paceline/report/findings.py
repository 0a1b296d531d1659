"""Ranked findings as HTML: cause, evidence, expected gain with interval, the exact change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.explain.findings.finding import Finding
from paceline.measurements.summary import Interval
from paceline.report.markup import Markup, element, join
from paceline.units import format_share

__all__ = ["findings_section", "gain_words", "unsure_words"]

MOST_OTHERS = 5
"""Further cases of the same cause that are named."""
KINDS = {"setting": "Setting", "code": "In the script", "purchase": "To buy", "machine": "On the machine"}


def gain_words(gain: Interval) -> str:
    """A gain with its interval, in words."""
    if not math.isfinite(gain.low) or not math.isfinite(gain.high):
        return f"{format_share(gain.value)} of the time per sample (one launch: no interval)"
    return f"{format_share(gain.value)} of the time per sample ({format_share(gain.low)} to {format_share(gain.high)})"


def unsure_words(unsure: Sequence[Finding]) -> str:
    """What the launches do not agree on, in one sentence; nothing if there is none."""
    if not unsure:
        return ""
    named = "; ".join(f"{item.title}, {item.case} ({_span(item.gain)})" for item in unsure[:MOST_OTHERS])
    more = f"; and {len(unsure) - MOST_OTHERS} more" if len(unsure) > MOST_OTHERS else ""
    return f"Not advised, because it is within the noise of these launches: {named}{more}."


def _span(gain: Interval) -> str:
    if not math.isfinite(gain.low) or not math.isfinite(gain.high):
        return "one launch: no interval"
    return f"{format_share(gain.low)} to {format_share(gain.high)}"


def findings_section(findings: Sequence[Finding], unsure: Sequence[Finding] = ()) -> Markup:
    """The findings, the weightiest first, and what is not one because launches disagree."""
    words = unsure_words(unsure)
    return join(_list(findings), element("p", words, class_="quiet") if words else None)


def _list(findings: Sequence[Finding]) -> Markup:
    if not findings:
        return element("p", "No single change is shown to save 5 % or more of the time per sample.")
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.cause, []).append(finding)
    items = [_item(group[0], group[1:]) for group in groups.values()]
    return element("ol", *items, class_="findings")


def _item(finding: Finding, others: Sequence[Finding]) -> Markup:
    measured = (
        element("p", f"Measured gain when tried: {gain_words(finding.measured_gain)}.", class_="gain")
        if finding.measured_gain
        else None
    )
    warning = element("p", finding.change.warning, class_="warn") if finding.change.warning else None
    return element(
        "li",
        element("h3", finding.title),
        element("p", finding.case, class_="quiet"),
        element("p", "Expected gain: ", element("span", gain_words(finding.gain), class_="gain")),
        measured,
        element("p", f"{KINDS[finding.change.kind]}: ", element("code", finding.change.what), class_="change"),
        warning,
        _others(others),
        element(
            "details",
            element("summary", "Evidence"),
            element("ul", *(element("li", line) for line in finding.evidence)),
        ),
        data_cause=finding.cause,
    )


def _others(findings: Sequence[Finding]) -> Markup | None:
    """Cases with the same cause and a smaller gain."""
    if not findings:
        return None
    named = "; ".join(f"{item.case} ({format_share(item.gain.value)})" for item in findings[:MOST_OTHERS])
    more = len(findings) - MOST_OTHERS
    return element("p", f"Also: {named}" + (f"; and {more} more cases." if more > 0 else "."), class_="quiet")
