"""The sections of the page of a campaign, one function each: results, plots, findings, machines, checks, method."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.explain.cases.breakdown import Breakdown
from paceline.explain.cases.step import measured_step, predicted_step
from paceline.explain.explanation import CaseExplanation, Explanation
from paceline.explain.findings.finding import Finding
from paceline.explain.predicted import Residual, ScalingSeries
from paceline.measurements.run import Check, Machine, Run
from paceline.report import tables
from paceline.report.figures import campaign as figures
from paceline.report.html.markup import Markup, element, fragment, html_table, scrollable
from paceline.report.tables import make_table
from paceline.report.words import MOST_OTHERS, gain_words, noise_words, predicted_words, refuted_words
from paceline.units import BYTES, format_share

__all__ = ["CampaignPage", "all_sections", "findings_section", "settings_section"]

MOST_CHOICES = 24
"""Maximum number of cases to choose from for one figure."""
ZOOMS = {"in": "Zoom in", "out": "Zoom out", "left": "Earlier", "right": "Later", "all": "Whole step"}


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


def _quiet(words: str) -> Markup:
    return element("p", words, class_="quiet")


def _folded(title: str, content: Markup) -> Markup:
    return element("details", element("summary", title), scrollable(content, title))


def _summary(page: CampaignPage) -> Markup:
    sentences = [element("p", sentence) for sentence in page.explanation.summary]
    failed = sum(case.evidence.result.num_failed > 0 for case in page.explanation.cases)
    note = element("p", f"{failed} cases had launches that failed; they are listed below.", class_="bad")
    damaged = [element("p", f"Left out as damaged: {what}", class_="bad") for what in page.explanation.left_out]
    return fragment(*sentences, note if failed else None, *damaged)


def _scaling(page: CampaignPage) -> Markup | None:
    series = page.explanation.series
    throughput, relative = figures.scaling(series), figures.efficiency(series)
    if not throughput["data"]:
        return None
    title = "Samples per second over ranks; the table of results has the numbers"
    plots = page.plot("scaling-plot", throughput, title)
    if relative["data"]:
        efficiency = page.plot("efficiency-plot", relative, "Efficiency over ranks")
        left, right = element("h3", "Throughput"), element("h3", "Efficiency")
        plots = element("div", element("div", left, plots), element("div", right, efficiency), class_="pair")
    words = (
        "Points are medians over launches with 95 % intervals; dotted is ideal, "
        f"dashed is what the model predicts from one rank{_calibrated(series)}."
    )
    missing = sorted({item.why_not for item in series if item.why_not})
    reasons = element("ul", *(element("li", why) for why in missing))
    note = _folded(f"Curves without a prediction: {len(missing)}", reasons) if missing else None
    return fragment(_quiet(words), plots, note)


def _calibrated(series: Sequence[ScalingSeries]) -> str:
    """What the drawn curves were calibrated with."""
    basis = sorted({item.basis for item in series if item.basis})
    return f", calibrated with {' or '.join(basis)}" if basis else ""


def _phases(page: CampaignPage) -> Markup | None:
    breakdowns = [case.breakdown for case in page.explanation.cases if case.breakdown is not None]
    if not breakdowns:
        return None
    words = (
        "Exposed phases sum to the step; “other” is the rest, "
        "negative where the passes that split the step ran slower than the clean one."
    )
    more = f"The plot shows {figures.MOST_BARS} of {len(breakdowns)} cases; the table has all."
    title = "Phases of a step by case; the table below has the numbers"
    several = [item for item in breakdowns if len(item.ranks) > 1][:MOST_CHOICES]
    return fragment(
        _quiet(words),
        None if all(item.closes for item in breakdowns) else element("p", tables.NOT_CLOSED, class_="bad"),
        page.plot("phases-plot", figures.phase_bars(breakdowns), title),
        _quiet(more) if len(breakdowns) > figures.MOST_BARS else None,
        _folded("Shares and seconds of every case", html_table(tables.breakdown_table(breakdowns))),
        _folded("Rank by rank", html_table(tables.rank_table(several))) if several else None,
        *_by_layer(breakdowns),
    )


def _by_layer(breakdowns: Sequence[Breakdown]) -> list[Markup]:
    """The layers of the largest case of each network, of four networks at most."""
    chosen = {item.network: item for item in breakdowns if item.layers}
    return [
        _folded(f"Layer by layer: {item.label}", html_table(tables.layer_table(item)))
        for item in list(chosen.values())[:4]
    ]


def _timeline(page: CampaignPage) -> Markup | None:
    options = []
    for case in _interesting(page.explanation.good)[:8]:
        for kind, spans in (("measured", measured_step(case.evidence)), ("predicted", predicted_step(case.evidence))):
            if spans and case.evidence.run.ranks <= 8:
                options.append((f"{case.evidence.label}, {kind}", figures.timeline(spans[:1500])))
    if not options:
        return None
    buttons = [
        element("button", title, type="button", data_zoom=kind, data_target="timeline-plot")
        for kind, title in ZOOMS.items()
    ]
    words = (
        "Drag to zoom, double-click for the whole step. "
        "Measured steps carry hooks on every layer, which make them longer than clean ones."
    )
    chooser = page.choice("timeline-plot", options, "Step")
    return fragment(_quiet(words), chooser, element("div", *buttons, class_="tools"))


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
    return fragment(_quiet(words), page.choice("gap-plot", options, "Gap"), *causes)


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
    return fragment(_quiet(words), page.choice("tornado-plot", options, "Case"), changes)


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
        _folded("Numbers", html_table(tables.residual_table(residuals))),
    )


def _held_out(residuals: Sequence[Residual]) -> str:
    basis = sorted({item.basis for item in residuals if item.ranks > 1})
    return f"No case was used to predict itself: {' or '.join(basis)} did." if basis else ""


def _results(page: CampaignPage) -> Markup | None:
    cases = [case.evidence for case in page.explanation.cases]
    title = "Throughput of all ranks; batch per device."
    results = tables.results_table([case.result for case in cases], title=title)
    failures = tables.failure_table([run for case in cases for run in case.launches.runs])
    shown = [
        scrollable(html_table(table), name)
        for table, name in ((results, "Results"), (failures, "Failures"))
        if table.rows
    ]
    return fragment(*shown) if shown else None


SECTIONS: tuple[tuple[str, str, Callable[[CampaignPage], Markup | None]], ...] = (
    ("summary", "In three sentences", _summary),
    ("scaling", "How it scales", _scaling),
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


def settings_section(explanation: Explanation) -> Markup:
    """All information that is needed to repeat the study."""
    runs = [run for case in explanation.cases for run in case.evidence.launches.runs]
    labels = sorted({label for run in runs for label in run.labels})
    notes = fragment(element("h3", "Labels of these runs"), element("ul", *(element("li", label) for label in labels)))
    study = fragment(element("h3", "The study"), element("pre", explanation.text))
    return fragment(
        *(_machine(item) for item in _distinct(run.machine for run in runs)),
        _checks(runs),
        notes if labels else None,
        study if explanation.text else None,
        element("h3", "How this was measured"),
        element("p", _method(runs)),
    )


def _distinct(machines: Iterable[Machine]) -> list[Machine]:
    """Each machine once."""
    known: dict[tuple[object, ...], Machine] = {}
    for item in machines:
        known.setdefault((item.host, item.kernel, tuple(sorted(item.versions.items()))), item)
    return list(known.values())[:8]


def _machine(item: Machine) -> Markup:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(item.versions.items()))
    rows = [
        ["processor", f"{item.cpu}, {item.cores} cores"],
        ["memory", BYTES.format(float(item.memory_bytes))],
        ["system", f"{item.os}, kernel {item.kernel}"],
        ["software", f"Python {item.python}, Paceline {item.paceline}" + (f", {versions}" if versions else "")],
    ]
    return html_table(make_table(["", "as measured"], rows, title=f"Host {item.host}"))


def _checks(runs: list[Run]) -> Markup | None:
    failed: dict[str, Check] = {}
    for check in (check for run in runs for check in run.machine.checks if check.status != "ok"):
        failed.setdefault(check.name, check)
    rows = [[check.name, check.status, check.saw, check.expected, check.fix] for check in failed.values()]
    title = "Preflight checks that did not pass"
    table = make_table(["check", "status", "saw", "expected", "fix"], rows, title=title)
    return scrollable(html_table(table), "Preflight") if rows else None


def _method(runs: list[Run]) -> str:
    good = [run for run in runs if run.outcome == "ok"]
    dropped = [run.warmup.get("clean", 0) for run in good]
    drifted = sum(run.drifted for run in runs)
    warm = f"{min(dropped)} to {max(dropped)} steps of each launch were dropped as warm-up. " if dropped else ""
    return (
        f"{len(runs)} launches, {len(runs) - len(good)} of them failed. {warm}Throughput is the median over launches "
        "of all samples over all time, with a bootstrap interval; a step is as long as its slowest rank. Phases are "
        "differences between passes that each add one part of the step. "
        f"The machine's own speed was off its median by more than the asked width before {drifted} launches."
    )
