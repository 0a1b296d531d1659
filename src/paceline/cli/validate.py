"""`paceline validate`: predicted against published, one table."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline.cli.output import emit, json_option, say, table
from paceline.model.validation.report import LAWS, Row, failures, validate_file, validate_shipped
from paceline.units import format_share

__all__ = ["command"]


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Judge a CSV file of throughputs instead.")
@json_option
def command(data: Path | None, as_json: bool) -> None:
    """Predict published figures that were left out, and print how far off the predictions were.

    Throughputs: the first points of a series predict each later one, with nothing learnt from its campaign; beside
    them a power law, a straight line and Amdahl's law on the same points. GPT: each model shape is left out once, a
    tenth of the points calibrates; beyond one host five points do. Exit code 1 if intervals fail in some situation.

    \b
    Examples:
      paceline validate
      paceline validate --data throughput.csv --json
    """
    rows = validate_file(data) if data else validate_shipped()
    failed = failures(rows)
    if as_json:
        emit({"rows": [row.as_dict() for row in rows], "failures": failed}, "validate")
    else:
        columns = ["judged by", "", ">points", ">mean", ">median", ">bias", ">in 50 %", ">in 90 %", ">score",
                   *(f">{law}" for law in LAWS), ">worst"]  # fmt: skip
        table("predicted against published, campaign left out", columns, [_cells(row) for row in rows])
        for line in failed:
            say(f"failed: {line}")
    sys.exit(1 if failed else 0)


def _cells(row: Row) -> list[object]:
    optional = [row.bias, row.covered_50, row.covered_90]
    shares = ["" if share is None else format_share(share) for share in optional]
    score = "" if row.score is None else f"{row.score:.2f}"
    laws = [format_share(row.laws[law]) if law in row.laws else "" for law in LAWS]
    errors = [format_share(value) for value in (row.mean_error, row.median_error)]
    return [row.group, row.name, row.points, *errors, *shares, score, *laws, format_share(row.worst_error)]
