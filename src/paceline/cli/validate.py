"""`paceline validate`: predicted against published, one table."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.output import emit, json_option, table
from paceline.model.validation.report import Row, validate_file, validate_shipped
from paceline.units import format_share

__all__ = ["command"]


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Judge a CSV file of throughputs instead.")
@click.option("--whole-campaigns", is_flag=True, help="Learn nothing from the campaign that is judged.")
@json_option
def command(data: Path | None, whole_campaigns: bool, as_json: bool) -> None:
    """Predict published figures that were left out, and print how far off the predictions were.

    Throughputs: all smaller device counts of a series are fitted, its largest is predicted, with a prior from other
    series. GPT: each model shape is left out once, a tenth of the points calibrates; beyond one host five points do.

    \b
    Examples:
      paceline validate
      paceline validate --whole-campaigns
      paceline validate --data throughput.csv --json
    """
    rows = validate_file(data, whole_campaigns=whole_campaigns) if data else validate_shipped(
        whole_campaigns=whole_campaigns
    )  # fmt: skip
    if as_json:
        emit({"rows": [row.as_dict() for row in rows]}, "validate")
    else:
        columns = ["campaign", ">points", ">mean error", ">median", ">in 50 %", ">in 90 %", ">worst", "worst case"]
        table("predicted against published, largest count left out", columns, [_cells(row) for row in rows])


def _cells(row: Row) -> list[object]:
    covered = ["" if share is None else format_share(share) for share in (row.covered_50, row.covered_90)]
    errors = [format_share(value) for value in (row.mean_error, row.median_error)]
    return [row.name, row.points, *errors, *covered, format_share(row.worst_error), row.worst[:90]]
