"""`paceline report`: one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.output import emit, json_option, say, store_option
from paceline.errors import StoreError
from paceline.explain.explanation import explain_campaign
from paceline.measurements.results import find_campaign
from paceline.measurements.store import Store
from paceline.report.page import file_name, render_page

__all__ = ["command"]


@click.command()
@click.argument("study", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The page's file.  [STORE/reports/STUDY.html]",
)
@store_option
@json_option
def command(study: str | None, output: Path | None, store: Path, as_json: bool) -> None:
    """Write the newest campaign of STUDY as one HTML file: readable offline, ready to be mailed.

    \b
    Examples:
      paceline report demo
      paceline report demo -o demo.html
    """
    place = Store(store)
    explanation = explain_campaign(place, find_campaign(place, study))
    path = output or place.root / "reports" / file_name(explanation.study)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render_page(explanation), encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another place with -o"
        ) from None
    if as_json:
        emit({"campaign": explanation.campaign, "file": str(path), "summary": list(explanation.summary)}, "report")
        return
    for sentence in explanation.summary:
        say(sentence)
    say(f"\nThe report: {path}")
