"""Figures of a campaign: scaling, phases, one step, gaps, sensitivities, residuals."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.explain.cases.breakdown import Breakdown
from paceline.explain.cases.step import Sensitivity
from paceline.explain.gap import Gap
from paceline.explain.predicted import ScalingSeries
from paceline.measurements.run import PHASES, Span
from paceline.report.figures import LINES, SYMBOLS, Figure, new_figure, plot_text, stacked
from paceline.report.tables import marked, shown_phases

__all__ = ["efficiency", "phase_bars", "residual_bars", "scaling", "timeline", "tornado", "waterfall"]

MOST_BARS = 60
COUNTS = [2**power for power in range(14)]


def scaling(series: Sequence[ScalingSeries]) -> Figure:
    """Samples per second over ranks: measured with intervals, ideal, predicted with its band."""
    traces: list[Figure] = []
    for number, item in enumerate(_scaled(series)):
        traces += _predicted(item, number)
        traces.append(_measured(item, number))
        traces.append(_ideal(item, number))
    return new_figure(traces, x="ranks", y="samples per second", counts=COUNTS)


def _scaled(series: Sequence[ScalingSeries]) -> list[ScalingSeries]:
    """Curves with more than one point, measured or predicted; the fastest if there are too many."""
    chosen = [s for s in series if _points(s) and (len(_points(s)) > 1 or s.curve)]
    chosen.sort(key=lambda s: -max(value for _, value, _, _ in _points(s)))
    return chosen[: len(LINES)]


def _points(item: ScalingSeries) -> list[tuple[int, float, float, float]]:
    """Ranks, throughput, and the distances to the ends of its interval."""
    points = []
    for case in item.cases:
        rate = case.result.throughput
        if rate is not None:
            below, above = rate.value - rate.low, rate.high - rate.value
            points.append((case.run.ranks, rate.value, _finite(below), _finite(above)))
    return points


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def _measured(item: ScalingSeries, number: int) -> Figure:
    points = _points(item)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plot_text(item.label),
        "x": [point[0] for point in points],
        "y": [point[1] for point in points],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [point[3] for point in points],
            "arrayminus": [point[2] for point in points],
        },
        "line": {"color": LINES[number], "width": 2},
        "marker": {"size": 9, "symbol": SYMBOLS[number]},
        "legendgroup": str(number),
        "hovertemplate": "%{x} ranks: %{y:,.1f} samples/s, measured<extra></extra>",
    }


def _ideal(item: ScalingSeries, number: int) -> Figure:
    ranks, rate = _points(item)[0][:2]
    last = max(
        [point[0] for point in _points(item)] + [p.devices for p in item.curve.predictions]
        if item.curve
        else [p[0] for p in _points(item)]
    )
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "ideal",
        "showlegend": number == 0,
        "x": [ranks, last],
        "y": [rate, rate * last / ranks],
        "line": {"color": "@muted", "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _predicted(item: ScalingSeries, number: int) -> list[Figure]:
    if item.curve is None:
        return []
    predictions = item.curve.predictions
    ranks = [prediction.devices for prediction in predictions]
    low = [prediction.samples_per_s.interval_90[0] for prediction in predictions]
    high = [prediction.samples_per_s.interval_90[1] for prediction in predictions]
    shared = {"type": "scatter", "legendgroup": str(number), "hoverinfo": "skip"}
    band = {
        **shared,
        "mode": "lines",
        "x": ranks + ranks[::-1],
        "y": high + low[::-1],
        "fill": "toself",
        "fillcolor": f"{LINES[number]}-band",
        "line": {"width": 0, "color": LINES[number]},
        "showlegend": False,
    }
    line = {
        **shared,
        "mode": "lines",
        "name": "predicted, 90 % band",
        "showlegend": number == 0,
        "x": ranks,
        "y": [prediction.samples_per_s.value for prediction in predictions],
        "line": {"color": LINES[number], "width": 1.5, "dash": "dash"},
    }
    return [band, line]


def efficiency(series: Sequence[ScalingSeries]) -> Figure:
    """Efficiency over ranks, against each curve's own base."""
    traces = []
    for number, item in enumerate(_scaled(series)):
        cases = [case for case in item.cases if case.result.efficiency is not None]
        if len(cases) > 1:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "lines+markers",
                    "name": plot_text(item.label),
                    "x": [case.run.ranks for case in cases],
                    "y": [case.result.efficiency for case in cases],
                    "line": {"color": LINES[number], "width": 2},
                    "marker": {"size": 9, "symbol": SYMBOLS[number]},
                    "hovertemplate": "%{x} ranks: %{y:.1%}<extra></extra>",
                }
            )
    figure = new_figure(traces, x="ranks", y="efficiency", counts=COUNTS)
    figure["layout"]["yaxis"] |= {"type": "linear", "tickformat": ".0%", "rangemode": "tozero"}
    figure["layout"]["shapes"] = [_line(y=1.0)]
    return figure


def _line(*, y: float) -> Figure:
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": y,
        "y1": y,
        "line": {"color": "@muted", "dash": "dot", "width": 1},
    }


