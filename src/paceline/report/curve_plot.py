"""Predicted curves as one SVG picture: throughput with its intervals on the left, the terms of a step on the right."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline.model.prediction import TERMS, Curve, Prediction
from paceline.report.markup import Markup, element, join
from paceline.units import SECONDS

__all__ = ["curves_svg"]

LINES = ("#1d6fb8", "#c2413b", "#2e8b57", "#8e5bb5", "#b3701a", "#0f8b8d", "#c23b8a", "#5a6675")
COLOURS = {
    "io": "#8a6d3b", "h2d": "#b58a1e", "forward": "#2f7fc1", "backward": "#1d4e89", "aggregate": "#d1495b",
    "update": "#4c9f70", "fixed": "#9aa5b1", "slowdown": "#e39aa4", "waiting": "#6b5b95",
}  # fmt: skip
"""Terms in the colours that the report's phases have."""
WIDTH, HEIGHT, TOP, FOOT = 1000, 440, 56, 64
LEFT, RIGHT = (78, 540), (640, 860)
"""Horizontal extent of the two panels."""
INK, FAINT = "#24292f", "#d8dee4"


def curves_svg(curves: Sequence[Curve], names: Sequence[str], *, title: str) -> str:
    """The picture of up to eight curves; names are what tells them apart."""
    shown = list(zip(curves, names, strict=True))[: len(LINES)]
    parts = [
        element("rect", width=WIDTH, height=HEIGHT, fill="white"),
        _text(LEFT[0], 26, title, size=15, weight="bold"),
        _throughput(shown),
        _bars(shown),
    ]
    attributes: dict[str, str | int] = {
        "viewBox": f"0 0 {WIDTH} {HEIGHT}",
        "width": WIDTH,
        "height": HEIGHT,
        "role": "img",
    }
    head = element("title", title)
    family = "system-ui, -apple-system, 'Segoe UI', sans-serif"
    body = element("svg", head, *parts, xmlns="http://www.w3.org/2000/svg", font_family=family, **attributes)
    return body.text + "\n"


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal",
          fill: str = INK) -> Markup:  # fmt: skip
    return element("text", text, x=round(x, 1), y=round(y, 1), font_size=size, text_anchor=anchor,
                   font_weight=weight, fill=fill)  # fmt: skip


def _line(x1: float, y1: float, x2: float, y2: float, *, stroke: str = FAINT, dash: str | None = None) -> Markup:
    return element("line", x1=round(x1, 1), y1=round(y1, 1), x2=round(x2, 1), y2=round(y2, 1), stroke=stroke,
                   stroke_dasharray=dash)  # fmt: skip


class _Axes:
    """Logarithmic axes of the left panel."""

    def __init__(self, found: Sequence[Prediction]) -> None:
        counts = [p.devices for p in found]
        rates = [bound for p in found for bound in (*p.samples_per_s.interval_90, _ideal(p))]
        self.low_x, self.high_x = math.log2(min(counts)) - 0.2, math.log2(max(counts)) + 0.2
        self.low_y, self.high_y = math.log10(min(rates)) - 0.05, math.log10(max(rates)) + 0.05

    def x(self, devices: float) -> float:
        share = (math.log2(devices) - self.low_x) / (self.high_x - self.low_x)
        return LEFT[0] + share * (LEFT[1] - LEFT[0])

    def y(self, rate: float) -> float:
        share = (math.log10(rate) - self.low_y) / (self.high_y - self.low_y)
        return HEIGHT - FOOT - share * (HEIGHT - FOOT - TOP)


def _ideal(prediction: Prediction) -> float:
    """Throughput if every device were as fast as one alone."""
    return prediction.samples_per_s.value / prediction.efficiency


def _throughput(shown: list[tuple[Curve, str]]) -> Markup:
    everything = [p for curve, _ in shown for p in curve.predictions]
    axes = _Axes(everything)
    parts = [_grid(axes, sorted({p.devices for p in everything}))]
    parts.append(_ideal_line(axes, shown[0][0]))
    for place, ((curve, name), colour) in enumerate(zip(shown, LINES, strict=False)):
        draw = _bands if len(shown) <= 2 else _whiskers
        parts += [draw(axes, curve, colour, shift=5.0 * (place - len(shown) / 2)), _curve(axes, curve, colour)]
        if len(shown) == 1:
            parts.append(_knee(axes, curve, colour))
        else:
            y = TOP + 14 + 17 * place
            parts.append(element("rect", x=LEFT[0] + 10, y=y - 9, width=11, height=11, fill=colour))
            parts.append(_text(LEFT[0] + 27, y + 1, f"{place + 1}  {name}"))
    return element("g", *parts)


def _grid(axes: _Axes, counts: list[int]) -> Markup:
    bottom = HEIGHT - FOOT
    parts = []
    for count in counts:
        parts.append(_line(axes.x(count), TOP, axes.x(count), bottom))
        parts.append(_text(axes.x(count), bottom + 17, f"{count:,}", anchor="middle"))
    for rate in _ticks(10**axes.low_y, 10**axes.high_y):
        parts.append(_line(LEFT[0], axes.y(rate), LEFT[1], axes.y(rate)))
        parts.append(_text(LEFT[0] - 7, axes.y(rate) + 4, f"{rate:,g}", anchor="end"))
    parts.append(_text(sum(LEFT) / 2, bottom + 38, "devices", anchor="middle"))
    parts.append(_text(LEFT[0] - 60, TOP - 10, "samples/s; intervals of 50 % and 90 %, dotted: ideal", size=11))
    return join(*parts)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between two rates, at most about eight."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1,)):
        found = [step * 10.0**power for power in decades for step in steps if low <= step * 10.0**power <= high]
        if len(found) <= 9:
            return found
    return found


