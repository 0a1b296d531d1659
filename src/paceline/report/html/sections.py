"""The sections of the page of a campaign, one function each, in the order of the page; SECTIONS lists them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from paceline.explain.cases.breakdown import Breakdown
from paceline.explain.cases.step import predicted_step, scaled_step
from paceline.explain.explanation import CaseExplanation
from paceline.explain.findings import Finding
from paceline.explain.predicted import Residual, ScalingSeries
from paceline.measurements.ranking import Ranking
from paceline.report import tables
from paceline.report.figures import campaign, networks
from paceline.report.html.markup import CampaignPage, Markup, element, folded, fragment, html_table, quiet, scrollable
from paceline.report.html.settings import settings_section, threads_words
from paceline.report.tables import ranking_table
from paceline.report.terminal.watched import verdict_lines
from paceline.report.words import MOST_OTHERS, gain_words, noise_words, predicted_words, refuted_words
from paceline.units import BYTES, format_share

__all__ = ["all_sections"]

MOST_CHOICES = 24
"""Maximum number of cases to choose from for one figure."""
MOST_NETWORKS = 8
"""Maximum number of networks with panels."""
KINDS = {"setting": "Setting", "code": "In the script", "purchase": "To buy", "machine": "On the machine"}
ZOOMS = {"in": "Zoom in", "out": "Zoom out", "left": "Earlier", "right": "Later", "all": "Whole step"}


def _verdict(page: CampaignPage) -> Markup:
    """Three sentences, the hardware, and the ranking within each network and size."""
    sentences = [element("p", sentence) for sentence in page.explanation.summary]
    failed = sum(case.evidence.result.num_failed > 0 for case in page.explanation.cases)
    note = element("p", f"{failed} cases had launches that failed; they are listed below.", class_="bad")
    rankings = ranking_table(_contested(page))
    table = scrollable(html_table(rankings), "Ranking") if rankings.rows else None
    damaged = [element("p", f"Left out as damaged: {what}", class_="bad") for what in page.explanation.left_out]
    return fragment(*sentences, *_observed(page), note if failed else None, *damaged, *_hardware(page), table)


def _observed(page: CampaignPage) -> list[Markup]:
    """The verdict on watched or imported steps, as in the terminal."""
    about = page.explanation
    return [
        element("pre", "\n".join(verdict_lines(judgement, about.campaign, about.launcher)))
        for judgement in about.judgements
    ]


def _hardware(page: CampaignPage) -> list[Markup]:
    """A line for each distinct host: processor, cores, memory, threads."""
    every = [run for case in page.explanation.cases for run in case.evidence.launches.runs]
    runs = [run for run in every if run.machine.memory_bytes]  # an imported run does not contain its hosts
    hosts: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        machine = run.machine
        hosts.setdefault((machine.host, machine.cpu, machine.cores, machine.memory_bytes), []).append(index)
    lines = []
    for (host, cpu, cores, memory), chosen in hosts.items():
        threads = threads_words([runs[index] for index in chosen])
        words = f"{host}: {cpu}, {cores} cores, {BYTES.format(float(str(memory)))}"
        lines.append(element("p", f"Measured on {words}; ranks x threads: {threads or 'unknown'}.", class_="hardware"))
    return lines


def _contested(page: CampaignPage) -> list[Ranking]:
    return [ranking for ranking in page.explanation.rankings if len(ranking.places) > 1]


def _styles(page: CampaignPage) -> dict[str, int]:
    """One colour for each framework, the same in every panel."""
    return networks.styles_of([place.name for ranking in page.explanation.rankings for place in ranking.places])


def _panels(page: CampaignPage) -> Markup | None:
    """One panel per network with frameworks side by side."""
    groups: dict[str, list[Ranking]] = {}
    for ranking in _contested(page):
        groups.setdefault(ranking.network, []).append(ranking)
    if not groups:
        return None
    panels = [
        element("div", element("h3", network), page.plot(f"panel-{number}", figure, f"Throughput of {network}, ranked"))
        for number, (network, rankings) in enumerate(list(groups.items())[:MOST_NETWORKS])
        for figure in [networks.ranked_bars(sorted(rankings, key=lambda one: (one.batch, one.ranks)), _styles(page))]
    ]
    words = (
        "Samples per second of all ranks with 95 % intervals, the fastest first; above a bar its ratio to the first. "
        "“best” stands above a framework that is shown to be faster than every other."
    )
    return fragment(quiet(words), element("div", *panels, class_="pair"))


def _scaling(page: CampaignPage) -> Markup | None:
    """Throughput and efficiency over ranks of each network, measured and predicted."""
    series = page.explanation.series
    groups: dict[str, list[ScalingSeries]] = {}
    for item in series:
        groups.setdefault(item.cases[0].run.network, []).append(item)
    rows = [_network(page, number, name, items) for number, (name, items) in enumerate(groups.items())]
    drawn = [row for row in rows if row is not None][:MOST_NETWORKS]
    if not drawn:
        return None
    words = (
        "Points are medians over launches with 95 % intervals; dotted is ideal, "
        f"dashed is what the model predicts from one rank{_calibrated(series)}."
    )
    missing = sorted({item.why_not for item in series if item.why_not})
    reasons = element("ul", *(element("li", why) for why in missing))
    note = folded(f"Curves without a prediction: {len(missing)}", reasons) if missing else None
    return fragment(quiet(words), *drawn, note)


def _network(page: CampaignPage, number: int, name: str, series: Sequence[ScalingSeries]) -> Markup | None:
    styles, suffix = _styles(page), f"-{number}" if number else ""
    throughput, relative = networks.scaling(series, styles), networks.efficiency(series, styles)
    if not throughput["data"]:
        return None
    left = page.plot(f"scaling-plot{suffix}", throughput, f"Samples per second of {name} over ranks")
    parts = [element("div", element("h3", f"{name}: throughput"), left)]
    if relative["data"]:
        right = page.plot(f"efficiency-plot{suffix}", relative, f"Efficiency of {name} over ranks")
        parts.append(element("div", element("h3", f"{name}: efficiency"), right))
    return element("div", *parts, class_="pair")


def _calibrated(series: Sequence[ScalingSeries]) -> str:
    """The calibration of the curves."""
    basis = sorted({item.basis for item in series if item.basis})
    return f", calibrated with {' or '.join(basis)}" if basis else ""


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
    return [(network, campaign.phase_bars(items)) for network, items in list(groups.items())[:MOST_CHOICES]]


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
                options.append((f"{case.evidence.label}, {kind}", campaign.timeline(spans[:1500])))
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
    options = [(f"{gap.slow} against {gap.fast}", campaign.waterfall(gap)) for gap in gaps]
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
    options = [(case.evidence.label, campaign.tornado(case.sensitivities)) for case in cases]
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
        page.plot("residual-plot", campaign.residual_bars(series), "Measured and predicted phases"),
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


def _findings(page: CampaignPage) -> Markup:
    """The findings, largest gain first, then refuted findings, and gains within the noise."""
    explanation = page.explanation
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


SECTIONS: tuple[tuple[str, str, Callable[[CampaignPage], Markup | None]], ...] = (
    ("summary", "Verdict", _verdict),
    ("panels", "Frameworks side by side", _panels),
    ("scaling", "How it scales", _scaling),
    ("phases", "Where the step goes", _phases),
    ("timeline", "One step", _timeline),
    ("gaps", "Why one is slower than another", _gaps),
    ("findings", "What would help", _findings),
    ("stragglers", "Stragglers", _stragglers),
    ("whatif", "What if", _whatif),
    ("residuals", "Measured against predicted", _residuals),
    ("results", "All results", _results),
    ("settings", "Environment and settings", lambda page: settings_section(page.explanation)),
)


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