def phase_bars(breakdowns: Sequence[Breakdown]) -> Figure:
    """Exposed phases stacked to the step, hidden communication beside them."""
    shown = list(breakdowns)[:MOST_BARS][::-1]
    labels = [plot_text(marked(item.label, item.closes)) for item in shown]
    traces: list[Figure] = []
    for name in (*PHASES, "other"):
        values = [1e3 * item.part(name).seconds for item in shown]
        if any(values):
            traces.append(
                _bar(labels, values, name=f"exposed {name}" if name == "aggregate" else name, role=f"@{name}")
            )
    hidden = [1e3 * (item.hidden_s or 0.0) for item in shown]
    if any(hidden):
        sources = ", ".join(sorted({item.hidden_source for item in shown if item.hidden_source}))
        bar = _bar(labels, hidden, name=f"hidden aggregate ({sources})", role="@aggregate")
        bar["marker"]["pattern"] = {"shape": "/", "fillmode": "replace", "solidity": 0.35, "fgcolor": "@aggregate"}
        bar["offsetgroup"] = "hidden"
        bar["width"] = 0.18
        bar["offset"] = -0.46
        traces.append(bar)
    figure = new_figure(traces, x="milliseconds of a step", y="")
    return stacked(figure, len(shown), row=42 if len(shown) <= 24 else 26, barmode="relative")


def _bar(labels: list[str], values: list[float], *, name: str, role: str) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": labels,
        "x": values,
        "marker": {"color": role},
        "hovertemplate": f"{name}: %{{x:.3g}} ms<extra></extra>",
        "width": 0.62,
        "offset": -0.26,
    }


def timeline(spans: Sequence[Span]) -> Figure:
    """The timeline of one step: a row per rank and phase, a bar per layer, gradient or bucket."""
    rows = sorted({(span.rank, PHASES.index(span.phase)) for span in spans if span.phase in PHASES}, reverse=True)
    traces = []
    for phase in PHASES:
        chosen = [span for span in spans if span.phase == phase]
        if chosen:
            traces.append(
                {
                    "type": "bar",
                    "orientation": "h",
                    "name": phase,
                    "y": [f"rank {span.rank} {phase}" for span in chosen],
                    "base": [1e3 * span.start_s for span in chosen],
                    "x": [1e3 * span.seconds for span in chosen],
                    "customdata": [plot_text(span.name) for span in chosen],
                    "marker": {"color": f"@{phase}", "line": {"width": 0.5, "color": "@panel"}},
                    "hovertemplate": "%{customdata}: %{x:.3g} ms from %{base:.3g} ms<extra></extra>",
                }
            )
    figure = new_figure(traces, x="milliseconds since the step began", y="")
    order = [f"rank {rank} {PHASES[phase]}" for rank, phase in rows]
    stacked(figure, len(rows), row=34, barmode="overlay")["layout"]["dragmode"] = "zoom"
    figure["layout"]["yaxis"] |= {"categoryorder": "array", "categoryarray": order, "fixedrange": True}
    return figure


def waterfall(gap: Gap) -> Figure:
    """The waterfall from the faster to the slower step, a bar per cause with the sign that the table has."""
    labels, bases, heights, roles = ["faster"], [0.0], [1e3 * gap.fast_step_s.value], ["@total"]
    level = 1e3 * gap.fast_step_s.value
    for bar in gap.bars:
        labels.append(bar.cause)
        heights.append(1e3 * bar.seconds)
        bases.append(level)
        roles.append("@unexplained" if bar.cause == "unexplained" else "@loss" if bar.seconds > 0 else "@gain")
        level += 1e3 * bar.seconds
    labels.append("slower")
    bases.append(0.0)
    heights.append(1e3 * gap.slow_step_s.value)
    roles.append("@total")
    texts = [
        _signed(height) if 0 < index < len(labels) - 1 else f"{height:.2f}" for index, height in enumerate(heights)
    ]
    trace = {
        "type": "bar",
        "x": labels,
        "y": heights,
        "base": bases,
        "marker": {"color": roles},
        "text": texts,
        "textposition": "outside",
        "constraintext": "none",
        "cliponaxis": False,
        "hovertemplate": "%{x}: %{text} ms<extra></extra>",
    }
    figure = new_figure([trace], x="", y="milliseconds of a step")
    figure["layout"]["showlegend"] = False
    return figure


def tornado(items: Sequence[Sensitivity]) -> Figure:
    """The step when a quantity is halved and when it is doubled, the widest swing on top."""
    shown = list(items)[:8][::-1]
    labels = [plot_text(item.quantity) for item in shown]
    traces = []
    for name, role, values in (
        ("halved", "@gain", [item.halved_s for item in shown]),
        ("doubled", "@loss", [item.doubled_s for item in shown]),
    ):
        bar = _bar(
            labels,
            [1e3 * (value - item.base_s) for value, item in zip(values, shown, strict=True)],
            name=name,
            role=role,
        )
        traces.append({**bar, "hovertemplate": f"{name}: %{{x:+.3g}} ms<extra></extra>"})
    figure = new_figure(traces, x="change of the step in milliseconds", y="")
    return stacked(figure, len(shown), row=36, barmode="overlay")


def residual_bars(series: Sequence[ScalingSeries]) -> Figure:
    """Measured and predicted seconds of every phase, for the largest case of each series."""
    shown = [item.residuals[-1] for item in series if item.residuals][:4]
    names = shown_phases(shown)
    traces = []
    for index, item in enumerate(shown):
        for name, values, role in (
            ("measured", [term.measured_s for term in item.terms if term.phase in names], LINES[index]),
            ("predicted", [term.predicted_s for term in item.terms if term.phase in names], f"{LINES[index]}-band"),
        ):
            traces.append(
                {
                    "type": "bar",
                    "name": plot_text(f"{name}: {item.case}"),
                    "x": names,
                    "y": [1e3 * value for value in values],
                    "marker": {"color": role, "line": {"color": LINES[index], "width": 1}},
                    "hovertemplate": f"{name} %{{x}}: %{{y:.3g}} ms<extra></extra>",
                }
            )
    return new_figure(traces, x="", y="milliseconds of a step")


def _signed(value: float) -> str:
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}"
