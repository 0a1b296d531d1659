"""Standard output: lines, tables, JSON documents. Texts of stored runs and files give the terminal no commands."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from paceline.files import printable
from paceline.measurements.integrity import NOTES
from paceline.report.tables import Table, make_table

__all__ = ["emit", "print_rows", "print_table", "say"]


def emit(document: dict[str, Any], verb: str, *, version: int = 1) -> None:
    """Print a JSON document with the name and version of its schema, and what of the store was left out."""
    whole = {"schema": f"paceline.{verb}/{version}", **document, **NOTES.as_dict()}
    click.echo(json.dumps(whole, indent=2, allow_nan=False))


def say(*lines: str) -> None:
    """Print lines of text; on a terminal long lines of words are divided between words."""
    for line in lines:
        text = printable(line, lines=True)
        click.echo(_wrapped(text) if sys.stdout.isatty() else text)


def _wrapped(text: str) -> str:
    """The text with lines no wider than the terminal; continued lines are indented like the first."""
    width = _console().width
    parts = [
        part if len(part) <= width or "|" in part else textwrap.fill(
            part, width, subsequent_indent=" " * (len(part) - len(part.lstrip(" -"))), break_long_words=False,
            break_on_hyphens=False, drop_whitespace=True,
        )
        for part in text.split("\n")
    ]  # fmt: skip
    return "\n".join(parts)


def print_rows(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of anything that is shown as text."""
    print_table(make_table(columns, rows, title=title))


def print_table(table: Table) -> None:
    """Print a table; text is never read as markup, and no word is broken: a table that is too wide is divided."""
    console, table = _console(), _harmless(table)
    if table.title:
        _print(console, escape(table.title), style="italic", soft_wrap=not console.is_terminal)
    for number, columns in enumerate(_parts(table, console.width)):
        if number:
            click.echo()
        shown = RichTable(header_style="bold", box=None, pad_edge=False)
        for place, width in columns.items():
            name = table.columns[place]
            right = name.startswith(">")
            shown.add_column(name.lstrip(">"), justify="right" if right else "left", width=width, overflow="fold")
        for row in table.rows:
            shown.add_row(*(escape(row[place].text) for place in columns))
        _print(console, shown)


def _print(console: Console, what: Any, **how: Any) -> None:
    """Print what rich renders, without the spaces that fill its lines; a reader that left is an error of the write."""
    with console.capture() as captured:
        console.print(what, **how)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    sys.stdout.flush()


def _harmless(table: Table) -> Table:
    """A table whose texts give the terminal no commands."""
    names = [printable(name) for name in table.columns]
    texts = [[printable(cell.text, lines=True) for cell in row] for row in table.rows]
    return make_table(names, texts, title=printable(table.title, lines=True))


def _parts(table: Table, width: int) -> list[dict[int, int]]:
    """Columns with their widths; several parts, each with the first column, where one would be wider than `width`."""
    texts = [[name.lstrip(">"), *(row[place].text for row in table.rows)] for place, name in enumerate(table.columns)]
    natural = [max(map(len, column)) for column in texts]
    least = [
        size if name.startswith(">") else max(len(word) for text in column for word in text.split() or [""])
        for name, column, size in zip(table.columns, texts, natural, strict=True)
    ]
    parts: list[list[int]] = [[]]
    for place in range(len(texts)):
        if len(parts[-1]) > 1 and _total([*(least[one] for one in parts[-1]), least[place]]) > width:
            parts.append([0])
        parts[-1].append(place)
    return [_fitted(part, natural, least, width) for part in parts]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _fitted(part: Sequence[int], natural: Sequence[int], least: Sequence[int], width: int) -> dict[int, int]:
    """Natural widths; the widest column of words becomes narrower until the part fits, down to its longest word."""
    widths = {place: natural[place] for place in part}
    while _total(list(widths.values())) > width:
        wide = [place for place in part if widths[place] > least[place]]
        if not wide:
            break
        widths[max(wide, key=lambda place: widths[place])] -= 1
    return widths


def _console() -> Console:
    """Standard output; wide enough not to divide tables when it is neither a terminal nor has a stated width."""
    plain = Console(highlight=False)
    return plain if plain.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=140)
