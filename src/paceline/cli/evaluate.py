"""`paceline evaluate`: repeat a published evaluation: predict it, measure its question here, write its page."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.catalog.evaluations import evaluation, evaluation_names
from paceline.cli.demonstration import measured_evaluation
from paceline.cli.options import complete_words, json_option, store_option
from paceline.errors import InputError
from paceline.files import write_output
from paceline.measurements.store import Store
from paceline.model.validation.evaluations import measured_text, predict_evaluation, read_measured
from paceline.report.evaluations import evaluation_page, show_evaluation
from paceline.report.terminal import emit, say

__all__ = ["command"]


@click.command()
@click.argument("name", required=False, shell_complete=complete_words(evaluation_names()))
@click.option("--predict-only", is_flag=True, help="Predict only, without measuring; takes seconds.")
@click.option(
    "--measured",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Store measurements in this file; if it exists, use its measurements instead of measuring.",
)
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="Also write a Markdown page.")
@store_option
@json_option
def command(
    name: str | None, predict_only: bool, measured: Path | None, page: Path | None, store: Path, as_json: bool
) -> None:
    """Repeat a published evaluation: predict it, measure its question on this machine, and write its page.

    NAME is an evaluation of the catalog, or a file ending in .toml; without NAME the command lists all evaluations.
    Published figures are printed beside predictions, which are based on catalog figures only: no figure was measured on
    those devices. Some evaluations measure on a virtual cluster, which needs root.

    \b
    Examples:
      paceline evaluate
      paceline evaluate five-frameworks-cifar --predict-only
      paceline evaluate five-frameworks-cifar --measured measured.json --page page.md
    """
    if name is None:
        names = {one: evaluation(one).title for one in evaluation_names()}
        emit({"evaluations": names}, "evaluations") if as_json else say(*(f"{one}: {names[one]}" for one in names))
        return
    if predict_only and measured:
        raise InputError("got --predict-only and --measured, expected one of them")
    asked, stored = evaluation(name), Store(store)
    document = read_measured(measured, asked.name) if measured and measured.exists() else None
    answer = predict_evaluation(asked, lambda line: click.echo(line, err=True))
    if not as_json:
        show_evaluation(answer)
    if asked.studies and not predict_only and document is None:
        document = measured_evaluation(asked, stored, name, quiet=as_json)
        if measured:
            write_output(measured, measured_text(asked.name, document))
    if page is not None:
        flag = f" --measured {measured}" if measured else "" if document else " --predict-only"
        write_output(page, evaluation_page(answer, document, f"paceline evaluate {name}{flag} --page {page}"))
    if as_json:
        emit({**answer.as_dict(), "measured": document}, "evaluate")
