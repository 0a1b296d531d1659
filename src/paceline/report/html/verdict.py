"""The first sections of the page: the verdict with the hardware, frameworks side by side, and how they scale."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.predicted import ScalingSeries
from paceline.measurements.ranking import Ranking
from paceline.report.figures import networks as figures
from paceline.report.html.markup import CampaignPage, Markup, element, folded, fragment, html_table, quiet, scrollable
from paceline.report.html.settings import threads_words
from paceline.report.tables import ranking_table
from paceline.report.terminal.watched import judgement_lines
from paceline.units import BYTES

__all__ = ["panels_section", "scaling_section", "verdict_section"]

MOST_NETWORKS = 8
"""Maximum number of networks with panels."""


def verdict_section(page: CampaignPage) -> Markup:
    """Three sentences, the hardware, and the ranking within each network and size."""
    sentences = [element("p", sentence) for sentence in page.explanation.summary]
    failed = sum(case.evidence.result.num_failed > 0 for case in page.explanation.cases)
    note = element("p", f"{failed} cases had launches that failed; they are listed below.", class_="bad")
    rankings = ranking_table(_contested(page))
    table = scrollable(html_table(rankings), "Ranking") if rankings.rows else None
    damaged = [element("p", f"Left out as damaged: {what}", class_="bad") for what in page.explanation.left_out]
    return fragment(*sentences, *_observed(page), note if failed else None, *damaged, *_hardware(page), table)


def _observed(page: CampaignPage) -> list[Markup]:
    """The verdict on steps that were watched or imported, as the terminal says it."""
    about = page.explanation
    return [
        element("pre", "\n".join(judgement_lines(judgement, about.campaign, about.launcher)))
        for judgement in about.judgements
    ]


def _hardware(page: CampaignPage) -> list[Markup]:
    """A line for each distinct host: processor, cores, memory, threads."""
    every = [run for case in page.explanation.cases for run in case.evidence.launches.runs]
    runs = [run for run in every if run.machine.memory_bytes]  # what was imported does not say where it ran
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
    return figures.styles_of([place.name for ranking in page.explanation.rankings for place in ranking.places])


def panels_section(page: CampaignPage) -> Markup | None:
    """One panel per network with frameworks side by side."""
    groups: dict[str, list[Ranking]] = {}
    for ranking in _contested(page):
        groups.setdefault(ranking.network, []).append(ranking)
    if not groups:
        return None
    panels = [
        element("div", element("h3", network), page.plot(f"panel-{number}", figure, f"Throughput of {network}, ranked"))
        for number, (network, rankings) in enumerate(list(groups.items())[:MOST_NETWORKS])
        for figure in [figures.ranked_bars(sorted(rankings, key=lambda one: (one.batch, one.ranks)), _styles(page))]
    ]
    words = (
        "Samples per second of all ranks with 95 % intervals, the fastest first; above a bar its ratio to the first. "
        "“best” stands above a framework that is shown to be faster than every other."
    )
    return fragment(quiet(words), element("div", *panels, class_="pair"))


def scaling_section(page: CampaignPage) -> Markup | None:
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
    throughput, relative = figures.scaling(series, styles), figures.efficiency(series, styles)
    if not throughput["data"]:
        return None
    left = page.plot(f"scaling-plot{suffix}", throughput, f"Samples per second of {name} over ranks")
    parts = [element("div", element("h3", f"{name}: throughput"), left)]
    if relative["data"]:
        right = page.plot(f"efficiency-plot{suffix}", relative, f"Efficiency of {name} over ranks")
        parts.append(element("div", element("h3", f"{name}: efficiency"), right))
    return element("div", *parts, class_="pair")


def _calibrated(series: Sequence[ScalingSeries]) -> str:
    """What the drawn curves were calibrated with."""
    basis = sorted({item.basis for item in series if item.basis})
    return f", calibrated with {' or '.join(basis)}" if basis else ""
