"""JSON from a peer: bounded in depth, and without characters that cannot be written again."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["MAX_DEPTH", "UnacceptableText", "load_plain"]

MAX_DEPTH = 32
"""Largest nesting of lists and tables. Messages need fewer than ten levels; Python's own limit would end threads."""


class UnacceptableText(ValueError):
    """The text is no JSON, or JSON that no honest peer sends."""


def load_plain(text: bytes) -> Any:
    """The value of a JSON text."""
    try:
        value = json.loads(text.decode())  # of bytes, `loads` takes UTF-16 and encoded surrogates, too
        if b"\\u" in text:  # lone surrogates pass the parser, and raise where the text is written or sent on
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise UnacceptableText("the peer sent what is not JSON") from error
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, (dict, list))]:
        depth += 1
        if depth > MAX_DEPTH:
            raise UnacceptableText(f"the peer sent lists in lists, deeper than {MAX_DEPTH}")
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return value
