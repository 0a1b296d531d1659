"""A Markdown table of results for a pull request; names cannot break out of their cells."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from paceline.explain.explanation import CaseExplanation, Explanation
from paceline.report.tables import half
from paceline.units import SECONDS, format_share

__all__ = ["markdown_report"]

MOST_FINDINGS = 5


def markdown_report(explanation: Explanation) -> str:
    """Summary, table, and the first findings."""
    lines = [f"### {_plain(explanation.title or explanation.study)}", ""]
    lines += [f"- {_plain(sentence)}" for sentence in explanation.summary]
    lines += ["", *_table(explanation.good)]
    if explanation.findings:
        lines += ["", "| finding | predicted gain | change |", "|---|---:|---|"]
        lines += [
            f"| {_plain(finding.title)} ({_plain(finding.case)}) | {format_share(finding.gain.value)} "
            f"| {_plain(finding.change.what)} |"
            for finding in explanation.findings[:MOST_FINDINGS]
        ]
    return "\n".join(lines) + "\n"


def _table(cases: Sequence[CaseExplanation]) -> list[str]:
    lines = ["| case | samples/s | 95 % | step | efficiency | launches |", "|---|---:|---:|---:|---:|---:|"]
    for case in cases:
        result = case.evidence.result
        rate, step = result.throughput, result.step_s
        assert rate is not None
        assert step is not None
        share = format_share(result.efficiency) if result.efficiency is not None else ""
        lines.append(
            f"| {_plain(case.evidence.label)} | {rate.value:,.1f} | {half(rate)} | {SECONDS.format(step.value)} "
            f"| {share} | {result.num_launches - result.num_failed} |"
        )
    return lines


def _plain(text: str) -> str:
    """Text without any power: no tags, links, cells or lines of its own."""
    one_line = " ".join(html.escape(text, quote=False).split())
    return re.sub(r"([\\`*_{}\[\]()#|!~])", r"\\\1", one_line)
