"""The sections of the page, one function each: data in, HTML out, figures collected on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.explain.cases.breakdown import Breakdown
from paceline.explain.cases.step import measured_step, predicted_step
from paceline.explain.explanation import CaseExplanation, Explanation
from paceline.explain.predicted import Residual, ScalingSeries
from paceline.report import figures
from paceline.report.details import settings_section
from paceline.report.findings import findings_section
from paceline.report.markup import Markup, element, join
from paceline.report.tables import (
    breakdown_table,
    gap_table,
    layer_table,
    rank_table,
    residual_table,
    results_table,
    straggler_table,
)

__all__ = ["Page", "all_sections"]

MOST_CHOICES = 24
"""Cases offered for one figure; the tables hold all."""


@dataclass
class Page:
    """The page as it is built: the explanation, and the figures that its sections asked for."""

    explanation: Explanation
    figures: dict[str, Any] = field(default_factory=dict)

    def plot(self, name: str, figure: dict[str, Any], what: str) -> Markup:
        """A place for a figure, with words for those who do not see it."""
        self.figures[name] = figure
        return element("div", id=name, class_="plot", role="img", aria_label=what, data_figure=name)

    def choice(self, name: str, options: Sequence[tuple[str, dict[str, Any]]], what: str) -> Markup:
        """One place for one of several figures, and the list to choose from."""
        keys = [f"{name}-{number}" for number in range(len(options))]
        for key, (_, figure) in zip(keys, options, strict=True):
            self.figures[key] = figure
        entries = [element("option", label, value=key) for key, (label, _) in zip(keys, options, strict=True)]
        label = element("label", f"{what}: ", for_=f"{name}-choice")
        chooser = element("select", *entries, id=f"{name}-choice", data_target=name, data_what=what)
        place = element(
            "div", id=name, class_="plot", role="img", aria_label=f"{what}: {options[0][0]}", data_figure=keys[0]
        )
        return join(element("div", label, chooser, class_="tools"), place)


Section = tuple[str, str, Callable[[Page], Markup | None]]


def all_sections(page: Page) -> list[tuple[str, str, Markup]]:
    """Name, title and content of every section that has any."""
    built = []
    for name, title, build in SECTIONS:
        content = build(page)
        if content is not None:
            heading = element("h2", title, id=f"{name}-title")
            built.append(
                (
                    name,
                    title,
                    element("section", heading, content, id=name, aria_labelledby=f"{name}-title", class_=name),
                )
            )
    return built


def _summary(page: Page) -> Markup:
    sentences = [element("p", sentence) for sentence in page.explanation.summary]
    failed = [case for case in page.explanation.cases if case.evidence.result.num_failed]
    note = (
        element("p", f"{len(failed)} cases had launches that failed; they are listed below.", class_="bad")
        if failed
        else None
    )
    return join(*sentences, note)


def _scaling(page: Page) -> Markup | None:
    series = page.explanation.series
    figure = figures.scaling(series)
    if not figure["data"]:
        return None
    throughput = page.plot(
        "scaling-plot", figure, "Samples per second over ranks; the table of results holds the numbers"
    )
    relative = figures.efficiency(series)
    efficiency = page.plot("efficiency-plot", relative, "Efficiency over ranks") if relative["data"] else None
    missing = sorted({item.why_not for item in series if item.why_not})
    words = (
        "Points are medians over launches with 95 % intervals; dotted is ideal, "
        f"dashed is what the model predicts from one rank{_calibrated(series)}."
    )
    note = (
        _folded(f"Curves without a prediction: {len(missing)}", element("ul", *(element("li", why) for why in missing)))
        if missing
        else None
    )
    plots = (
        element(
            "div",
            element("div", element("h3", "Throughput"), throughput),
            efficiency and element("div", element("h3", "Efficiency"), efficiency),
            class_="pair",
        )
        if efficiency
        else throughput
    )
    return join(element("p", words, class_="quiet"), plots, note)


def _calibrated(series: Sequence[ScalingSeries]) -> str:
    """What the drawn curves were calibrated with."""
    found = sorted({item.basis for item in series if item.basis})
    return f", calibrated with {' or '.join(found)}" if found else ""


def _phases(page: Page) -> Markup | None:
    found = [case.breakdown for case in page.explanation.cases if case.breakdown is not None]
    if not found:
        return None
    more = (
        element("p", f"The plot shows {figures.MOST_BARS} of {len(found)} cases; the table all.", class_="quiet")
        if len(found) > figures.MOST_BARS
        else None
    )
    words = (
        "What is exposed sums to the step; “other” is the rest, "
        "negative where the passes that split the step ran slower than the clean one."
    )
    plot = page.plot(
        "phases-plot", figures.phase_bars(found), "Phases of a step by case; the table below holds the numbers"
    )
    return join(
        element("p", words, class_="quiet"),
        plot,
        more,
        _folded("Shares and seconds of every case", breakdown_table(found)),
        _by_rank(found),
        _by_layer(found),
    )


def _by_rank(found: Sequence[Breakdown]) -> Markup | None:
    several = [item for item in found if len(item.ranks) > 1][:MOST_CHOICES]
    return _folded("Rank by rank", rank_table(several)) if several else None


def _by_layer(found: Sequence[Breakdown]) -> Markup | None:
    """The layers of the largest case of each network, so many networks at most."""
    chosen: dict[str, Breakdown] = {}
    for item in found:
        if item.layers:
            chosen[item.network] = item
    parts = [_folded(f"Layer by layer: {item.label}", layer_table(item)) for item in list(chosen.values())[:4]]
    return join(*parts) if parts else None


def _timeline(page: Page) -> Markup | None:
    options = []
    for case in _interesting(page.explanation.good)[:8]:
        for what, spans in (("measured", measured_step(case.evidence)), ("predicted", predicted_step(case.evidence))):
            if spans and case.evidence.run.ranks <= 8:
                options.append((f"{case.evidence.label}, {what}", figures.timeline(spans[:1500])))
    if not options:
        return None
    buttons = [
        element("button", title, type="button", data_zoom=kind, data_target="timeline-plot")
        for kind, title in (
            ("in", "Zoom in"),
            ("out", "Zoom out"),
            ("left", "Earlier"),
            ("right", "Later"),
            ("all", "Whole step"),
        )
    ]
    words = (
        "Drag to zoom, double-click for the whole. "
        "Measured steps carry hooks on every layer, which make them longer than clean ones."
    )
    return join(
        element("p", words, class_="quiet"),
        page.choice("timeline-plot", options, "Step"),
        element("div", *buttons, class_="tools"),
    )


def _interesting(cases: Sequence[CaseExplanation]) -> list[CaseExplanation]:
    """Cases with several ranks first, of these the traced ones, of these the slowest exchange."""

    def key(case: CaseExplanation) -> tuple[bool, bool, float]:
        exposed = case.evidence.result.phases.get("aggregate", 0.0)
        return case.evidence.run.ranks == 1, not case.evidence.spans, -exposed

    return sorted(cases, key=key)


def _gaps(page: Page) -> Markup | None:
    gaps = page.explanation.gaps[:MOST_CHOICES]
    if not gaps:
        return None
    options = [(f"{gap.slow} against {gap.fast}", figures.waterfall(gap)) for gap in gaps]
    words = "Green shortens the slower step towards the faster one, red lengthens it; the bars sum to the measured gap."
    tables = [
        element(
            "div",
            _scroll(gap_table(gap), "Causes"),
            data_follows="gap-plot-choice",
            data_figure=f"gap-plot-{number}",
            hidden=number > 0,
        )
        for number, gap in enumerate(gaps)
    ]
    return join(element("p", words, class_="quiet"), page.choice("gap-plot", options, "Gap"), *tables)


def _stragglers(page: Page) -> Markup | None:
    found = [(case.evidence.label, item) for case in page.explanation.good for item in case.stragglers]
    return straggler_table(found) if found else None


def _whatif(page: Page) -> Markup | None:
    cases = [case for case in _interesting(page.explanation.good) if case.evidence.result.phases][:MOST_CHOICES]
    if not cases:
        return None
    options = [(case.evidence.label, figures.tornado(case.sensitivities)) for case in cases]
    words = "One quantity at a time halved and doubled, the step predicted again by the model."
    return join(
        element("p", words, class_="quiet"), page.choice("tornado-plot", options, "Case"), _whatif_table(cases[0])
    )


def _whatif_table(case: CaseExplanation) -> Markup | None:
    if not case.what_ifs:
        return None
    rows = [
        element(
            "tr",
            element("td", item.change),
            element("td", f"{1e3 * item.predicted_step_s:.2f}", class_="num"),
            element("td", f"{1e3 * item.saved_s:+.2f}", class_="num"),
        )
        for item in case.what_ifs
    ]
    head = element(
        "tr",
        element("th", "change", scope="col"),
        element("th", "predicted step, ms", scope="col", class_="num"),
        element("th", "saved, ms", scope="col", class_="num"),
    )
    caption = element("caption", element("span", f"What if: {case.evidence.label}"))
    whole = element("table", caption, element("thead", head), element("tbody", *rows), class_="slim")
    return _scroll(whole, "What if")


def _residuals(page: Page) -> Markup | None:
    found = [item for item in page.explanation.series if item.residuals]
    if not found:
        return None
    all_of = [residual for item in found for residual in item.residuals]
    inside = sum(residual.inside for residual in all_of)
    words = (
        f"{inside} of {len(all_of)} measured steps lie in the model's 90 % interval. "
        f"Where a bar differs, do not trust that term. {_held_out(all_of)}"
    )
    return join(
        element("p", words),
        page.plot("residual-plot", figures.residual_bars(found), "Measured and predicted phases"),
        _folded("Numbers", residual_table(all_of)),
    )


def _held_out(residuals: Sequence[Residual]) -> str:
    found = sorted({item.basis for item in residuals if item.ranks > 1})
    return f"No case helped to predict itself: {' or '.join(found)} did." if found else ""


def _results(page: Page) -> Markup | None:
    return _scroll(results_table(page.explanation.cases), "Results") if page.explanation.cases else None


def _folded(title: str, content: Markup) -> Markup:
    return element("details", element("summary", title), _scroll(content, title))


def _scroll(content: Markup, what: str) -> Markup:
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=what)


SECTIONS: tuple[Section, ...] = (
    ("summary", "In three sentences", _summary),
    ("scaling", "How it scales", _scaling),
    ("phases", "Where the step goes", _phases),
    ("timeline", "One step", _timeline),
    ("gaps", "Why one is slower than another", _gaps),
    ("findings", "What would help", lambda page: findings_section(page.explanation.findings, page.explanation.unsure)),
    ("stragglers", "Stragglers", _stragglers),
    ("whatif", "What if", _whatif),
    ("residuals", "Measured against predicted", _residuals),
    ("results", "All results", _results),
    ("settings", "Environment and settings", lambda page: settings_section(page.explanation)),
)
