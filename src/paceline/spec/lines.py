"""Where in a TOML file each field stands, so that an error can name its line.

The standard parser keeps no positions. This one reads only what is needed for them: table headers, keys, and the
extent of values that span lines. What it cannot place falls back to the enclosing field.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

__all__ = ["line_of", "locate"]

Path = tuple[str | int, ...]
_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(
    r"""^\s*((?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*'))*)\s*="""
)
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")


def locate(text: str) -> dict[Path, int]:
    """Line number of every table and key, by path; the numbers of arrays of tables are part of the path."""
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for number, line in _logical_lines(text):
        header = _HEADER.match(line)
        if header:
            table = _table_path(_parts(header.group(2)), header.group(1) == "[[", counts)
            found.setdefault(table, number)
            continue
        key = _KEY.match(line)
        if key:
            found.setdefault((*table, *_parts(key.group(1))), number)
    return found


def line_of(path: Path, found: dict[Path, int]) -> int | None:
    """Line of the field, or of the nearest field around it that was placed."""
    for end in range(len(path), 0, -1):
        if path[:end] in found:
            return found[path[:end]]
    return None


def _parts(dotted: str) -> Path:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _table_path(parts: Path, is_array: bool, counts: dict[Path, int]) -> Path:
    """A header's path with the index of each array of tables it passes through."""
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
    """Lines with their numbers, a value that spans several lines joined to its first."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        end = at + 1
        if _KEY.match(lines[at]):
            end = _value_end(lines, at)
        yield at + 1, lines[at]
        at = end


def _value_end(lines: list[str], at: int) -> int:
    """The line after a key's value: the fewest lines that parse as one assignment."""
    for end in range(at + 1, len(lines) + 1):
        try:
            tomllib.loads("\n".join(lines[at:end]))
        except tomllib.TOMLDecodeError:
            continue
        return end
    return at + 1
