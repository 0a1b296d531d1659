"""The sections on findings, machines, checks, study and method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from paceline.explain.explanation import Explanation
from paceline.explain.findings.finding import Finding
from paceline.measurements.run import Check, Machine, Run
from paceline.report.html.markup import Markup, element, fragment, html_table, scrollable
from paceline.report.tables import make_table
from paceline.report.words import MOST_OTHERS, gain_words, noise_words
from paceline.units import BYTES, format_share

__all__ = ["findings_section", "settings_section"]

KINDS = {"setting": "Setting", "code": "In the script", "purchase": "To buy", "machine": "On the machine"}


def findings_section(findings: Sequence[Finding], unsure: Sequence[Finding] = ()) -> Markup:
    """The findings, largest gain first, and gains within the noise."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.cause, []).append(finding)
    items = [_item(group[0], group[1:]) for group in groups.values()]
    none = element("p", "No single change is shown to save 5 % or more of the time per sample.")
    noise = element("p", noise_words(unsure), class_="quiet") if unsure else None
    return fragment(element("ol", *items, class_="findings") if items else none, noise)


def _item(finding: Finding, others: Sequence[Finding]) -> Markup:
    gain = finding.measured_gain
    measured = element("p", f"Measured gain when tried: {gain_words(gain)}.", class_="gain") if gain else None
    warning = element("p", finding.change.warning, class_="warn") if finding.change.warning else None
    evidence = element("ul", *(element("li", line) for line in finding.evidence))
    return element(
        "li",
        element("h3", finding.title),
        element("p", finding.case, class_="quiet"),
        element("p", "Expected gain: ", element("span", gain_words(finding.gain), class_="gain")),
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
