"""Tables of the page: every number that a plot shows, with the exact value beside the rounded one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.explain.cases.breakdown import Breakdown
from paceline.explain.cases.stragglers import Straggler
from paceline.explain.explanation import CaseExplanation
from paceline.explain.gap import Gap
from paceline.explain.predicted import Residual
from paceline.measurements.run import PHASES
from paceline.measurements.summary import Interval
from paceline.report.markup import Markup, element
from paceline.report.words import tried_words
from paceline.units import BYTES, SECONDS, format_share

__all__ = [
    "breakdown_table",
    "gap_table",
    "layer_table",
    "rank_table",
    "residual_table",
    "results_table",
    "shown_phases",
    "straggler_table",
]

SOURCES = {"traced": "traced", "timers": "framework's timers", "model": "model"}
"""Who says how much communication was hidden."""


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Markup | str | float | None]], *, caption: str = ""
) -> Markup:
    """A table; columns whose name starts with '>' hold numbers."""
    numeric = [column.startswith(">") for column in columns]
    head = [
        element("th", column.lstrip(">"), scope="col", class_="num" if right else None)
        for column, right in zip(columns, numeric, strict=True)
    ]
    body = [element("tr", *(_cell(cell, right) for cell, right in zip(row, numeric, strict=True))) for row in rows]
    title = element("caption", element("span", caption)) if caption else None
    slim = "slim" if len(columns) < 5 and "evidence" not in columns else None
    return element("table", title, element("thead", element("tr", *head)), element("tbody", *body), class_=slim)


def _cell(content: Markup | str | float | None, right: bool) -> Markup:
    if isinstance(content, Markup) and content.text.startswith("<td"):
        return content
    return element("td", content, class_="num" if right else None)


def number(value: float | None, text: str) -> Markup:
    """A cell with the exact value beside its text."""
    return element("td", text, class_="num", data_value=repr(value) if value is not None else None)


def two_lines(value: float | None, text: str, below: str) -> Markup:
    """A cell with a second, quieter line."""
    quiet = element("span", below, class_="quiet")
    return element("td", text, element("br"), quiet, class_="num", data_value=repr(value))


def half(interval: Interval | None) -> str:
    """The interval as ± percent."""
    return f"± {100 * interval.half:.1f} %" if interval and math.isfinite(interval.half) else "one launch"


def results_table(cases: Sequence[CaseExplanation]) -> Markup:
    """One row per case: throughput, step, speed-up with its base, launches, failures."""
    columns = ["case", ">samples/s", ">95 %", ">step", ">speed-up", ">efficiency", ">launches", "failed"]
    return table(columns, [_result(case) for case in cases], caption="Throughput of all ranks; batch per device.")


def _result(case: CaseExplanation) -> list[Markup | str]:
    result = case.evidence.result
    rate, step = result.throughput, result.step_s
    base = f" (base {result.base_ranks})" if result.speedup and result.run.ranks == result.base_ranks else ""
    failure = next((run.failure for run in case.evidence.launches.runs if run.failure), None)
    failed = f"{result.num_failed}: {failure.phase}, {failure.message}" if failure else ""
    return [
        element("td", case.evidence.label, data_case=result.run.case_id),
        number(rate.value if rate else None, f"{rate.value:,.1f}" if rate else "none"),
        element("td", half(rate) if rate else "", class_="num"),
        number(step.value if step else None, SECONDS.format(step.value) if step else ""),
        number(
            result.speedup.value if result.speedup else None,
            f"{result.speedup.value:.2f} x{base}" if result.speedup else "",
        ),
        number(result.efficiency, format_share(result.efficiency) if result.efficiency is not None else ""),
        element("td", str(result.num_launches - result.num_failed), class_="num"),
        element("td", failed),
    ]


def breakdown_table(breakdowns: Sequence[Breakdown]) -> Markup:
    """Shares of every phase; they sum to one."""
    names = [name for name in (*PHASES, "other") if any(item.part(name).seconds for item in breakdowns)]
    shown = ["exposed aggregate" if name == "aggregate" else name for name in names]
    columns = ["case", ">step", *(f">{name}" for name in shown), ">hidden aggregate"]
    rows: list[list[Markup | str | float | None]] = []
    for item in breakdowns:
        parts = [item.part(name) for name in names]
        cells: list[Markup | str | float | None] = [
            item.label,
            number(item.step_s.value, SECONDS.format(item.step_s.value)),
        ]
        cells += [two_lines(part.seconds, format_share(part.share), SECONDS.format(part.seconds)) for part in parts]
        hidden = item.hidden_s, SECONDS.format(item.hidden_s or 0.0), SOURCES.get(item.hidden_source or "", "")
        cells.append(two_lines(*hidden) if item.hidden_source else "")
        rows.append(cells)
    return table(columns, rows)


def rank_table(breakdowns: Sequence[Breakdown]) -> Markup:
    """Each rank's phases, those that some rank has; they sum to its step."""
    names = [
        name for name in (*PHASES, "other") if any(rank.seconds[name] for item in breakdowns for rank in item.ranks)
    ]
    rows = [
        [
            item.label,
            str(rank.rank),
            rank.host,
            *(SECONDS.format(rank.seconds[name]) for name in names),
            SECONDS.format(rank.hidden_s) if rank.hidden_s is not None else "",
        ]
        for item in breakdowns
        for rank in item.ranks
    ]
    shown = ["exposed aggregate" if name == "aggregate" else name for name in names]
    caption = "The exposed aggregate of a rank holds its waiting for slower ones."
    columns = ["case", ">rank", "host", *(f">{name}" for name in shown), ">hidden aggregate"]
    return table(columns, rows, caption=caption)


