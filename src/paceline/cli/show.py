"""`paceline show`: results of a study."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.options import json_option, plot_option, store_option, study_argument
from paceline.measurements.results import find_campaign
from paceline.measurements.store import Store
from paceline.report.documents import campaigns_document, results_document
from paceline.report.plots import check_plot, write_results
from paceline.report.terminal import emit
from paceline.report.terminal.campaign import show_campaigns, show_results

__all__ = ["command"]


@click.command()
@study_argument
@click.option("--list", "list_all", is_flag=True, help="List all campaigns in the store instead.")
@store_option
@plot_option
@json_option
def command(study: str | None, list_all: bool, store: Path, plot: Path | None, as_json: bool) -> None:
    """Print the results of the newest campaign of STUDY (default: of all studies).

    Throughput is the median over launches with its 95 % interval, speed-up comes with its base, and phases are the
    exposed shares of a step. STUDY may also be the id of one campaign.

    \b
    Examples:
      paceline show
      paceline show demo --json
      paceline show --list
      paceline show demo --plot demo.pdf
    """
    stored = Store(store)
    if list_all:
        campaigns = campaigns_document(stored)
        emit({"campaigns": campaigns}, "show.list") if as_json else show_campaigns(campaigns)
        return
    check_plot(plot)
    campaign = find_campaign(stored, study)
    if plot is not None:
        write_results(plot, stored, campaign)
    if as_json:
        emit(results_document(stored, campaign), "show")
    else:
        show_results(stored, campaign)
