"""Simulated runs as one SVG picture: how long a step is at each number of devices, and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.model.simulate.scenario import Simulated
from paceline.report.markup import Markup, element, join
from paceline.units import SECONDS, format_share

__all__ = ["shares_svg"]

COLOURS = {
    "compute": "#1d4e89", "exchange and rest": "#d1495b", "other jobs": "#b58a1e", "jitter": "#9aa5b1",
    "stragglers": "#6b5b95", "failures": "#24292f", "queue and stragglers": "#4c9f70",
}  # fmt: skip
WIDTH, LEFT, RIGHT, TOP, ROW = 1000, 90, 760, 64, 44


def shares_svg(found: Sequence[Simulated], *, title: str) -> str:
    """One bar per number of devices, as long as its mean step."""
    height = TOP + ROW * len(found) + 66
    longest = max(one.step_s for one in found)
    bars = [_bar(one, TOP + ROW * place, longest) for place, one in enumerate(found)]
    shown = [name for name in COLOURS if any(name in one.shares for one in found)]
    legend = [_entry(name, TOP + 6 + 19 * place) for place, name in enumerate(shown)]
    below = "mean step as played; the mark is the step that is predicted if nothing happens"
    parts = [
        element("title", title),
        element("rect", width=WIDTH, height=height, fill="white"),
        _text(24, 28, title, size=15, weight="bold"),
        _text(24, TOP - 12, "devices", size=11),
        *bars,
        *legend,
        _text(LEFT, height - 24, below, size=11),
    ]
    family = "system-ui, -apple-system, 'Segoe UI', sans-serif"
    size: dict[str, str | int] = {"viewBox": f"0 0 {WIDTH} {height}", "width": WIDTH, "height": height, "role": "img"}
    return element("svg", *parts, xmlns="http://www.w3.org/2000/svg", font_family=family, **size).text + "\n"


def _bar(one: Simulated, y: float, longest: float) -> Markup:
    room = RIGHT - LEFT - 70
    x, parts = float(LEFT), [_text(LEFT - 12, y + 21, f"{one.devices:,}", anchor="end")]
    for name, share in one.shares.items():
        width = share * one.step_s / longest * room
        tip = element("title", f"{name}: {format_share(share)}")
        parts.append(element("rect", tip, x=round(x, 1), y=y, width=round(width, 2), height=ROW - 14,
                             fill=COLOURS[name]))  # fmt: skip
        x += width
    mark = round(LEFT + one.predicted_step_s / longest * room, 1)
    parts.append(element("line", x1=mark, x2=mark, y1=y - 4, y2=y + ROW - 10, stroke="#24292f", stroke_width=2))
    return join(*parts, _text(x + 8, y + 20, SECONDS.format(one.step_s)))


def _entry(name: str, y: float) -> Markup:
    box = element("rect", x=RIGHT + 30, y=y - 9, width=11, height=11, fill=COLOURS[name])
    return join(box, _text(RIGHT + 48, y + 1, name))


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", weight: str = "normal") -> Markup:
    return element("text", text, x=round(x, 1), y=round(y, 1), font_size=size, text_anchor=anchor, font_weight=weight)
