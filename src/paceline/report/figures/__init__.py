"""Every plot as a Plotly figure: a dictionary of traces and layout, colours by role, names escaped.

A figure names colours by their role (`@forward`). The page replaces roles by the colours of its light, dark or printed
theme, and `paceline.report.plots` by those of the light theme. Plotly reads tags in text as formatting, so that every
name passes `plot_text`.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

from paceline.files import printable

__all__ = ["LINES", "SYMBOLS", "Figure", "error_bars", "log_ticks", "new_figure", "plot_text", "stacked"]

Figure = dict[str, Any]
MOST_LINES = 8
"""Maximum number of curves; more are indistinguishable."""
LEAST_TICKS = 4
LINES = tuple(f"@line{number}" for number in range(1, MOST_LINES + 1))
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "triangle-down", "pentagon")


def plot_text(text: object) -> str:
    """Text that Plotly shows as it is: tags would be formatting, `%{` a blank, and a first `@` a colour."""
    escaped = html.escape(printable(str(text)), quote=False).replace("%{", "&#37;{")
    return f"&#64;{escaped[1:]}" if escaped.startswith("@") else escaped


def new_figure(traces: list[Figure], *, x: str, y: str, counts: Sequence[int] = ()) -> Figure:
    """A figure with its axes; `counts` are the ticks of a logarithmic x axis, and make the y axis logarithmic too."""
    axis: Figure = {"gridcolor": "@grid", "zerolinecolor": "@grid", "automargin": True}
    axis |= {"ticklabelstandoff": 4, "separatethousands": True}
    across, up = ({"title": {"text": text, "standoff": 12}, **axis} for text in (x, y))
    if counts:
        across |= {"type": "log", "tickvals": list(counts), "ticktext": [f"{count:,}" for count in counts]}
        up |= {"type": "log", "dtick": "D2", "tickformat": ","}
    return {"data": traces, "layout": {"xaxis": across, "yaxis": up, "height": 380}}


def log_ticks(low: float, high: float) -> Figure:
    """Ticks of a logarithmic axis at round numbers, at least four and few enough to read."""
    ladders = (
        (1.0,),
        (1.0, 3.0),
        (1.0, 2.0, 5.0),
        (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0),
        tuple(1 + n / 5 for n in range(45)),
    )
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for ladder in ladders:
        ticks = [step * 10.0**decade for decade in decades for step in ladder]
        inside = [tick for tick in ticks if low * 0.9 <= tick <= high * 1.1]
        if len(inside) >= LEAST_TICKS:
            break
    return {"tickvals": inside, "ticktext": [f"{tick:,.6g}" if tick < 1e6 else f"{tick:.3g}" for tick in inside]}


def error_bars(values: Sequence[float], intervals: Sequence[tuple[float, float]], **style: float) -> Figure:
    """Bars from each value to the ends of its interval; an end that is not finite is not drawn."""
    above = [high - value for (_, high), value in zip(intervals, values, strict=True)]
    below = [value - low for (low, _), value in zip(intervals, values, strict=True)]
    above, below = ([max(0.0, side) if math.isfinite(side) else 0.0 for side in sides] for sides in (above, below))
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, **style}


def stacked(figure: Figure, num_rows: int, *, row: int, barmode: str) -> Figure:
    """The figure of horizontal bars by category, as high as its rows need."""
    figure["layout"] |= {"barmode": barmode, "height": 140 + row * num_rows}
    figure["layout"]["yaxis"] |= {"type": "category"}
    return figure
