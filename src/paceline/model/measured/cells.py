"""CSV files of measured numbers: rows with their lines, and numbers that are checked; all problems at once."""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path

from paceline.errors import Problem, SpecError
from paceline.spec.load import read_text

__all__ = ["Cells", "read_table"]

MAX_ROWS = 100_000
WHOLE = ("devices", "devices_per_host", "hosts", "nodes")
MOST = {"devices": 1e6, "devices_per_host": 1e6, "hosts": 1e6, "nodes": 1e6}
"""The largest number of a column; 1e15 for others."""
NOTHING = ("", "nan", "none", "na", "-")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+\.[0-9]+|[+-]?[0-9]{1,3}(?:,[0-9]{3}){2,}")
"""Thousands, certainly; a single comma before three digits may as well be a decimal one."""
_SPACED = re.compile(r"[+-]?[0-9]{1,3}(?:[ '\u00a0\u2009\u202f][0-9]{3})+(?:\.[0-9]+)?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_PLAIN = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def read_table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """The names of the columns, and every row that is not empty with its line; any ends of lines are accepted.

    Cells are separated by commas, semicolons, tabs, bars (Markdown) or spaces, whatever the header has most of; lines
    that begin with # are comments, unless one of them is the header.
    """
    lines = _without_comments(read_text(path).lstrip("\ufeff").replace("\r", "\n").split("\n"))
    head = next((line for line in lines if line.strip()), "")
    separator = max(",;\t|", key=head.count)
    if separator not in head:
        separator, lines = " ", [line.strip() for line in lines]
    reader = csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, skipinitialspace=separator == " ")
    columns: list[str] | None = None
    rows: list[tuple[int, dict[str, str]]] = []
    try:
        for cells in reader:
            texts = [_ungrouped(cell.strip(), separator) for cell in cells]
            if not any(texts) or _is_rule(texts, separator):
                continue
            if columns is None:
                columns = cells
                continue
            rows.append((reader.line_num, _row(path, reader.line_num, columns, texts)))
            if len(rows) > MAX_ROWS:
                raise _wrong(path, reader.line_num, "rows", f"more than {MAX_ROWS:,}", "a smaller file")
    except csv.Error as error:
        raise _wrong(path, reader.line_num, "syntax", str(error), "a CSV file") from None
    return columns or [], rows


def _without_comments(lines: list[str]) -> list[str]:
    """The lines without comments; a comment is kept as header if the first other line has numbers."""
    comments = [place for place, line in enumerate(lines) if line.startswith("#")]
    first = next((place for place, line in enumerate(lines) if line.strip() and place not in comments), 0)
    before = [place for place in comments if place < first]
    if before and any(_PLAIN.fullmatch(cell.strip()) for cell in re.split(r"[,;\t| ]", lines[first])):
        comments.remove(before[-1])
    return ["" if place in set(comments) else line for place, line in enumerate(lines)]


def _ungrouped(text: str, separator: str) -> str:
    """A number without its thousands: where commas separate cells, a comma inside one is no decimal one."""
    return text.replace(",", "") if separator == "," and _THOUSANDS.fullmatch(text) else text


def _is_rule(texts: list[str], separator: str) -> bool:
    """Whether a row is the line below the header of a Markdown table."""
    return separator == "|" and all(re.fullmatch(r":?-+:?|", text) for text in texts)


def _row(path: Path, line: int, columns: list[str], texts: list[str]) -> dict[str, str]:
    if any(texts[len(columns) :]):
        given = f"{len(texts)} cells"
        expected = f"{len(columns)} as the first line names (a decimal comma? write a point)"
        raise _wrong(path, line, "row", given, expected)
    return dict(zip(columns, texts + [""] * len(columns), strict=False))


def _wrong(path: Path, line: int, field: str, given: str, expected: str) -> SpecError:
    return SpecError(path, [Problem(str(path), line, field, given, expected)])


@dataclass(frozen=True)
class Cells:
    """One row by the names of columns; invalid values are added to the problems of the file."""

    file: str
    line: int
    row: dict[str, str]
    problems: list[Problem]

    def refuse(self, name: str, given: str, expected: str, hint: str | None = None) -> None:
        """Note a problem."""
        self.problems.append(Problem(self.file, self.line, name, given, expected, hint))

    def number(self, name: str, *, needed: bool = False) -> float | None:
        """The number of a cell; none if the cell is empty or wrong, which is noted."""
        text = self.row.get(name, "")
        if text.lower() in NOTHING:
            if needed:
                self.refuse(name, repr(text) if text else "nothing", "a number above 0")
            return None
        if name == "spread":
            text = text.removesuffix("%").strip()
        if _GROUPED.fullmatch(text) or _SPACED.fullmatch(text):
            text = re.sub(r"[^0-9.+-]", "", text)
        if "," in text:
            hint = f"decimals have a point: {_pointed(text)}; thousands have nothing: {text.replace(',', '')}"
            if "." in text:
                hint = f"write {_pointed(text)}"
            self.refuse(name, repr(text), "a number without commas", hint)
            return None
        value = float(text) if _PLAIN.fullmatch(text) else math.nan
        least, most = 0.0 if name == "spread" else 1e-12, MOST.get(name, 1e15)
        if not least <= value <= most:
            self.refuse(name, repr(text[:80]), f"a number above 0, at most {most:g}")
            return None
        if name in WHOLE and value != round(value):
            self.refuse(name, repr(text), "a whole number")
            return None
        return value


def _pointed(text: str) -> str:
    """A number with a decimal comma as it should be written; points before the comma separate thousands."""
    whole, _, decimals = text.rpartition(",")
    return f"{whole.replace('.', '')}.{decimals}"
