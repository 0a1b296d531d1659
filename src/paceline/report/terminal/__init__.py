"""Standard output: lines, tables, JSON documents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from paceline.measurements.integrity import NOTES
from paceline.report.tables import Table, make_table

__all__ = ["emit", "print_rows", "print_table", "say"]


def emit(document: dict[str, Any], verb: str, *, version: int = 1) -> None:
    """Print a JSON document with the name and version of its schema, and what of the store was left out."""
    whole = {"schema": f"paceline.{verb}/{version}", **document, **NOTES.as_dict()}
    click.echo(json.dumps(whole, indent=2, allow_nan=False))


def say(*lines: str) -> None:
    """Print lines of text."""
    for line in lines:
        click.echo(line)


def print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of anything that is shown as text."""
    print_table(make_table(columns, rows, title=title))


def print_table(table: Table) -> None:
    """Print a table; text is never read as markup."""
    if table.title:
        _console().print(escape(table.title), style="italic", soft_wrap=True)
    shown = RichTable(header_style="bold", box=None, pad_edge=False)
    for column in table.columns:
        shown.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(escape(cell.text) for cell in row))
    _console().print(shown)


def _console() -> Console:
    """Standard output; wide enough not to fold tables when it is not a terminal."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal else Console(highlight=False, width=140)
