"""`paceline watch`: run an unchanged training command, and report where its time goes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline.cli.options import COUNT, json_option, store_option
from paceline.integrations.watching import watch_command
from paceline.measurements.store import Store
from paceline.report.terminal import emit, say
from paceline.report.terminal.watched import verdict_document

__all__ = ["command"]


@click.command("watch", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("words", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("--name", help="Name of the run in the store.  [the script's name]")
@click.option(
    "--every",
    type=COUNT,
    metavar="N",
    default=1,
    show_default=True,
    help="Watch one of N steps, at less cost.",
)
@store_option
@json_option
def command(words: tuple[str, ...], name: str | None, every: int, store: Path, as_json: bool) -> None:
    """Run COMMAND, an unchanged PyTorch training, and store the steps of its ranks as a run.

    Every rank's steps are split into input, forward, backward, exposed exchange and update; a few early steps are timed
    layer by layer. The verdict names the rank or phase that lengthens the steps, the step of onset, the cost, and what
    to do. The exit code is that of COMMAND. `show`, `explain`, `report`, `compare`, `query`, `export` and `predict
    --from` accept the run like a study. With --json the output of COMMAND goes to standard error.

    \b
    Examples:
      paceline watch -- python train.py
      paceline watch --name nightly -- torchrun --nproc-per-node 2 train.py --epochs 1
      paceline watch --every 20 -- torchrun --nproc-per-node 8 train.py
    """
    watched = watch_command(words, Store(store), name=name, every=every, quiet=as_json)
    if as_json:
        emit({**verdict_document(watched.judgement, watched.campaign, watched.note),
              "notes": list(watched.labels), "exit_code": watched.exit_code}, "watch")  # fmt: skip
    else:
        say(*watched.lines)
    sys.exit(watched.exit_code)
