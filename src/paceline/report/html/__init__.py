"""One self-contained HTML page of a campaign, or of figures; it loads nothing from the network."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from paceline import __version__
from paceline.report.documents import plain_data
from paceline.report.html.markup import CampaignPage, Markup, element, embed_json

if TYPE_CHECKING:  # A page of figures needs nothing of a campaign.
    from paceline.explain.explanation import Explanation

__all__ = ["read_asset", "render_figures", "render_page"]

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy: own scripts and styles, no network access."""


def render_page(explanation: Explanation) -> str:
    """The page of a campaign: summary first, every setting at the end."""
    from paceline.report.html.sections import all_sections

    page = CampaignPage(explanation)
    sections = all_sections(page)
    links = [element("li", element("a", title, href=f"#{name}")) for name, title, _ in sections]
    when = explanation.started_at[:19].replace("T", " ")
    about = f"Campaign {explanation.campaign}, started {when} UTC, launcher {explanation.launcher}."
    head = [
        element("h1", explanation.title or explanation.study),
        element("p", about, class_="quiet"),
        _theme_button(),
        element("nav", element("ul", *links), aria_label="Sections"),
    ]
    skip = element("a", "Skip to the summary", href="#summary", class_="skip")
    content = [section for _, _, section in sections]
    return _whole(f"{explanation.study}: Paceline report", [skip, element("header", *head)], content, page.figures)


def render_figures(title: str, figures: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """A page of figures side by side, each with its title."""
    plots = [
        element(
            "div",
            element("h2", name),
            element("div", id=f"plot-{number}", class_="plot", role="img", aria_label=name, data_figure=str(number)),
        )
        for number, (name, _) in enumerate(figures)
    ]
    section = element("section", *plots, class_="pair" if len(plots) > 1 else None)
    header = element("header", element("h1", title), _theme_button())
    return _whole(title, [header], [section], {str(number): figure for number, (_, figure) in enumerate(figures)})


def _theme_button() -> Markup:
    return element("div", element("button", "Change colours", id="theme", type="button"), class_="tools")


def _whole(title: str, header: Sequence[Markup], content: Sequence[Markup], figures: dict[str, Any]) -> str:
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="generator", content=f"paceline {__version__}"),
        element("title", title),
        element("style", Markup(read_asset("page.css"))),
    )
    body = element(
        "body",
        *header,
        element("main", *content),
        element("footer", element("p", f"Made by Paceline {__version__}. Plots by Plotly.js (MIT).", class_="quiet")),
        embed_json(plain_data(figures, digits=6), identifier="figures"),
        element("script", Markup(read_asset("plotly-basic.min.js"))),
        element("script", Markup(read_asset("page.js"))),
    )
    return "<!doctype html>\n" + element("html", head, body, lang="en").text + "\n"


def read_asset(name: str) -> str:
    """One of the files that every page contains."""
    return files("paceline.report").joinpath("assets", name).read_text(encoding="utf-8")
