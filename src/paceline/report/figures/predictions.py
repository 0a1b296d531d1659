"""Figures of predictions: throughput with its intervals, terms of a step, simulated time, candidate strategies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.model.prediction import TERMS, Curve, Prediction
from paceline.model.simulate.scenario import Simulated
from paceline.report.figures import LINES, SYMBOLS, Figure, error_bars, new_figure, plot_text, stacked
from paceline.units import SECONDS, format_share

if TYPE_CHECKING:  # Importing plans would make every plot slow to start.
    from paceline.model.plan.make import Plan
    from paceline.model.plan.search import Candidate

__all__ = ["plan_bars", "simulated_shares", "term_bars", "throughput_curves"]

WIDE_BARS, LABELLED_BARS = 5, 12
"""More bars are narrower than a time with its unit, or than a number."""
TERM_ROLES = {"fixed": "@other"}
"""Colour roles of terms that differ from their name."""
SHARE_ROLES = {
    "compute": "@backward", "exchange and rest": "@aggregate", "other jobs": "@h2d", "jitter": "@other",
    "stragglers": "@waiting", "failures": "@total", "queue and stragglers": "@update",
}  # fmt: skip
SMALL = 0.002
"""Share of a step below which a term is not drawn."""
MOST_CANDIDATES = 12
"""Maximum number of candidates of a plot."""
MOST_BANDS = 2
"""Maximum number of curves with intervals as bands; more bands would hide each other."""


def throughput_curves(curves: Sequence[Curve], names: Sequence[str]) -> Figure:
    """Samples per second over devices, with intervals of 50 % and 90 %, the ideal, and the knee of a single curve."""
    shown = list(zip(curves, names, strict=True))[: len(LINES)]
    traces = [_ideal(shown[0][0])] if len(_counts(shown[0][0])) > 1 else []
    for number, (curve, name) in enumerate(shown):
        intervals = _bands if len(shown) <= MOST_BANDS and len(curve.predictions) > 1 else _whiskers
        alone = "predicted" if curve.measured and len(shown) == 1 else name
        traces += [*intervals(curve, number, len(shown)), _line(curve, alone, number), *_points(curve, number)]
    if len(shown) == 1:
        traces += _knee(curves[0])
    counts = sorted({count for curve, _ in shown for count in _counts(curve)})
    return new_figure(traces, x="devices", y="samples per second", counts=counts)


def _rates(curve: Curve) -> tuple[list[int], list[float]]:
    return [p.devices for p in curve.predictions], [p.samples_per_s.value for p in curve.predictions]


def _counts(curve: Curve) -> set[int]:
    """Numbers of devices that were predicted or measured."""
    return {*_rates(curve)[0], *(devices for devices, _ in curve.measured)}


def _ideal(curve: Curve) -> Figure:
    """Ideal throughput: that of one device times the number of devices."""
    predicted = {p.devices: p.samples_per_s.value / p.efficiency for p in curve.predictions}
    first, rate = next(iter(predicted.items()))
    ideal = sorted(({count: rate / first * count for count in _counts(curve)} | predicted).items())
    line = {"color": "@muted", "width": 1, "dash": "dot"}
    return {"type": "scatter", "mode": "lines", "name": "ideal", "x": [count for count, _ in ideal],
            "y": [each for _, each in ideal], "line": line, "hoverinfo": "skip"}  # fmt: skip


def _points(curve: Curve, number: int) -> list[Figure]:
    """The measured points, if the curve extrapolates them."""
    if not curve.measured:
        return []
    devices, rates = zip(*curve.measured, strict=True)
    marker, hover = {"size": 9, "symbol": "x", "color": LINES[number]}, "%{x} devices, measured: %{y:,.1f} samples/s"
    return [
        {"type": "scatter", "mode": "markers", "name": "measured", "legendgroup": str(number), "x": list(devices),
         "y": list(rates), "marker": marker, "hovertemplate": f"{hover}<extra></extra>"}
    ]  # fmt: skip


def _line(curve: Curve, name: str, number: int) -> Figure:
    devices, rates = _rates(curve)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plot_text(name),
        "legendgroup": str(number),
        "x": devices,
        "y": rates,
        "line": {"color": LINES[number], "width": 2},
        "marker": {"size": 8, "symbol": SYMBOLS[number], "color": LINES[number]},
        "hovertemplate": "%{x} devices: %{y:,.1f} samples/s<extra></extra>",
    }


def _bands(curve: Curve, number: int, num_curves: int) -> list[Figure]:
    devices, _ = _rates(curve)
    shared = {"type": "scatter", "mode": "lines", "legendgroup": str(number), "hoverinfo": "skip", "showlegend": False}
    fill = {"fill": "toself", "fillcolor": f"{LINES[number]}-band", "line": {"width": 0, "color": LINES[number]}}
    bounds = [
        [getattr(prediction.samples_per_s, name) for prediction in curve.predictions]
        for name in ("interval_90", "interval_50")
    ]
    return [
        {
            **shared,
            **fill,
            "x": devices + devices[::-1],
            "y": [high for _, high in ends] + [low for low, _ in ends][::-1],
        }
        for ends in bounds
    ]


def _whiskers(curve: Curve, number: int, num_curves: int) -> list[Figure]:
    """Error bars of 90 % and, thicker, of 50 %, a little apart from those of other curves."""
    devices, rates = _rates(curve)
    apart = 1.025 ** (number - (num_curves - 1) / 2)
    traces = []
    for name, width in (("interval_90", 1.2), ("interval_50", 4)):
        ends = [getattr(prediction.samples_per_s, name) for prediction in curve.predictions]
        error = error_bars(rates, ends, thickness=width, width=0)
        marker = {"size": 1, "color": LINES[number]}
        hidden = {"showlegend": False, "hoverinfo": "skip", "legendgroup": str(number), "opacity": 0.55}
        points = {
            "type": "scatter",
            "mode": "markers",
            "x": [count * apart for count in devices],
            "y": rates,
            "marker": marker,
        }
        traces.append({**points, **hidden, "error_y": error})
    return traces


def _knee(curve: Curve) -> list[Figure]:
    knee = [prediction for prediction in curve.predictions if prediction.devices == curve.knee]
    marker = {"symbol": "circle-open", "size": 16, "color": LINES[0]}
    return [
        {"type": "scatter", "mode": "markers+text", "x": [p.devices], "y": [p.samples_per_s.value], "text": ["knee"],
         "textposition": "bottom center", "marker": marker, "showlegend": False, "hoverinfo": "skip"}
        for p in knee
    ]  # fmt: skip


def term_bars(curves: Sequence[Curve], names: Sequence[str]) -> Figure:
    """Steps by their terms: of every count for one curve, of the largest count for several."""
    if len(curves) == 1:
        bars = [(f"{p.devices:,}", p) for p in curves[0].predictions]
        below = "devices"
    else:
        shown = list(zip(curves, names, strict=True))[: len(LINES)]
        bars = [(plot_text(name), curve.predictions[-1]) for curve, name in shown]
        below = f"at {bars[0][1].devices:,} devices"
    traces = [_term(name, bars) for name in TERMS if any(p.terms[name] > SMALL * p.step_s.value for _, p in bars)]
    figure = new_figure([*traces, _totals(bars)], x=below, y="milliseconds of a step")
    figure["layout"] |= {"barmode": "stack"}
    figure["layout"]["xaxis"] |= {"type": "category"}
    figure["layout"]["yaxis"] |= {"tickformat": ","}
    return figure


def _term(name: str, bars: Sequence[tuple[str, Prediction]]) -> Figure:
    return {
        "type": "bar",
        "name": name,
        "x": [label for label, _ in bars],
        "y": [1e3 * prediction.terms[name] for _, prediction in bars],
        "marker": {"color": TERM_ROLES.get(name, f"@{name}")},
        "hovertemplate": f"{name}: %{{y:.3g}} ms<extra></extra>",
    }


def _totals(bars: Sequence[tuple[str, Prediction]]) -> Figure:
    return {
        "type": "scatter",
        "mode": "text",
        "x": [label for label, _ in bars],
        "y": [1e3 * prediction.step_s.value for _, prediction in bars],
        "text": _above([prediction.step_s.value for _, prediction in bars]),
        "textposition": "top center",
        "cliponaxis": False,
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _above(steps: Sequence[float]) -> list[str]:
    """Times over bars; over many bars a unit stands beneath its number, over very many only the first and last."""
    texts = [SECONDS.format(step) for step in steps]
    if len(texts) > WIDE_BARS:
        texts = [text.replace(" ", "<br>") for text in texts]
    if len(texts) > LABELLED_BARS:
        texts[1:-1] = [""] * (len(texts) - 2)
    return texts


def simulated_shares(runs: Sequence[Simulated]) -> Figure:
    """One bar per number of devices: its mean step, divided into parts; a mark at the predicted step."""
    shown = list(runs)[::-1]
    labels = [f"{run.devices:,}" for run in shown]
    traces = [_share(name, shown, labels) for name in SHARE_ROLES if any(name in run.shares for run in shown)]
    predicted: Figure = {
        "type": "scatter",
        "mode": "markers",
        "name": "predicted, if nothing goes wrong",
        "y": labels,
        "x": [1e3 * run.predicted_step_s for run in shown],
        "marker": {"symbol": "line-ns-open", "size": 22, "color": "@text", "line": {"width": 2}},
        "hovertemplate": "predicted: %{x:.4g} ms<extra></extra>",
    }
    totals: Figure = {
        "type": "scatter",
        "mode": "text",
        "y": labels,
        "x": [1e3 * run.step_s for run in shown],
        "text": [f" {SECONDS.format(run.step_s)}" for run in shown],
        "textposition": "middle right",
        "cliponaxis": False,
        "showlegend": False,
        "hoverinfo": "skip",
    }
    figure = new_figure([*traces, predicted, totals], x="milliseconds of the mean simulated step", y="devices")
    return stacked(figure, len(shown), row=44, barmode="stack")


def _share(name: str, runs: Sequence[Simulated], labels: list[str]) -> Figure:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": labels,
        "x": [1e3 * run.step_s * run.shares.get(name, 0.0) for run in runs],
        "marker": {"color": SHARE_ROLES[name]},
        "customdata": [format_share(run.shares.get(name, 0.0)) for run in runs],
        "hovertemplate": f"{name}: %{{customdata}}<extra></extra>",
        "width": 0.62,
    }


def plan_bars(plan: Plan) -> Figure:
    """Samples per second of each candidate with its 90 % interval, the best first, and of plain DDP below them."""
    rows = [(_candidate_name(number, one), one.predicted_throughput, one.interval_90, LINES[0 if number == 1 else 7])
            for number, one in enumerate(plan.ranked[:MOST_CANDIDATES], start=1)]  # fmt: skip
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
    """Rank and kind of a candidate, and its statistical efficiency if it is below 1."""
    count = len(candidate.groups)
    worth = f", a sample worth {candidate.efficiency:.2f}" if candidate.efficiency < 0.995 else ""
    return f"{number}. {candidate.kind}, {count} group{'s' * (count != 1)}{worth}"
