"""`paceline report`: one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from paceline import api
from paceline.cli.options import json_option, store_option, study_argument
from paceline.measurements.store import Store
from paceline.report.exports import write_page
from paceline.report.terminal import emit, say

__all__ = ["command"]


@click.command()
@study_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page's file.  [STORE/reports/STUDY.html]",
)
@store_option
@json_option
def command(study: str | None, output: Path | None, store: Path, as_json: bool) -> None:
    """Write the newest campaign of STUDY as one self-contained HTML file.

    \b
    Examples:
      paceline report demo
      paceline report demo -o demo.html
    """
    stored = Store(store)
    explanation = api.explain(study, store=store).explanation
    path = write_page(explanation, stored, output)
    if as_json:
        emit({"campaign": explanation.campaign, "file": str(path), "summary": list(explanation.summary)}, "report")
    else:
        say(*explanation.summary, f"\nThe report: {path}")
