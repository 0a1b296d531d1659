"""`paceline doctor`: check this machine before measuring."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline.bench.environments import cache_folders
from paceline.bench.machine import describe_machine, diagnose
from paceline.cli.options import json_option, store_option
from paceline.report.terminal import emit, say
from paceline.report.terminal.records import show_caches, show_checks

__all__ = ["command"]


@click.command()
@click.option(
    "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Number of ranks to run on this machine."
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads of each rank; default: an even share of the cores."
)
@store_option
@json_option
def command(ranks: int, threads: int | None, store: Path, as_json: bool) -> None:
    """Check for conditions that disturb a measurement: observed, expected, and how to fix them.

    `paceline run` does the same first and stores the answer with every run. Exits 1 if something is bad.

    \b
    Examples:
      paceline doctor
      paceline doctor --ranks 8 --threads 1
    """
    checks, folders = diagnose(store, ranks=ranks, threads=threads), cache_folders()
    bad = any(check.status == "bad" for check in checks)
    if as_json:
        machine = describe_machine().model_dump(mode="json", exclude={"checks"})
        caches = [{**vars(folder), "path": str(folder.path)} for folder in folders]
        plain = [check.model_dump(mode="json") for check in checks]
        emit({"machine": machine, "ok": not bad, "checks": plain, "caches": caches}, "doctor")
    else:
        show_checks(checks)
        say("")
        show_caches(folders)
    sys.exit(1 if bad else 0)
