"""HTML elements with escaped text, so that names from files cannot inject markup; a campaign's page made of them."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.files import printable
from paceline.report.tables import Cell, Table

if TYPE_CHECKING:  # A page of figures needs nothing of a campaign.
    from paceline.explain.explanation import Explanation

__all__ = [
    "CampaignPage",
    "Markup",
    "element",
    "embed_json",
    "folded",
    "fragment",
    "html_table",
    "quiet",
    "scrollable",
]

WORDY = frozenset({"evidence", "samples per second, the fastest first"})
"""Columns of sentences, which stay wide where the page is narrow."""
_VOID = frozenset({"meta", "br", "hr", "link"})


@dataclass(frozen=True)
class Markup:
    """Escaped HTML text."""

    text: str


Child = Markup | str | int | float | None


def element(tag: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """One element; text children are escaped, `class_` and `data_x` become `class` and `data-x`, None is left out."""
    given = "".join(_attribute(key, value) for key, value in attributes.items())
    if tag in _VOID:
        return Markup(f"<{tag}{given}>")
    return Markup(f"<{tag}{given}>{fragment(*children).text}</{tag}>")


def fragment(*children: Child) -> Markup:
    """Children one after the other."""
    return Markup("".join(_child(child) for child in children if child is not None))


def _child(child: Child) -> str:
    return child.text if isinstance(child, Markup) else html.escape(printable(str(child), lines=True))


def _attribute(key: str, value: str | int | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(printable(str(value), lines=True), quote=True)}"'


def embed_json(document: Any, *, identifier: str) -> Markup:
    """Embedded JSON data, escaped so that it cannot end the element."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("\u2028", "\\u2028")
    return Markup(f'<script type="application/json" id="{identifier}">{safe}</script>')


def html_table(table: Table) -> Markup:
    """A table; a cell carries the exact value behind its rounded text as `data-value`."""
    numeric = [column.startswith(">") for column in table.columns]
    head = [
        element("th", column.lstrip(">"), scope="col", class_="num" if right else None)
        for column, right in zip(table.columns, numeric, strict=True)
    ]
    body = [element("tr", *(_cell(*pair) for pair in zip(row, table.columns, strict=True))) for row in table.rows]
    title = element("caption", element("span", table.title)) if table.title else None
    slim = "slim" if len(table.columns) < 5 and WORDY.isdisjoint(table.columns) else None
    return element(
        "table",
        title,
        element("thead", element("tr", *head)),
        element("tbody", *body),
        class_=slim,
        data_ordered=table.ordered,
    )


def _cell(cell: Cell, column: str) -> Markup:
    kind = "num" if column.startswith(">") else "words" if column in WORDY else None
    below = fragment(element("br"), element("span", cell.below, class_="quiet")) if cell.below else None
    value = repr(cell.value) if cell.value is not None else None
    return element("td", cell.text, below, class_=kind, data_value=value, data_case=cell.case_id or None)


def scrollable(content: Markup, title: str) -> Markup:
    """Content that scrolls sideways where the page is narrow; reachable by keyboard."""
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=title)


def quiet(words: str) -> Markup:
    """A less prominent paragraph."""
    return element("p", words, class_="quiet")


def folded(title: str, content: Markup) -> Markup:
    """Content that opens on demand."""
    return element("details", element("summary", title), scrollable(content, title))


@dataclass
class CampaignPage:
    """The page under construction: the explanation, and the figures of its sections."""

    explanation: Explanation
    figures: dict[str, Any] = field(default_factory=dict)

    def plot(self, name: str, figure: dict[str, Any], title: str) -> Markup:
        """The element of a figure, with an alternative text."""
        self.figures[name] = figure
        return element("div", id=name, class_="plot", role="img", aria_label=title, data_figure=name)

    def choice(self, name: str, options: Sequence[tuple[str, dict[str, Any]]], title: str) -> Markup:
        """One element for one of several figures, and the list to choose from."""
        keys = [f"{name}-{number}" for number in range(len(options))]
        self.figures |= {key: figure for key, (_, figure) in zip(keys, options, strict=True)}
        entries = [element("option", label, value=key) for key, (label, _) in zip(keys, options, strict=True)]
        label = element("label", f"{title}: ", for_=f"{name}-choice")
        chooser = element("select", *entries, id=f"{name}-choice", data_target=name, data_what=title)
        first = f"{title}: {options[0][0]}"
        plot = element("div", id=name, class_="plot", role="img", aria_label=first, data_figure=keys[0])
        return fragment(element("div", label, chooser, class_="tools"), plot)
