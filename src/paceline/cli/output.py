"""What every verb shares: the --json switch, the store option, tables for people and documents for machines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from paceline import variables
from paceline.measurements.store import default_store

__all__ = ["emit", "json_option", "say", "store_option", "table"]

store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    default=default_store,
    show_default=f"${variables.STORE} or ./results",
    help="Directory where runs are kept.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


def emit(document: dict[str, Any], verb: str, *, version: int = 1) -> None:
    """Print a JSON document with the name and version of its schema."""
    click.echo(json.dumps({"schema": f"paceline.{verb}/{version}", **document}, indent=2, allow_nan=False))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns whose name starts with '>' are aligned to the right. Text is never read as markup."""
    if title:
        console().print(escape(title), style="italic", soft_wrap=True)
    shown = Table(header_style="bold", box=None, pad_edge=False)
    for column in columns:
        shown.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(escape(str(cell)) for cell in row))
    console().print(shown)


def say(text: str) -> None:
    """Print one line of text."""
    click.echo(text)


def console() -> Console:
    """Standard output; wide enough not to fold tables when it is not a terminal."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=140)
