"""The end of the page: machines, versions, checks, the study as it was asked, and how the numbers came about."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.explain.explanation import Explanation
from paceline.measurements.run import Check, Machine, Run
from paceline.report.markup import Markup, element, join
from paceline.report.tables import table
from paceline.units import BYTES

__all__ = ["settings_section"]


def settings_section(explanation: Explanation) -> Markup:
    """Everything that somebody who repeats the study must know."""
    runs = [run for case in explanation.cases for run in case.evidence.launches.runs]
    labels = sorted({label for run in runs for label in run.labels})
    notes = element("ul", *(element("li", label) for label in labels)) if labels else None
    asked = join(element("h3", "The study"), element("pre", explanation.text)) if explanation.text else None
    return join(
        *(_machine(item) for item in _distinct(run.machine for run in runs)),
        _checks(runs),
        join(element("h3", "Labels of these runs"), notes) if notes else None,
        asked,
        element("h3", "How this was measured"),
        element("p", _method(runs)),
    )


def _distinct(environments: Iterable[Machine]) -> list[Machine]:
    """Each machine once."""
    found: dict[tuple[object, ...], Machine] = {}
    for item in environments:
        found.setdefault((item.host, item.kernel, tuple(sorted(item.versions.items()))), item)
    return list(found.values())[:8]


def _machine(item: Machine) -> Markup:
    versions = ", ".join(f"{name} {version}" for name, version in sorted(item.versions.items()))
    rows = [
        ["processor", f"{item.cpu}, {item.cores} cores"],
        ["memory", BYTES.format(float(item.memory_bytes))],
        ["system", f"{item.os}, kernel {item.kernel}"],
        ["software", f"Python {item.python}, Paceline {item.paceline}" + (f", {versions}" if versions else "")],
    ]
    return table(["", "as it was"], [[str(cell) for cell in row] for row in rows], caption=f"Host {item.host}")


def _checks(runs: list[Run]) -> Markup | None:
    found: dict[str, Check] = {}
    for run in runs:
        for check in run.machine.checks:
            if check.status != "ok":
                found.setdefault(check.name, check)
    if not found:
        return None
    rows = [[check.name, check.status, check.saw, check.expected, check.fix] for check in found.values()]
    return element(
        "div",
        table(["check", "status", "saw", "expected", "fix"], rows, caption="What the preflight did not like"),
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label="Preflight",
    )


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