def layer_table(item: Breakdown) -> Markup:
    """Layers of one case in the order of the forward pass."""
    rows = [
        [
            layer.name,
            SECONDS.format(layer.forward_s),
            SECONDS.format(layer.backward_s),
            BYTES.format(float(layer.gradient_bytes)) if layer.gradient_bytes else "",
        ]
        for layer in item.layers
    ]
    caption = f"{item.label}; hooks on every layer make these times longer than those of a clean step."
    return table(["layer", ">forward", ">backward", ">gradients"], rows, caption=caption)


def gap_table(gap: Gap) -> Markup:
    """Causes of a gap with their evidence; the last row is their sum."""
    rows: list[list[Markup | str | float | None]] = [
        [
            bar.cause,
            number(bar.seconds, f"{1e3 * bar.seconds + 0.0:+.2f}"),
            _range(bar.interval),
            element("td", "; ".join(words for words in (bar.evidence, tried_words(bar)) if words), class_="words"),
        ]
        for bar in gap.bars
    ]
    total = sum(bar.seconds for bar in gap.bars)
    rows.append(["all: the measured gap", number(total, f"{1e3 * total:+.2f}"), "", ""])
    return table(["cause", ">ms", ">95 %", "evidence"], rows, caption=f"{gap.slow} against {gap.fast}")


def _range(interval: Interval | None) -> str:
    if interval is None or not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return ""
    return f"{1e3 * interval.low:.2f} to {1e3 * interval.high:.2f}"


def straggler_table(found: Sequence[tuple[str, Straggler]]) -> Markup:
    """Which rank, where, how much."""
    columns = ["case", ">rank", "host", "phase", "kind", ">slower", ">slowest in", ">cost a step", ">waiting a day"]
    rows = [
        [
            label,
            str(item.rank),
            item.host,
            item.phase,
            item.kind,
            f"{item.slower:.2f} x",
            format_share(item.share_slowest),
            SECONDS.format(item.cost_s.value),
            SECONDS.format(item.cost_per_day_s),
        ]
        for label, item in found
    ]
    return element("div", table(columns, rows), class_="scroll", tabindex=0, role="region", aria_label="Stragglers")


def shown_phases(residuals: Sequence[Residual]) -> list[str]:
    """Phases of which anything was measured or predicted."""
    terms = [term for item in residuals for term in item.terms]
    return [name for name in PHASES if any(t.measured_s or t.predicted_s for t in terms if t.phase == name)]


def residual_table(residuals: Sequence[Residual]) -> Markup:
    """Measured, predicted and their difference, phase by phase."""
    names = shown_phases(residuals)
    columns = ["case", ">measured step", ">predicted step", ">90 % interval", *(f">{name}, ms" for name in names)]
    rows = [
        [
            item.case,
            SECONDS.format(item.measured_step_s),
            SECONDS.format(item.predicted_step_s),
            f"{SECONDS.format(item.predicted_interval[0])} to {SECONDS.format(item.predicted_interval[1])}",
            *(f"{1e3 * term.residual_s:+.2f}" for term in item.terms if term.phase in names),
        ]
        for item in residuals
    ]
    return table(columns, rows, caption="Residual of each phase: measured minus predicted.")
