"""Figures of single verbs: two groups of launches, candidate strategies, gains of findings."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.findings.finding import Finding
from paceline.measurements.summary import Interval, median_interval
from paceline.model.plan.make import Plan
from paceline.model.plan.search import Candidate
from paceline.report.figures import LINES, Figure, error_bars, new_figure, plot_text, stacked

__all__ = ["gain_bars", "launch_points", "plan_bars"]

MOST_ROWS = 12
"""Maximum number of candidates or findings of a plot."""


def launch_points(groups: Sequence[Sequence[float]], names: Sequence[str]) -> Figure:
    """Samples per second of every launch of two groups, and their medians with 95 % intervals."""
    traces: list[Figure] = []
    for number, (rates, name) in enumerate(zip(groups, names, strict=True)):
        label, middle = plot_text(name), median_interval(rates)
        points = {"type": "scatter", "mode": "markers", "marker": {"color": LINES[number], "size": 8, "opacity": 0.55}}
        shown = {"x": [label] * len(rates), "y": list(rates), "name": f"launches of {label}"}
        traces.append({**points, **shown, "hovertemplate": "%{y:,.1f} samples/s<extra></extra>"})
        mark = {"color": LINES[number], "size": 15, "symbol": "line-ew-open", "line": {"width": 3}}
        median_point = {"x": [label], "y": [middle.value], "showlegend": False}
        median_point["error_y"] = error_bars([middle.value], [(middle.low, middle.high)])
        traces.append({**points, **median_point, "marker": mark, "hoverinfo": "skip"})
    figure = new_figure(traces, x="", y="samples per second")
    figure["layout"]["xaxis"] |= {"type": "category", "range": [-0.6, len(groups) - 0.4]}
    figure["layout"]["yaxis"] |= {"tickformat": ","}
    return figure


def plan_bars(plan: Plan) -> Figure:
    """Samples per second of each candidate with its 90 % interval, the best first, and of plain DDP below them."""
    rows = [(_candidate_name(number, one), one.predicted_throughput, one.interval_90, LINES[0 if number == 1 else 7])
            for number, one in enumerate(plan.ranked[:MOST_ROWS], start=1)]  # fmt: skip
    if plan.baseline is not None:
        known = plan.baseline.throughput
        rows.append(("baseline: DDP, equal shares", known.value, known.interval_90, LINES[1]))
    names, rates, given, colours = zip(*reversed(rows), strict=True)
    spans = [span or (rate, rate) for span, rate in zip(given, rates, strict=True)]
    bar = {
        "type": "bar",
        "orientation": "h",
        "name": "samples per second, 90 % interval",
        "y": [plot_text(name) for name in names],
        "x": list(rates),
        "error_x": error_bars(rates, spans),
        "marker": {"color": list(colours)},
        "hovertemplate": "%{x:,.1f} samples/s<extra></extra>",
    }
    figure = new_figure([bar], x="predicted samples per second", y="")
    figure["layout"]["xaxis"] |= {"rangemode": "tozero", "tickformat": ","}
    return stacked(figure, len(rows), row=38, barmode="overlay")


def _candidate_name(number: int, candidate: Candidate) -> str:
    """Its rank and kind, and what a sample is worth where that is less than a synchronous one."""
    count = len(candidate.groups)
    worth = f", a sample worth {candidate.efficiency:.2f}" if candidate.efficiency < 0.995 else ""
    return f"{number}. {candidate.kind}, {count} group{'s' * (count != 1)}{worth}"


def gain_bars(findings: Sequence[Finding]) -> Figure:
    """Predicted gain of each finding with its interval, and the measured gain where a trial was run."""
    shown = [item for item in findings if not item.unknown][:MOST_ROWS][::-1]
    labels = [f"{plot_text(item.title)}<br>{plot_text(item.case)}" for item in shown]
    traces = [_gains("predicted", LINES[0], labels, [item.gain for item in shown])]
    if any(item.measured_gain for item in shown):
        traces.append(_gains("measured", LINES[1], labels, [item.measured_gain for item in shown]))
    figure = new_figure(traces, x="share of the time per sample that the change saves", y="")
    figure["layout"]["xaxis"] |= {"tickformat": ".0%"}
    return stacked(figure, len(shown), row=56, barmode="group")


def _gains(name: str, colour: str, labels: list[str], gains: Sequence[Interval | None]) -> Figure:
    known = [(gain.value, (gain.low, gain.high)) if gain else (0.0, (0.0, 0.0)) for gain in gains]
    error = error_bars([value for value, _ in known], [ends for _, ends in known])
    values = [gain.value if gain else None for gain in gains]
    bar = {"type": "bar", "orientation": "h", "name": name, "y": labels, "x": values, "marker": {"color": colour}}
    return {**bar, "error_x": error, "hovertemplate": f"{name}: %{{x:.1%}}<extra></extra>"}
