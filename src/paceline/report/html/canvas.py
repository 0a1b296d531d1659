"""The page of a campaign under construction: its figures, and small parts that several sections use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.explain.explanation import Explanation
from paceline.report.html.markup import Markup, element, fragment, scrollable

__all__ = ["CampaignPage", "folded", "quiet"]


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


def quiet(words: str) -> Markup:
    """A less prominent paragraph."""
    return element("p", words, class_="quiet")


def folded(title: str, content: Markup) -> Markup:
    """Content that opens on demand."""
    return element("details", element("summary", title), scrollable(content, title))
