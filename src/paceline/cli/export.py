"""`paceline export`: write results in the format of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from paceline import api
from paceline.cli.options import complete_words, json_option, store_option, study_argument
from paceline.measurements.store import Store
from paceline.report.exports import EXPORTS, export
from paceline.report.terminal import emit, say

__all__ = ["command"]

KINDS = "\n".join(f"  {name:17} {item.what}" for name, item in EXPORTS.items())


@click.command(
    help=f"""Write the newest campaign of STUDY in the format of another tool.

\b
Kinds:
{KINDS}

\b
Examples:
  paceline export demo --to chrome
  paceline export demo --to markdown -o table.md
"""
)
@study_argument
@click.option(
    "--to",
    "kind",
    required=True,
    metavar="KIND",
    shell_complete=complete_words(EXPORTS),
    help="One of the kinds above.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File or directory to write.")
@store_option
@json_option
def command(study: str | None, kind: str, output: Path | None, store: Path, as_json: bool) -> None:
    """Write the newest campaign of STUDY in the format of another tool."""
    stored = Store(store)
    explanation = api.explain(study, store=store).explanation
    path = export(explanation, stored, kind, output)
    if as_json:
        emit({"campaign": explanation.campaign, "kind": kind, "path": str(path)}, "export")
    else:
        say(f"{EXPORTS[kind].what}: {path}")
