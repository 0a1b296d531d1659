"""`paceline explain`: where the step goes, why cases differ, what would help most."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.confirm import confirm as try_out
from paceline.cli.options import json_option, store_option
from paceline.explain.explanation import explain_campaign
from paceline.measurements.results import find_campaign
from paceline.measurements.store import Store
from paceline.report.documents import explanation_document
from paceline.report.terminal import emit, say
from paceline.report.terminal.campaign import explanation_lines

__all__ = ["command"]


@click.command()
@click.argument("study", required=False)
@click.option(
    "--confirm", is_flag=True, help="Try the advice that can be tried here, and put the measured gain beside."
)
@click.option("--most", default=3, show_default=True, help="Findings to confirm at most.")
@store_option
@json_option
def command(study: str | None, confirm: bool, most: int, store: Path, as_json: bool) -> None:
    """Explain the newest campaign of STUDY in words and numbers; the newest of all if none is named.

    Every finding comes with its evidence, the share of the time per sample that it would save, and the exact change.
    With --confirm, settings are changed one at a time and measured beside the case as it was.

    \b
    Examples:
      paceline explain demo
      paceline explain demo --confirm
      paceline explain demo --json
    """
    stored = Store(store)
    explanation = explain_campaign(stored, find_campaign(stored, study))
    if confirm:
        explanation = try_out(explanation, stored, most, quiet=as_json)
    if as_json:
        emit(explanation_document(explanation), "explain")
    else:
        say(*explanation_lines(explanation))
