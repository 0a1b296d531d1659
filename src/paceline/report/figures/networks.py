"""Figures of one network each: frameworks side by side, ranked, and how they scale."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from paceline.explain.predicted import ScalingSeries
from paceline.measurements.ranking import RankedCase, Ranking
from paceline.report.figures import LINES, SYMBOLS, Figure, error_bars, log_ticks, new_figure, plot_text
from paceline.units import format_count

__all__ = ["efficiency", "ranked_bars", "scaling", "styles_of"]

COUNTS = [2**power for power in range(14)]
Styles = Mapping[str, int]
"""The number of the colour and symbol of each contender, the same in every panel."""


def styles_of(names: Sequence[str]) -> dict[str, int]:
    """A style for every contender; colours repeat after eight."""
    return {name: number % len(LINES) for number, name in enumerate(dict.fromkeys(names))}


def ranked_bars(rankings: Sequence[Ranking], styles: Styles) -> Figure:
    """Throughput of every contender by size, the fastest first within each; a winner is named above its bar."""
    traces: list[Figure] = []
    shown: set[str] = set()
    alike = {name for name in ("batch", "cluster", "input") if len({getattr(one, name) for one in rankings}) == 1}
    for ranking in rankings:
        for number, place in enumerate(ranking.places):
            bar = _ranked_bar(ranking, place, number, styles)
            traces.append({**bar, "x": [_size(ranking, alike)], "showlegend": place.name not in shown})
            shown.add(place.name)
    figure = new_figure(traces, x="", y="samples per second")
    figure["layout"] |= {"barmode": "group", "bargap": 0.12, "height": 360}
    figure["layout"]["xaxis"] |= {"type": "category"}
    figure["layout"]["yaxis"] |= {"rangemode": "tozero", "tickformat": ","}
    return figure


def _ranked_bar(ranking: Ranking, place: RankedCase, number: int, styles: Styles) -> Figure:
    rate, ratio = place.throughput, place.behind.ratio.value if place.behind else 1.0
    verdict = (
        place.behind.verdict if place.behind else "fastest" if ranking.winner else "first, not shown to be fastest"
    )
    return {
        "type": "bar",
        "name": plot_text(place.name),
        "legendgroup": plot_text(place.name),
        "offsetgroup": str(number),
        "y": [rate.value],
        "error_y": error_bars([rate.value], [(rate.low, rate.high)], thickness=1),
        "marker": {"color": LINES[styles[place.name]]},
        "customdata": [plot_text(verdict)],
        "text": ["best" if ranking.winner is place else "" if number == 0 else f"{ratio:.2f}"],
        "textposition": "outside",
        "cliponaxis": False,
        "hovertemplate": f"{plot_text(place.name)}: %{{y:,.1f}} samples/s, %{{customdata}}<extra></extra>",
    }


def _size(ranking: Ranking, alike: Collection[str]) -> str:
    """Label that distinguishes this group of bars within its network."""
    ranks = format_count(ranking.ranks, "rank")
    more = {"batch": f"batch {ranking.batch}", "cluster": ranking.cluster, "input": ranking.input}
    return plot_text(", ".join([ranks, *(words for name, words in more.items() if name not in alike)]))


def scaling(series: Sequence[ScalingSeries], styles: Styles) -> Figure:
    """Samples per second over ranks of one network: measured with intervals, ideal, predicted with its band."""
    traces: list[Figure] = []
    for number, item in enumerate(_scaled(series)):
        style = styles[item.cases[0].run.contender]
        traces += _predicted(item, style, first=number == 0)
        traces.append(_measured(item, style))
        traces += [_ideal(item)] if number == 0 else []
    figure = new_figure(traces, x="ranks", y="samples per second", counts=COUNTS)
    values = [value for trace in traces for value in trace["y"] if value > 0]
    if values:
        figure["layout"]["yaxis"] |= log_ticks(min(values), max(values))
    return figure


def _scaled(series: Sequence[ScalingSeries]) -> list[ScalingSeries]:
    """Curves with more than one point, measured or predicted; the fastest if there are too many."""
    chosen = [s for s in series if _points(s) and (len(_points(s)) > 1 or s.curve)]
    chosen.sort(key=lambda s: -max(value for _, value, _ in _points(s)))
    return chosen[: len(LINES)]


def _points(item: ScalingSeries) -> list[tuple[int, float, tuple[float, float]]]:
    """Ranks, throughput and its interval."""
    rates = [(case.run.ranks, case.result.throughput) for case in item.cases]
    return [(ranks, rate.value, (rate.low, rate.high)) for ranks, rate in rates if rate is not None]


def _name(item: ScalingSeries) -> str:
    """The framework, and a label that distinguishes the series within its network."""
    run = item.cases[0].run
    source = "" if run.input == "resident" else f", {run.input}"
    return plot_text(f"{run.contender}, batch {run.batch}{source}")


def _measured(item: ScalingSeries, style: int) -> Figure:
    points = _points(item)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _name(item),
        "x": [point[0] for point in points],
        "y": [point[1] for point in points],
        "error_y": error_bars([rate for _, rate, _ in points], [ends for _, _, ends in points]),
        "line": {"color": LINES[style], "width": 2},
        "marker": {"size": 9, "symbol": SYMBOLS[style]},
        "legendgroup": _name(item),
        "hovertemplate": "%{x} ranks: %{y:,.1f} samples/s, measured<extra></extra>",
    }


def _ideal(item: ScalingSeries) -> Figure:
    ranks, rate = _points(item)[0][:2]
    predicted = [p.devices for p in item.curve.predictions] if item.curve else []
    last = max([point[0] for point in _points(item)] + predicted)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": "ideal",
        "x": [ranks, last],
        "y": [rate, rate * last / ranks],
        "line": {"color": "@muted", "width": 1, "dash": "dot"},
        "hoverinfo": "skip",
    }


def _predicted(item: ScalingSeries, style: int, *, first: bool) -> list[Figure]:
    if item.curve is None:
        return []
    predictions = item.curve.predictions
    ranks = [prediction.devices for prediction in predictions]
    low = [prediction.samples_per_s.interval_90[0] for prediction in predictions]
    high = [prediction.samples_per_s.interval_90[1] for prediction in predictions]
    shared = {"type": "scatter", "mode": "lines", "legendgroup": _name(item), "hoverinfo": "skip"}
    band = {
        **shared,
        "x": ranks + ranks[::-1],
        "y": high + low[::-1],
        "fill": "toself",
        "fillcolor": f"{LINES[style]}-band",
        "line": {"width": 0, "color": LINES[style]},
        "showlegend": False,
    }
    line = {
        **shared,
        "name": "predicted, 90 % band",
        "showlegend": first,
        "x": ranks,
        "y": [prediction.samples_per_s.value for prediction in predictions],
        "line": {"color": LINES[style], "width": 1.5, "dash": "dash"},
    }
    return [band, line]


def efficiency(series: Sequence[ScalingSeries], styles: Styles) -> Figure:
    """Efficiency over ranks of one network, against each curve's own base: measured, and dashed as predicted."""
    traces: list[Figure] = []
    for item in _scaled(series):
        style = styles[item.cases[0].run.contender]
        points = [(c.run.ranks, c.result.efficiency) for c in item.cases if c.result.efficiency is not None]
        if len(points) > 1:
            traces.append(_efficiency(item, style, points))
        if item.curve:
            predicted = [(p.devices, p.efficiency) for p in item.curve.predictions]
            dashed = not any(trace["line"].get("dash") for trace in traces)
            line = {"color": LINES[style], "width": 1.5, "dash": "dash"}
            more = {"name": "predicted", "mode": "lines", "line": line, "showlegend": dashed, "hoverinfo": "skip"}
            traces.append({**_efficiency(item, style, predicted), **more})
    figure = new_figure(traces, x="ranks", y="efficiency", counts=COUNTS)
    figure["layout"]["yaxis"] |= {"type": "linear", "tickformat": ".0%", "rangemode": "tozero"}
    figure["layout"]["yaxis"].pop("dtick", None)
    line = {"color": "@muted", "dash": "dot", "width": 1}
    figure["layout"]["shapes"] = [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1.0, "y1": 1.0, "line": line}
    ]
    return figure


def _efficiency(item: ScalingSeries, style: int, points: Sequence[tuple[int, float | None]]) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": _name(item),
        "legendgroup": _name(item),
        "x": [ranks for ranks, _ in points],
        "y": [share for _, share in points],
        "line": {"color": LINES[style], "width": 2},
        "marker": {"size": 9, "symbol": SYMBOLS[style]},
        "hovertemplate": "%{x} ranks: %{y:.1%}<extra></extra>",
    }