def _ideal_line(axes: _Axes, curve: Curve) -> Markup:
    points = " ".join(f"{axes.x(p.devices):.1f},{axes.y(_ideal(p)):.1f}" for p in curve.predictions)
    return element("polyline", points=points, fill="none", stroke="#6e7781", stroke_dasharray="2 4")


def _curve(axes: _Axes, curve: Curve, colour: str) -> Markup:
    points = [(axes.x(p.devices), axes.y(p.samples_per_s.value)) for p in curve.predictions]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dots = [element("circle", cx=round(x, 1), cy=round(y, 1), r=4, fill=colour) for x, y in points]
    return join(element("polyline", points=line, fill="none", stroke=colour, stroke_width=2), *dots)


def _knee(axes: _Axes, curve: Curve, colour: str) -> Markup:
    knee = next((p for p in curve.predictions if p.devices == curve.knee), None)
    if knee is None:
        return join()
    x, y = axes.x(knee.devices), axes.y(knee.samples_per_s.value)
    ring = element("circle", cx=round(x, 1), cy=round(y, 1), r=8, fill="none", stroke=colour)
    return join(ring, _text(x + 11, y + 16, "knee", size=11, fill=colour))


def _bands(axes: _Axes, curve: Curve, colour: str, *, shift: float) -> Markup:
    found = curve.predictions
    return join(
        *(_band(axes, found, [getattr(p.samples_per_s, f"interval_{n}") for p in found], colour) for n in (90, 50))
    )


def _whiskers(axes: _Axes, curve: Curve, colour: str, *, shift: float) -> Markup:
    """Intervals as lines beside the points, where bands of many curves would hide each other."""
    parts = []
    for prediction in curve.predictions:
        x, rate = axes.x(prediction.devices) + shift, prediction.samples_per_s
        for (low, high), width in ((rate.interval_90, 1.2), (rate.interval_50, 3)):
            line = {"x1": round(x, 1), "x2": round(x, 1), "y1": round(axes.y(low), 1), "y2": round(axes.y(high), 1)}
            parts.append(element("line", stroke=colour, stroke_width=width, stroke_opacity=0.55, **line))
    return join(*parts)


def _band(axes: _Axes, found: Sequence[Prediction], bounds: list[tuple[float, float]], colour: str) -> Markup:
    """An area; one count alone has a bar."""
    if len(found) == 1:
        x, (low, high) = axes.x(found[0].devices), bounds[0]
        return element("rect", x=x - 5, y=axes.y(high), width=10, height=max(axes.y(low) - axes.y(high), 1),
                       fill=colour, fill_opacity=0.16)  # fmt: skip
    edge = [(p.devices, high) for p, (_, high) in zip(found, bounds, strict=True)]
    edge += [(p.devices, low) for p, (low, _) in reversed(list(zip(found, bounds, strict=True)))]
    points = " ".join(f"{axes.x(x):.1f},{axes.y(y):.1f}" for x, y in edge)
    return element("polygon", points=points, fill=colour, fill_opacity=0.16)


def _bars(shown: list[tuple[Curve, str]]) -> Markup:
    """Steps by their terms: of every count for one curve, of the largest count for several."""
    if len(shown) == 1:
        bars = [(f"{p.devices:,}", p) for p in shown[0][0].predictions]
        below = "devices"
    else:
        bars = [(str(place + 1), curve.predictions[-1]) for place, (curve, _) in enumerate(shown)]
        below = f"in the order of the legend, {bars[0][1].devices:,} devices"
    top = max(p.step_s.value for _, p in bars)
    names = [name for name in TERMS if any(p.terms[name] > 0.002 * p.step_s.value for _, p in bars)]
    width = (RIGHT[1] - RIGHT[0]) / len(bars)
    parts = [_text(RIGHT[0], TOP - 10, "terms of a step", size=11)]
    for place, (label, prediction) in enumerate(bars):
        parts.append(_bar(RIGHT[0] + (place + 0.15) * width, 0.7 * width, prediction, top=top, names=names))
        parts.append(_text(RIGHT[0] + (place + 0.5) * width, HEIGHT - FOOT + 17, label, anchor="middle"))
    parts.append(_text(sum(RIGHT) / 2, HEIGHT - FOOT + 38, below, anchor="middle"))
    for place, name in enumerate(reversed(names)):
        y = TOP + 14 + 18 * place
        parts.append(element("rect", x=RIGHT[1] + 18, y=y - 9, width=11, height=11, fill=COLOURS[name]))
        parts.append(_text(RIGHT[1] + 35, y + 1, name))
    return element("g", *parts)


def _bar(x: float, width: float, prediction: Prediction, *, top: float, names: list[str]) -> Markup:
    room = HEIGHT - FOOT - TOP - 18
    y = float(HEIGHT - FOOT)
    parts = []
    for name in names:
        height = prediction.terms[name] / top * room
        y -= height
        parts.append(element("rect", x=round(x, 1), y=round(y, 1), width=round(width, 1), height=round(height, 2),
                             fill=COLOURS[name]))  # fmt: skip
    parts.append(_text(x + width / 2, y - 5, SECONDS.format(prediction.step_s.value), size=9, anchor="middle"))
    return join(*parts)
