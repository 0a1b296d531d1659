"""Figures of a campaign: phases, one step, gaps, sensitivities, residuals, gains, and two groups of launches."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.explain.cases.breakdown import Breakdown
from paceline.explain.cases.step import Sensitivity
from paceline.explain.findings import Finding
from paceline.explain.gap import Gap
from paceline.explain.predicted import ScalingSeries
from paceline.measurements.run import PHASES, Span
from paceline.measurements.summary import Interval, median_interval
from paceline.report.figures import LINES, Figure, error_bars, new_figure, plot_text, stacked
from paceline.report.tables import marked, shown_phases

__all__ = ["gain_bars", "launch_points", "phase_bars", "residual_bars", "timeline", "tornado", "waterfall"]

MOST_BARS = 60
MOST_FINDINGS = 12


def phase_bars(breakdowns: Sequence[Breakdown]) -> Figure:
    """Exposed phases stacked to the step; hidden communication is a strip that ends where the backward pass ends."""
    shown = list(breakdowns)[:MOST_BARS][::-1]
    labels = [plot_text(marked(item.label.removeprefix(f"{item.network} "), item.closes)) for item in shown]
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
        bar["base"] = [1e3 * _end_of_backward(item) - value for item, value in zip(shown, hidden, strict=True)]
        bar |= {"width": 0.14, "offset": -0.42, "hovertemplate": "hidden aggregate: %{x:.3g} ms<extra></extra>"}
        traces.append(bar)
    figure = new_figure(traces, x="milliseconds of a step", y="")
    return stacked(figure, len(shown), row=42 if len(shown) <= 24 else 26, barmode="relative")


def _end_of_backward(item: Breakdown) -> float:
    return sum(item.part(name).seconds for name in ("io", "h2d", "forward", "backward"))


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


def gain_bars(findings: Sequence[Finding]) -> Figure:
    """Predicted gain of each finding with its interval, and the measured gain where a trial was run."""
    shown = [item for item in findings if not item.unknown][:MOST_FINDINGS][::-1]
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
