"""Line numbers of the fields of a TOML or JSON file, for error messages.

The standard parsers keep no positions. This module parses only what positions need: table headers, keys, and the
extent of multi-line values. A field without a position gets the line of the enclosing field.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator

__all__ = ["line_of", "locate", "locate_json"]

Path = tuple[str | int, ...]
_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")

_LONG_QUOTES = ('"""', "'''")
_TOKEN = re.compile(r"""\"{3}|'{3}|"(?:[^"\\]|\\.)*"|'[^']*'|\#.*|[\[\]{}]""")


def locate(text: str) -> dict[Path, int]:
    """Line number of every table and key, by path; indices of arrays of tables are part of the path."""
    lines: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for number, line in _logical_lines(text):
        header = _HEADER.match(line)
        if header:
            table = _table_path(_parts(header.group(2)), header.group(1) == "[[", counts)
            lines.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key:
            lines.setdefault((*table, *_parts(key.group(1))), number)
    return lines


_JSON = re.compile(r'"(?:[^"\\]|\\.)*"(?P<colon>\s*:)?|[\[\]{},]|\n|[^\s"\[\]{},:]+')


def locate_json(text: str) -> dict[Path, int]:
    """Line number of every value of a JSON text, by path; for invalid JSON, of the values before the error."""
    lines: dict[Path, int] = {}
    with contextlib.suppress(ValueError, IndexError):
        for path, number in _located_json(text):
            lines.setdefault(path, number)
    return lines


def _located_json(text: str) -> Iterator[tuple[Path, int]]:
    place: list[str | int] = []
    number = 1
    for token in _JSON.finditer(text):
        word = token.group()
        if token["colon"]:
            place[-1] = str(json.loads(word[: token.start("colon") - token.start()], strict=False))
        elif word in ("}", "]"):
            place.pop()
        elif word == "," and isinstance(place[-1], int):
            place[-1] += 1
        elif word not in (",", "\n"):
            yield tuple(place), number
            if word in ("{", "["):
                place.append(0 if word == "[" else "")
        number += word.count("\n")
        if token["colon"]:
            yield tuple(place), number


def line_of(path: Path, lines: dict[Path, int]) -> int | None:
    """Line of the field, or of the innermost enclosing field that has a line."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return None


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _table_path(parts: Path, is_array: bool, counts: dict[Path, int]) -> Path:
    """The path of a header with the index of each enclosing array of tables."""
    path: Path = ()
    for position, part in enumerate(parts):
        path = (*path, part)
        last = position == len(parts) - 1
        if last and is_array:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without the continuation lines of values."""
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        yield at + 1, lines[at]
        at = _value_end(lines, at) if _KEY.match(lines[at]) else at + 1


def _value_end(lines: list[str], at: int) -> int:
    """The line after the value of a key, determined by open brackets and quotes."""
    depth, quote = 0, ""
    for number in range(at, len(lines)):
        depth, quote = _after(lines[number], depth, quote)
        if depth <= 0 and not quote:
            return number + 1
    return at + 1


def _after(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Number of open brackets and the open multi-line quote after a line."""
    at = 0
    while True:
        if quote:
            end = line.find(quote, at)
            if end < 0:
                return depth, quote
            at, quote = end + len(quote), ""
        token = _TOKEN.search(line, at)
        if token is None:
            return depth, quote
        at = token.end()
        if token.group() in _LONG_QUOTES:
            quote = token.group()
        else:
            depth += (token.group() in "[{") - (token.group() in "]}")
