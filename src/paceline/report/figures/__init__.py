"""Every plot as a Plotly figure: a dictionary of traces and layout, colours by role, names escaped.

A figure names colours by their role (`@forward`). The page replaces roles by the colours of its light, dark or printed
theme, and `paceline.report.plots` by those of the light theme. Plotly reads tags in text as formatting, so that every
name passes `plot_text`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

__all__ = ["LINES", "SYMBOLS", "Figure", "new_figure", "plot_text", "stacked"]

Figure = dict[str, Any]
MOST_LINES = 8
"""Maximum number of curves; more are indistinguishable."""
LINES = tuple(f"@line{number}" for number in range(1, MOST_LINES + 1))
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "pentagon")


def plot_text(text: object) -> str:
    """Text for Plotly with escaped tags, which Plotly would interpret as formatting."""
    return html.escape(str(text), quote=False)


def new_figure(traces: list[Figure], *, x: str, y: str, counts: Sequence[int] = ()) -> Figure:
    """A figure with its axes; `counts` are the ticks of a logarithmic x axis, and make the y axis logarithmic too."""
    axis: Figure = {"gridcolor": "@grid", "zerolinecolor": "@grid", "automargin": True}
    across, up = {"title": {"text": x}, **axis}, {"title": {"text": y}, **axis}
    if counts:
        across |= {"type": "log", "tickvals": list(counts), "ticktext": [f"{count:,}" for count in counts]}
        up |= {"type": "log", "dtick": "D2", "tickformat": ","}
    return {"data": traces, "layout": {"xaxis": across, "yaxis": up, "height": 380}}


def stacked(figure: Figure, num_rows: int, *, row: int, barmode: str) -> Figure:
    """The figure of horizontal bars by category, as high as its rows need."""
    figure["layout"] |= {"barmode": barmode, "height": 140 + row * num_rows}
    figure["layout"]["yaxis"] |= {"type": "category"}
    return figure
