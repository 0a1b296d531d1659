"""`paceline evaluate`: repeat a published evaluation: predict it, measure its question here, write its page."""

from __future__ import annotations

from pathlib import Path

import click

from paceline import catalog
from paceline.catalog.evaluations import evaluation, evaluation_names
from paceline.cli.demonstration import measured_campaign
from paceline.cli.options import json_option, store_option
from paceline.files import atomic_write
from paceline.measurements.results import campaign_results
from paceline.measurements.store import Store
from paceline.model.validation.evaluations import answer_evaluation
from paceline.report.documents import results_document
from paceline.report.evaluations import evaluation_page, show_evaluation
from paceline.report.terminal import emit, say
from paceline.report.terminal.campaign import show_results
from paceline.spec.study import expand

__all__ = ["command"]


@click.command()
@click.argument("name", required=False)
@click.option("--predict-only", is_flag=True, help="Measure nothing: the answer takes seconds.")
@click.option("--page", type=click.Path(path_type=Path, dir_okay=False), help="Also write a Markdown page.")
@store_option
@json_option
def command(name: str | None, predict_only: bool, page: Path | None, store: Path, as_json: bool) -> None:
    """Repeat a published evaluation: predict it, measure its question on this machine, and write its page.

    NAME is one of the catalog, or a file ending in .toml; without a name all are listed. Published figures stand beside
    their predictions, which rest on catalog figures alone: nothing was measured on the devices that they are about.

    \b
    Examples:
      paceline evaluate
      paceline evaluate five-frameworks-cifar --predict-only
      paceline evaluate caffe-mpi-cntk-mxnet-tensorflow --page page.md
    """
    if name is None:
        names = {one: evaluation(one).title for one in evaluation_names()}
        emit({"evaluations": names}, "evaluations") if as_json else say(*(f"{one}: {names[one]}" for one in names))
        return
    asked, stored = evaluation(name), Store(store)
    answer = answer_evaluation(asked, lambda line: click.echo(line, err=True))
    if not as_json:
        show_evaluation(answer)
    campaign = None
    if asked.study is not None and not predict_only:
        stored.clean()
        cases = expand(asked.study, catalog.shipped_catalog())
        again = f"paceline evaluate {name}"
        campaign = measured_campaign(asked.study, cases, stored, quiet=as_json, again=again)
    if page is not None:
        flag = " --predict-only" if campaign is None else ""
        measured = campaign_results(stored, campaign) if campaign else []
        atomic_write(page, evaluation_page(answer, measured, f"paceline evaluate {name}{flag} --page {page}"))
    if as_json:
        emit({**answer.as_dict(), "measured": results_document(stored, campaign) if campaign else None}, "evaluate")
    elif campaign:
        show_results(stored, campaign)
