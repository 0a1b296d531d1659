"""The sections of the page of a campaign, one function each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.explain.cases.breakdown import Breakdown
from paceline.explain.cases.step import predicted_step, scaled_step
from paceline.explain.explanation import CaseExplanation, Explanation
from paceline.explain.findings.finding import Finding
from paceline.explain.predicted import Residual
from paceline.report import tables
from paceline.report.figures import campaign as figures
from paceline.report.html.markup import CampaignPage, Markup, element, folded, fragment, html_table, quiet, scrollable
from paceline.report.html.settings import settings_section
from paceline.report.html.verdict import panels_section, scaling_section, verdict_section
from paceline.report.words import MOST_OTHERS, gain_words, noise_words, predicted_words, refuted_words
from paceline.units import format_share

__all__ = ["all_sections", "findings_section"]

MOST_CHOICES = 24
"""Maximum number of cases to choose from for one figure."""
ZOOMS = {"in": "Zoom in", "out": "Zoom out", "left": "Earlier", "right": "Later", "all": "Whole step"}


def all_sections(page: CampaignPage) -> list[tuple[str, str, Markup]]:
    """Name, title and content of every section that has any."""
    built = []
    for name, title, build in SECTIONS:
        content = build(page)
        if content is not None:
            heading = element("h2", title, id=f"{name}-title")
            section = element("section", heading, content, id=name, aria_labelledby=f"{name}-title", class_=name)
            built.append((name, title, section))
    return built


def _phases(page: CampaignPage) -> Markup | None:
    breakdowns = [case.breakdown for case in page.explanation.cases if case.breakdown is not None]
    if not breakdowns:
        return None
    observed = all(item.is_observed for item in breakdowns)
    negative = "" if observed else ", negative where the passes that split the step ran slower than the clean one"
    words = (
        f"Exposed phases sum to the step; “other” is the rest{negative}. The hatched strip is communication hidden "
        "behind the backward pass."
    )
    several = [item for item in breakdowns if len(item.ranks) > 1][:MOST_CHOICES]
    return fragment(
        quiet(words),
        None if all(item.closes for item in breakdowns) else element("p", tables.NOT_CLOSED, class_="bad"),
        page.choice("phases-plot", _phases_by_network(breakdowns), "Phases of a step of"),
        folded("Shares and seconds of every case", html_table(tables.breakdown_table(breakdowns))),
        folded("Rank by rank", html_table(tables.rank_table(several))) if several else None,
        *_by_layer(breakdowns),
    )


def _phases_by_network(breakdowns: Sequence[Breakdown]) -> list[tuple[str, dict[str, Any]]]:
    """A figure for each network: steps of different networks do not share a scale."""
    groups: dict[str, list[Breakdown]] = {}
    for item in breakdowns:
        groups.setdefault(item.network, []).append(item)
    return [(network, figures.phase_bars(items)) for network, items in list(groups.items())[:MOST_CHOICES]]


def _by_layer(breakdowns: Sequence[Breakdown]) -> list[Markup]:
    """The layers of the largest case of each network, of four networks at most."""
    chosen = {item.network: item for item in breakdowns if item.layers}
    return [
        folded(f"Layer by layer: {item.label}", html_table(tables.layer_table(item)))
        for item in list(chosen.values())[:4]
    ]


def _timeline(page: CampaignPage) -> Markup | None:
    options = []
    for case in _interesting(page.explanation.good)[:8]:
        traced, factor = scaled_step(case.evidence)
        hooked = f"measured with hooks, scaled by {factor:.2f} to the clean step"
        measured = "as recorded" if case.evidence.run.launcher == "import" else hooked
        for kind, spans in ((measured, traced), ("predicted", predicted_step(case.evidence))):
            if any(span.seconds for span in spans) and case.evidence.run.ranks <= 8:
                options.append((f"{case.evidence.label}, {kind}", figures.timeline(spans[:1500])))
    if not options:
        return None
    buttons = [
        element("button", title, type="button", data_zoom=kind, data_target="timeline-plot")
        for kind, title in ZOOMS.items()
    ]
    words = (
        "Drag to zoom, double-click for the whole step. "
        "Hooks on every layer make a measured step longer than a clean one: it is scaled by the factor that is said."
    )
    chooser = page.choice("timeline-plot", options, "Step")
    return fragment(quiet(words), chooser, element("div", *buttons, class_="tools"))


def _interesting(cases: Sequence[CaseExplanation]) -> list[CaseExplanation]:
    """Cases with several ranks first, of these the traced ones, of these the slowest exchange."""

    def key(case: CaseExplanation) -> tuple[bool, bool, float]:
        exposed = case.evidence.result.phases.get("aggregate", 0.0)
        return case.evidence.run.ranks == 1, not case.evidence.spans, -exposed

    return sorted(cases, key=key)


def _gaps(page: CampaignPage) -> Markup | None:
    gaps = page.explanation.gaps[:MOST_CHOICES]
    if not gaps:
        return None
    options = [(f"{gap.slow} against {gap.fast}", figures.waterfall(gap)) for gap in gaps]
    words = "Red lengthens the faster step towards the slower one, green shortens it; the bars sum to the measured gap."
    causes = [
        element(
            "div",
            scrollable(html_table(tables.gap_table(gap)), "Causes"),
            data_follows="gap-plot-choice",
            data_figure=f"gap-plot-{number}",
            hidden=number > 0,
        )
        for number, gap in enumerate(gaps)
    ]
    return fragment(quiet(words), page.choice("gap-plot", options, "Gap"), *causes)


def _stragglers(page: CampaignPage) -> Markup | None:
    stragglers = [(case.evidence.label, item) for case in page.explanation.good for item in case.stragglers]
    return scrollable(html_table(tables.straggler_table(stragglers)), "Stragglers") if stragglers else None


def _whatif(page: CampaignPage) -> Markup | None:
    cases = [case for case in _interesting(page.explanation.good) if case.evidence.result.phases][:MOST_CHOICES]
    if not cases:
        return None
    options = [(case.evidence.label, figures.tornado(case.sensitivities)) for case in cases]
    words = "One quantity at a time halved and doubled, the step predicted again by the model."
    first = tables.what_if_table(cases[0].evidence.label, cases[0].what_ifs)
    changes = scrollable(html_table(first), "What if") if first.rows else None
    return fragment(quiet(words), page.choice("tornado-plot", options, "Case"), changes)


def _residuals(page: CampaignPage) -> Markup | None:
    series = [item for item in page.explanation.series if item.residuals]
    residuals = [residual for item in series for residual in item.residuals]
    if not residuals:
        return None
    inside = sum(residual.inside for residual in residuals)
    words = (
        f"{inside} of {len(residuals)} measured steps lie in the model's 90 % interval. "
        f"Where a bar differs, do not trust that term. {_held_out(residuals)}"
    )
    return fragment(
        element("p", words),
        page.plot("residual-plot", figures.residual_bars(series), "Measured and predicted phases"),
        folded("Numbers", html_table(tables.residual_table(residuals))),
    )


def _held_out(residuals: Sequence[Residual]) -> str:
    basis = sorted({item.basis for item in residuals if item.ranks > 1})
    return f"No case was used to predict itself: {' or '.join(basis)} did." if basis else ""


def _results(page: CampaignPage) -> Markup | None:
    cases = [case.evidence for case in page.explanation.cases]
    title = "Throughput of all ranks; batch per device."
    results = tables.results_table([case.result for case in cases], title=title, machine=True)
    failures = tables.failure_table([run for case in cases for run in case.launches.runs])
    shown = [
        scrollable(html_table(table), name)
        for table, name in ((results, "Results"), (failures, "Failures"))
        if table.rows
    ]
    return fragment(*shown) if shown else None


SECTIONS: tuple[tuple[str, str, Callable[[CampaignPage], Markup | None]], ...] = (
    ("summary", "Verdict", verdict_section),
    ("panels", "Frameworks side by side", panels_section),
    ("scaling", "How it scales", scaling_section),
    ("phases", "Where the step goes", _phases),
    ("timeline", "One step", _timeline),
    ("gaps", "Why one is slower than another", _gaps),
    ("findings", "What would help", lambda page: findings_section(page.explanation)),
    ("stragglers", "Stragglers", _stragglers),
    ("whatif", "What if", _whatif),
    ("residuals", "Measured against predicted", _residuals),
    ("results", "All results", _results),
    ("settings", "Environment and settings", lambda page: settings_section(page.explanation)),
)


KINDS = {"setting": "Setting", "code": "In the script", "purchase": "To buy", "machine": "On the machine"}


def findings_section(explanation: Explanation) -> Markup:
    """The findings, largest gain first, then what a trial refuted, and gains within the noise."""
    groups: dict[str, list[Finding]] = {}
    for finding in explanation.findings:
        groups.setdefault(finding.cause, []).append(finding)
    items = [_item(group[0], group[1:]) for group in groups.values()]
    none = element("p", "No single change is shown to save 5 % or more of the time per sample.")
    refuted = [element("p", words, class_="bad") for words in refuted_words(explanation.refuted)]
    noise = element("p", noise_words(explanation.unsure), class_="quiet") if explanation.unsure else None
    return fragment(element("ol", *items, class_="findings") if items else none, *refuted, noise)


def _item(finding: Finding, others: Sequence[Finding]) -> Markup:
    gain = finding.measured_gain
    words = f"Measured gain when tried: {gain_words(gain)}: {finding.verdict}." if gain else ""
    measured = element("p", words, class_="gain") if gain else None
    warning = element("p", finding.change.warning, class_="warn") if finding.change.warning else None
    evidence = element("ul", *(element("li", line) for line in finding.evidence))
    return element(
        "li",
        element("h3", finding.title),
        element("p", finding.case, class_="quiet"),
        element("p", "Expected gain: ", element("span", predicted_words(finding), class_="gain")),
        measured,
        element("p", f"{KINDS[finding.change.kind]}: ", element("code", finding.change.what), class_="change"),
        warning,
        _others(others),
        element("details", element("summary", "Evidence"), evidence),
        data_cause=finding.cause,
    )


def _others(findings: Sequence[Finding]) -> Markup | None:
    """Cases with the same cause and a smaller gain."""
    if not findings:
        return None
    named = "; ".join(f"{item.case} ({format_share(item.gain.value)})" for item in findings[:MOST_OTHERS])
    more = len(findings) - MOST_OTHERS
    return element("p", f"Also: {named}" + (f"; and {more} more cases." if more > 0 else "."), class_="quiet")
