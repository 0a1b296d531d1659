"""`paceline show`: what a study found."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.output import emit, json_option, store_option, table
from paceline.cli.results import results_document, show_results
from paceline.measurements.results import find_campaign
from paceline.measurements.store import Store

__all__ = ["command"]


@click.command()
@click.argument("study", required=False)
@click.option("--list", "list_all", is_flag=True, help="List every campaign in the store instead.")
@store_option
@json_option
def command(study: str | None, list_all: bool, store: Path, as_json: bool) -> None:
    """Print what the newest campaign of STUDY found; the newest of all if none is named.

    Throughput is the median over launches with its 95 % interval, speed-up comes with its base, and phases are the
    exposed shares of a step. STUDY may also be the id of one campaign.

    \b
    Examples:
      paceline show
      paceline show demo --json
      paceline show --list
    """
    place = Store(store)
    if list_all:
        _list(place, as_json)
        return
    campaign = find_campaign(place, study)
    if as_json:
        emit(results_document(place, campaign), "show")
    else:
        show_results(place, campaign)


def _list(store: Store, as_json: bool) -> None:
    campaigns = store.read_campaigns()
    counts = {str(c["campaign"]): len(store.read_all(campaign=str(c["campaign"]))) for c in campaigns}
    if as_json:
        names = ("campaign", "study", "title", "started_at", "launcher")
        rows = [{**{n: c[n] for n in names}, "runs": counts[str(c["campaign"])]} for c in campaigns]
        emit({"campaigns": rows}, "show.list")
    else:
        rows_ = [(c["campaign"], c["started_at"], counts[str(c["campaign"])], c["title"]) for c in campaigns]
        table("", ["campaign", "started", ">runs", "title"], rows_)
