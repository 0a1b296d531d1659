"""`paceline demo`: measure, predict, check the prediction by running it, and write a page."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.demonstration import demonstrate
from paceline.cli.options import json_option, store_option

__all__ = ["command"]


@click.command()
@store_option
@json_option
def command(store: Path, as_json: bool) -> None:
    """Measure a network on 1 and 2 ranks here, predict 4 ranks and 4 to 32 GPUs, check the 4 ranks, write a page.

    Takes two minutes; the first run also installs PyTorch in an isolated environment.

    \b
    Examples:
      paceline demo
      paceline demo --store /tmp/demo
    """
    demonstrate(store, as_json=as_json)
