"""A Markdown table of results for a pull request, with escaped names."""

from __future__ import annotations

import html
import re

from paceline.explain.explanation import Explanation
from paceline.report.tables import Table, make_table, results_table
from paceline.units import format_share

__all__ = ["markdown_report"]

MOST_FINDINGS = 5


def markdown_report(explanation: Explanation) -> str:
    """Summary, results, and the first findings."""
    lines = [f"### {_plain(explanation.title or explanation.study)}", ""]
    lines += [f"- {_plain(sentence)}" for sentence in explanation.summary]
    results = results_table([case.evidence.result for case in explanation.good])
    rows = [
        (f"{finding.title} ({finding.case})", format_share(finding.gain.value), finding.change.what)
        for finding in explanation.findings[:MOST_FINDINGS]
    ]
    findings = make_table(["finding", ">predicted gain", "change"], rows)
    for table in (results, findings):
        lines += ["", *_markdown_table(table)] if table.rows else []
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> list[str]:
    align = "|".join("---:" if column.startswith(">") else "---" for column in table.columns)
    rows = [
        [column.lstrip(">") for column in table.columns],
        *([_plain(cell.text) for cell in row] for row in table.rows),
    ]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{align}|", *lines[1:]]


def _plain(text: str) -> str:
    """Text with escaped tags, links, cell separators and line breaks."""
    one_line = " ".join(html.escape(text, quote=False).split())
    return re.sub(r"([\\`*_{}\[\]()#|!~])", r"\\\1", one_line)
