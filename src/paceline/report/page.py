"""One self-contained HTML page: summary first, every setting at the end, nothing from the network."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from paceline import __version__
from paceline.explain.explanation import Explanation
from paceline.report.markup import Markup, element, embed_json
from paceline.report.sections import Page, all_sections

__all__ = ["file_name", "render_page"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""What the browser allows the page: its own scripts and styles, and no network at all."""


def render_page(explanation: Explanation) -> str:
    """The whole page as text."""
    page = Page(explanation)
    body = all_sections(page)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="generator", content=f"paceline {__version__}"),
        element("title", f"{explanation.study}: Paceline report"),
        element("style", Markup(_asset("page.css"))),
    )
    return "<!doctype html>\n" + element("html", head, _body(page, body), lang="en").text + "\n"


def _body(page: Page, sections: list[tuple[str, str, Markup]]) -> Markup:
    explanation = page.explanation
    links = [element("li", element("a", title, href=f"#{name}")) for name, title, _ in sections]
    when = explanation.started_at[:19].replace("T", " ")
    about = f"Campaign {explanation.campaign}, started {when} UTC, launcher {explanation.launcher}."
    return element(
        "body",
        element("a", "Skip to the summary", href="#summary", class_="skip"),
        element(
            "header",
            element("h1", explanation.title or explanation.study),
            element("p", about, class_="quiet"),
            element("div", element("button", "Change colours", id="theme", type="button"), class_="tools"),
            element("nav", element("ul", *links), aria_label="Sections"),
        ),
        element("main", *(section for _, _, section in sections)),
        element("footer", element("p", f"Made by Paceline {__version__}. Plots by Plotly.js (MIT).", class_="quiet")),
        embed_json(_without_infinities(page.figures), identifier="figures"),
        element("script", Markup(_asset("plotly-basic.min.js"))),
        element("script", Markup(_asset("page.js"))),
    )


def _asset(name: str) -> str:
    return files("paceline.report").joinpath("assets", name).read_text(encoding="utf-8")


def _without_infinities(value: Any) -> Any:
    """JSON has no infinity; a bound that is not known is absent. Ten significant digits are enough to draw."""
    if isinstance(value, dict):
        return {key: _without_infinities(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinities(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    return value


def file_name(study: str) -> str:
    """A name for the page's file that cannot leave its directory, whatever the study is called."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", study).strip(".-")
    return f"{plain or 'study'}.html"
