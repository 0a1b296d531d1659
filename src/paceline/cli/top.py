"""`paceline top`: watch the ranks of a running training."""

from __future__ import annotations

import time

import click

from paceline.cli.options import Finite, json_option
from paceline.report.terminal import emit
from paceline.report.terminal.records import show_running
from paceline.runtime.observe.metrics import read_metrics

__all__ = ["command"]


@click.command()
@click.argument("where")
@click.option("--once", is_flag=True, help="Print the newest state once and exit.")
@click.option("--every", type=Finite(0.1, 3600), default=2.0, show_default=True, help="Seconds between two refreshes.")
@json_option
def command(where: str, once: bool, every: float, as_json: bool) -> None:
    """Monitor the ranks of a running training job: steps, shares, waiting, staleness, membership.

    WHERE is the folder of Settings(metrics=...), or the endpoints of Settings(metrics_port=...), separated by commas.
    The numbers are means over about one second.

    \b
    Examples:
      paceline top run/metrics
      paceline top run/metrics --once --json
      paceline top http://127.0.0.1:9400,http://127.0.0.1:9401
    """
    while True:
        lines = read_metrics(where)
        if as_json:
            emit({"ranks": lines}, "top")
            return
        if not once:
            click.clear()
        show_running(lines)
        if once:
            return
        time.sleep(every)
