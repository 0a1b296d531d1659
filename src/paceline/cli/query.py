"""`paceline query`: SQL over all stored runs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paceline.cli.options import json_option, store_option
from paceline.measurements.sql import ask, result_rows
from paceline.measurements.store import Store
from paceline.report.documents import plain_data
from paceline.report.terminal import emit
from paceline.report.terminal.records import show_answer

__all__ = ["command"]


@click.command()
@click.argument("sql")
@store_option
@json_option
def command(sql: str, store: Path, as_json: bool) -> None:
    """Run one SELECT over all stored runs; read-only, restricted to these views.

    \b
    Views:
      runs      one row per launch: parameters, outcome, failure, machine, drift
      launches  one row per successful launch: timed_steps, step_s, samples_per_s
      steps     every step: run, pass_name, rank, step, warmup, start_s, seconds
      spans     layers and gradients inside steps: run, rank, step, phase, name, start_s, seconds, size_bytes

    \b
    Examples:
      paceline query "SELECT network, ranks, median(samples_per_s) FROM launches GROUP BY ALL ORDER BY ALL"
      paceline query "SELECT failure.reason, count(*) FROM runs WHERE outcome = 'failed' GROUP BY ALL"
      paceline query "DESCRIBE runs"
    """
    answer = ask(Store(store), sql)
    rows = result_rows(answer)
    if as_json:
        plain = plain_data(json.loads(json.dumps(plain_data(rows), default=str)))
        emit({"columns": answer.column_names, "rows": plain}, "query")
    else:
        show_answer(answer.column_names, rows)
