"""`paceline validate`: predicted against published, one table."""

from __future__ import annotations

import functools
from pathlib import Path

import click

from paceline.cli.options import json_option
from paceline.model.validation.report import validate_file, validate_shipped
from paceline.report.terminal import emit
from paceline.report.terminal.records import show_validation

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
    judge = functools.partial(validate_file, data) if data else validate_shipped
    rows = judge(whole_campaigns=whole_campaigns)
    if as_json:
        emit({"rows": [row.as_dict() for row in rows]}, "validate")
    else:
        show_validation(rows)
