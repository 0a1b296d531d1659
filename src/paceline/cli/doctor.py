"""`paceline doctor`: is this machine fit to measure?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline.bench.machine import describe_machine, diagnose
from paceline.cli.options import json_option, store_option
from paceline.report.terminal import emit
from paceline.report.terminal.records import show_checks

__all__ = ["command"]


@click.command()
@click.option("--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Ranks you mean to run here.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads of each rank; an even share if not given.")
@store_option
@json_option
def command(ranks: int, threads: int | None, store: Path, as_json: bool) -> None:
    """Look for what would spoil a measurement here: what it saw, what it should be, how to fix it.

    `paceline run` does the same first and stores the answer with every run. Exits 1 if something is bad.

    \b
    Examples:
      paceline doctor
      paceline doctor --ranks 8 --threads 1
    """
    checks = diagnose(store, ranks=ranks, threads=threads)
    bad = any(check.status == "bad" for check in checks)
    if as_json:
        machine = describe_machine().model_dump(mode="json", exclude={"checks"})
        emit({"machine": machine, "ok": not bad, "checks": [c.model_dump(mode="json") for c in checks]}, "doctor")
    else:
        show_checks(checks)
    sys.exit(1 if bad else 0)
