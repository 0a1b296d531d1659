"""Ranked findings as HTML: cause, evidence, expected gain with interval, the exact change."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.explain.advice.finding import Finding
from paceline.measurements.summary import Interval
from paceline.report.markup import Markup, element, join
from paceline.units import format_share

__all__ = ["findings_section", "gain_words"]

MOST = 30
KINDS = {"setting": "Setting", "code": "In the script", "purchase": "To buy", "machine": "On the machine"}


def gain_words(gain: Interval) -> str:
    """A gain with its interval, in words."""
    if not math.isfinite(gain.low) or not math.isfinite(gain.high):
        return f"{format_share(gain.value)} of the time per sample (one launch: no interval)"
    return f"{format_share(gain.value)} of the time per sample ({format_share(gain.low)} to {format_share(gain.high)})"


def findings_section(findings: Sequence[Finding]) -> Markup:
    """The findings, the weightiest first."""
    if not findings:
        return element("p", "No single change is predicted to save 5 % or more of the time per sample.")
    more = len(findings) - MOST
    note = (
        element("p", f"{more} more are not shown; `paceline explain --json` has all.", class_="quiet")
        if more > 0
        else None
    )
    return join(element("ol", *(_item(finding) for finding in findings[:MOST]), class_="findings"), note)


def _item(finding: Finding) -> Markup:
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
        element(
            "details",
            element("summary", "Evidence"),
            element("ul", *(element("li", line) for line in finding.evidence)),
        ),
        data_cause=finding.cause,
    )
