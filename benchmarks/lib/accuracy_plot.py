"""Accuracy over time of several ways: the median of the seeds, and their range as a band."""

from __future__ import annotations

import bisect
import statistics
from typing import Any

from paceline.report.figures import LINES, new_figure, plot_text

Points = list[tuple[float, float]]
POINTS = 60


def accuracy_figure(curves: dict[str, list[Points]]) -> dict[str, Any]:
    """A line and a band for each way; a curve holds its last value."""
    last = max(points[-1][0] for seeds in curves.values() for points in seeds)
    moments = [last * number / POINTS for number in range(1, POINTS + 1)]
    traces: list[dict[str, Any]] = []
    for colour, (way, seeds) in zip(LINES, curves.items(), strict=False):
        values = [[_at(points, moment) for points in seeds] for moment in moments]
        high, low = [max(each) for each in values], [min(each) for each in values]
        band = {"x": moments + moments[::-1], "y": high + low[::-1], "fill": "toself", "fillcolor": f"{colour}-band"}
        shared = {"type": "scatter", "mode": "lines", "legendgroup": way, "name": plot_text(way)}
        traces.append({**shared, **band, "line": {"width": 0, "color": colour}, "showlegend": False})
        middle = [statistics.median(each) for each in values]
        traces.append({**shared, "x": moments, "y": middle, "line": {"color": colour, "width": 2}})
    return new_figure(traces, x="seconds", y="accuracy on held-out digits")


def _at(points: Points, moment: float) -> float:
    """The last accuracy seen until then."""
    place = bisect.bisect_right([time for time, _ in points], moment)
    return points[place - 1][1] if place else 0.0
