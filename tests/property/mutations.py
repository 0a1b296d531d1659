"""Seeded mutations of input files: of bytes, of lines and of fields."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from typing import Any

import tomli_w

ODD: tuple[Any, ...] = (
    *(0, -1, 1, 3, 7, 2**31, 2**63, 2**70, -(2**70), 10**30),
    *(0.0, -0.0, 0.5, 1e308, -1e-320, float("inf"), float("-inf"), float("nan")),
    *("", " ", "\n", "\u0000", "\ud7ff", "é" * 300, "x" * 5000, "{}", "[[", "%s%n", "../../etc/passwd", "/dev/zero"),
    *("resnet50", "resnet5O", "pytorch", "pytorch/", "/", "pytorch/fsdp2", "local", "mixed-lab", "weak", "strong"),
    *("25 MiB", "25 MB/s", "1e999 s", "-3 s", "nan GB", "٣ s", "1_0 ms", "missing.toml", ".toml", "\u0000.toml"),
    *(True, False, [], {}, [[]], [{}], [1, "a", None.__class__.__name__], {"name": "x"}, {"kind": "conv2d"}),
)
CELLS = (
    "350,5",
    "1.234,5",
    "1e999",
    "1_000",
    "٣",
    "-0",
    "1e-320",
    "4.5",
    "inf",
    "n/a",
    "3 507",
    "0x10",
    "1e15",
    "9" * 400,
)
SCALES = (0, -1, 1e-12, 1e-6, 1e-3, 0.3, 2, 7, 1e3, 1e6, 1e9, 1e30, 1e200)
NAMES = (
    "name",
    "networks",
    "devices",
    "batch",
    "bucket",
    "kind",
    "Protocol",
    "protcol",
    "steps",
    "",
    "a.b",
    "é",
    "__class__",
)
TOKENS = (
    b'"',
    b"'",
    b'"""',
    b"[",
    b"]",
    b"[[",
    b"=",
    b"\n",
    b"#",
    b"\x00",
    b"\xff",
    b"\xef\xbb\xbf",
    b"1e9",
    b"true",
    b".",
    b"{",
)


def mutants(texts: list[bytes], count: int, *, seed: int, form: str = "toml") -> Iterator[bytes]:
    """`count` files, each a few mutations away from one of the texts; every second file is mutated by fields."""
    draw = random.Random(seed)
    by_fields = {"toml": _toml_fields, "json": _json_fields, "csv": _csv_fields, "bytes": _by_bytes}[form]
    for number in range(count):
        data = draw.choice(texts)
        yield by_fields(data, draw) if number % 2 else _by_bytes(data, draw)


def _by_bytes(data: bytes, draw: random.Random) -> bytes:
    for _ in range(draw.randint(1, 4)):
        data = draw.choice((_flip, _cut, _insert, _repeat, _truncate, _swap_lines))(data, draw)
    return data


def _span(data: bytes, draw: random.Random) -> tuple[int, int]:
    begin = draw.randint(0, len(data))
    return begin, min(len(data), begin + draw.randint(0, 12))


def _flip(data: bytes, draw: random.Random) -> bytes:
    if not data:
        return data
    at = draw.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << draw.randrange(8))]) + data[at + 1 :]


def _cut(data: bytes, draw: random.Random) -> bytes:
    begin, end = _span(data, draw)
    return data[:begin] + data[end:]


def _insert(data: bytes, draw: random.Random) -> bytes:
    at = draw.randint(0, len(data))
    return data[:at] + draw.choice(TOKENS) + data[at:]


def _repeat(data: bytes, draw: random.Random) -> bytes:
    begin, end = _span(data, draw)
    return data[:end] + data[begin:end] * draw.choice((1, 2, 200)) + data[end:]


def _truncate(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randint(0, len(data))]


def _swap_lines(data: bytes, draw: random.Random) -> bytes:
    lines = data.split(b"\n")
    one, two = draw.randrange(len(lines)), draw.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    return b"\n".join(lines)


def _toml_fields(text: bytes, draw: random.Random) -> bytes:
    return tomli_w.dumps(_changed(tomllib.loads(text.decode()), draw)).encode()


def _json_fields(text: bytes, draw: random.Random) -> bytes:
    return json.dumps(_changed(json.loads(text), draw), indent=draw.choice((None, 1))).encode()


def _csv_fields(text: bytes, draw: random.Random) -> bytes:
    """Some cells replaced, rows repeated or dropped, other separators and ends of lines."""
    rows = list(csv.reader(io.StringIO(text.decode())))
    for _ in range(draw.randint(1, 3)):
        row = draw.choice(rows)
        if row:
            at = draw.randrange(len(row))
            number = row[at].replace(".", "").isdigit()
            scaled = f"{float(row[at] or 1) * draw.choice(SCALES):.12g}" if number else row[at]
            row[at] = draw.choice((*CELLS, str(_odd(draw)), *[scaled] * len(CELLS)))
        draw.choice((list.append, lambda rows, row: None, lambda rows, row: rows[1:] and rows.pop()))(rows, row)
    file = io.StringIO()
    csv.writer(file, delimiter=draw.choice(",,,,;\t"), lineterminator=draw.choice(("\n", "\r\n", "\r"))).writerows(rows)
    return file.getvalue().encode("utf-8", errors="replace")


def _changed(data: Any, draw: random.Random) -> Any:
    """Numbers of another size, which are often valid; else odd values, other names, more and less fields."""
    if draw.random() < 0.5:
        for _ in range(draw.randint(1, 3)):
            _nudge(data, draw)
        return data
    for _ in range(draw.randint(1, 3)):
        table = draw.choice(list(_tables(data)))
        change: Callable[[Any, random.Random], None] = draw.choice((_set, _set, _set, _drop, _rename, _add))
        change(table, draw)
    return data


def _tables(data: Any) -> Iterator[Any]:
    """Every table and list of the file, including the root table."""
    if isinstance(data, dict | list):
        yield data
        for item in data.values() if isinstance(data, dict) else data:
            yield from _tables(item)


def _key(table: Any, draw: random.Random) -> Any:
    keys = list(table) if isinstance(table, dict) else list(range(len(table)))
    return draw.choice(keys) if keys else None


def _odd(draw: random.Random) -> Any:
    return copy.deepcopy(draw.choice(ODD))


def _set(table: Any, draw: random.Random) -> None:
    key = _key(table, draw)
    if key is not None:
        table[key] = _odd(draw)


def _nudge(data: Any, draw: random.Random) -> None:
    """Make one number larger or smaller."""
    tables = [table for table in _tables(data) if table]
    for _ in range(20):
        table = draw.choice(tables) if tables else {}
        key = _key(table, draw)
        value = table[key] if key is not None else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            scaled = value * draw.choice(SCALES)
            table[key] = int(scaled) if isinstance(value, int) and abs(scaled) < 1e18 else scaled
            return


def _drop(table: Any, draw: random.Random) -> None:
    key = _key(table, draw)
    if key is not None:
        del table[key]


def _rename(table: Any, draw: random.Random) -> None:
    key = _key(table, draw)
    if isinstance(table, dict) and key is not None:
        name = draw.choice((key + "s", key[:-1], key.upper(), *NAMES))
        table[name] = table.pop(key)


def _add(table: Any, draw: random.Random) -> None:
    if isinstance(table, dict):
        table[draw.choice(NAMES)] = _odd(draw)
    else:
        table.extend(_odd(draw) for _ in range(draw.choice((1, 1, 50))))
