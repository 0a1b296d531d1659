"""HTML as data: elements whose text is always escaped, so that a name from a file can do no harm."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Markup", "element", "embed_json", "join", "plot_text"]

_VOID = frozenset({"meta", "br", "hr", "link"})


@dataclass(frozen=True)
class Markup:
    """Text that is HTML already."""

    text: str


Child = Markup | str | int | float | None


def element(tag: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """One element; text children are escaped, `class_` and `data_x` become `class` and `data-x`, None is left out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{given}>")
    return Markup(f"<{tag}{given}>{join(*children).text}</{tag}>")


def join(*children: Child) -> Markup:
    """Children one after the other."""
    return Markup("".join(_child(child) for child in children if child is not None))


def _child(child: Child) -> str:
    return child.text if isinstance(child, Markup) else html.escape(str(child))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value), quote=True)}"'


def embed_json(document: Any, *, identifier: str) -> Markup:
    """Data inside the page; nothing in it can end the element or begin another."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")
    return Markup(f'<script type="application/json" id="{identifier}">{safe}</script>')


def plot_text(text: object) -> str:
    """Text for the plotting library, which would read tags in it as formatting."""
    return html.escape(str(text), quote=False)
