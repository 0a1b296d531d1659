"""`paceline validate`: compare predictions with published figures."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline.cli.options import json_option
from paceline.model.validation.report import failures, validate_file, validate_shipped
from paceline.report.terminal import emit, say
from paceline.report.terminal.records import show_validation

__all__ = ["command"]


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Evaluate a CSV file of throughputs instead.")
@json_option
def command(data: Path | None, as_json: bool) -> None:
    """Predict held-out published figures, and print the errors.

    Throughputs: the first points of a series predict each later point; the whole campaign of the series is held out of
    the prior. Baselines on the same points: a power law, a straight line and Amdahl's law. GPT: each model shape is
    held out once; a tenth of the points calibrates the model, beyond one host five points. Exit code 1 if the coverage
    of intervals fails in a situation.

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
        show_validation(rows)
        for line in failed:
            say(f"failed: {line}")
    sys.exit(1 if failed else 0)
