"""Figures as files: a self-contained page, or an image by Plotly without a browser.

Pictures (.svg, .png, .pdf) are drawn by kaleido 0.2.1, the extra `paceline[plot]`: it contains the part of Chromium
that Plotly needs, takes a figure as JSON on its standard input, and draws it with the same Plotly as the page.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import subprocess
import threading
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.errors import EnvironmentFailed, InputError
from paceline.files import write_output
from paceline.measurements.ranking import rank_launches
from paceline.measurements.results import load_launches
from paceline.measurements.store import Store
from paceline.measurements.summary import Comparison
from paceline.model.prediction import Curve
from paceline.model.simulate.scenario import Simulated
from paceline.report.figures import Figure, plot_text
from paceline.report.figures.predictions import plan_bars, simulated_shares, term_bars, throughput_curves
from paceline.report.html import read_asset, render_figures
from paceline.report.words import common_label

if TYPE_CHECKING:  # The figures of a verb are imported when it draws.
    from paceline.explain.explanation import Explanation
    from paceline.model.plan.make import Plan

__all__ = [
    "check_plot",
    "write_curves",
    "write_explanation",
    "write_launches",
    "write_plan_plot",
    "write_plot",
    "write_results",
    "write_simulated",
]

PICTURES = (".svg", ".png", ".pdf")
WIDTH = 1040
MOST_PANELS = 3
MOST_ROWS = 12
TIMEOUT_S, ATTEMPTS = 20, 3
"""Seconds for a picture, and how often kaleido is started for it: rarely, a start never answers."""
FLAGS = ("--disable-gpu", "--no-sandbox", "--allow-file-access-from-files", "--disable-dev-shm-usage")
FONT = {"family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif", "size": 13, "color": "@text"}
Titled = tuple[str, Figure]


def check_plot(path: Path | None) -> None:
    """Refuse an unwritable file before any computation."""
    if path is None:
        return
    if path.suffix.lower() not in (".html", *PICTURES):
        known, instead = ", ".join((".html", *PICTURES)), path.with_suffix(".svg") if path.name else "plot.svg"
        raise InputError(f"{path}: a plot is written as one of {known}", hint=f"--plot {instead}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: there is no such directory", hint="--plot needs a file that can be written")


def write_plot(path: Path, title: str, figures: Sequence[Titled]) -> None:
    """Write figures side by side to a file; its suffix selects the format."""
    check_plot(path)
    kind = path.suffix.lower()
    content = render_figures(title, figures) if kind == ".html" else _drawn(kind[1:], _side_by_side(title, figures))
    try:
        write_output(path, content)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="--plot needs a file that can be written") from None


def _side_by_side(title: str, figures: Sequence[Titled]) -> Figure:
    """One figure with a panel for each, in the colours of the light theme."""
    height = max(figure["layout"]["height"] for _, figure in figures) + 90
    whole: Figure = {"data": [], "layout": {"annotations": []}}
    for number, (name, figure) in enumerate(figures, start=1):
        begin, end = (number - 1) / len(figures), number / len(figures)
        _add_panel(whole, figure, "" if number == 1 else str(number), (begin + 0.08 * (number > 1), end))
        whole["layout"]["annotations"].append(_heading(name, begin + 0.08 * (number > 1)))
    names = [trace for trace in whole["data"] if trace.get("showlegend") is not False and trace.get("name")]
    below = 60 + 22 * -(-len(names) // 6)
    whole["layout"] |= {
        "title": {"text": f"<b>{plot_text(title)}</b>", "x": 0.02, "y": 1 - 24 / height, "font": {"size": 16}},
        "width": WIDTH,
        "height": height + below,
        "font": FONT,
        "margin": {"l": 70, "r": 20, "t": 84, "b": below},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 0,
            "yref": "container",
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "paper_bgcolor": "@panel",
        "plot_bgcolor": "@panel",
    }
    painted: Figure = _painted(whole, _light_colours())
    return painted


def _heading(name: str, x: float) -> Figure:
    place = {"x": x, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 8}
    return {"text": plot_text(name), "showarrow": False, **place}


def _add_panel(whole: Figure, figure: Figure, axis: str, domain: tuple[float, float]) -> None:
    layout = figure["layout"]
    whole["data"] += [{**trace, "xaxis": f"x{axis}", "yaxis": f"y{axis}"} for trace in figure["data"]]
    whole["layout"][f"xaxis{axis}"] = {**layout["xaxis"], "domain": domain, "anchor": f"y{axis}"}
    whole["layout"][f"yaxis{axis}"] = {**layout["yaxis"], "anchor": f"x{axis}"}
    whole["layout"] |= {key: layout[key] for key in ("barmode",) if key in layout}


def _light_colours() -> dict[str, str]:
    """Roles and colours of the page's light theme, from its style sheet."""
    theme = read_asset("page.css").split("}", 1)[0]
    return dict(re.findall(r"--([a-z0-9]+):(#[0-9a-f]+)", theme))


def _painted(value: Any, colours: dict[str, str]) -> Any:
    """Roles replaced by colours, as the page's script does it."""
    if isinstance(value, dict):
        return {key: _painted(item, colours) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_painted(item, colours) for item in value]
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    colour = colours[value[1:].removesuffix("-band")]
    full = "#" + 2 * colour[1:] if len(colour) == 4 else colour
    return f"{full}2e" if value.endswith("-band") else colour


def _drawn(kind: str, figure: Figure) -> bytes:
    """The picture of a figure."""
    size = {name: figure["layout"][name] for name in ("width", "height")}
    request = json.dumps({"format": kind, "scale": 2 if kind == "png" else 1, "data": figure, **size})
    with as_file(files("paceline.report").joinpath("assets", "plotly-basic.min.js")) as script:
        home, options = _kaleido(), f"--plotlyjs={str(script)!r}"
        attempts = (_asked(request.encode() + b"\n", home, options) for _ in range(ATTEMPTS))
        answer = next((one for one in attempts if one), {})
    if not answer.get("result"):
        reason = answer.get("message") or f"it gave no answer in {ATTEMPTS} attempts of {TIMEOUT_S} s"
        raise EnvironmentFailed(f"kaleido could not draw the plot: {reason}", hint="--plot FILE.html needs no kaleido")
    text: str = answer["result"]
    return text.encode() if kind == "svg" else base64.b64decode(text)


def _asked(request: bytes, home: Path, *options: str) -> dict[str, Any]:
    """The answer of kaleido; empty if there is none in time."""
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(home / "lib"),
        "FONTCONFIG_PATH": str(home / "etc" / "fonts"),
        "XDG_DATA_HOME": str(home / "xdg"),
    }
    command = [str(home / "bin" / "kaleido"), "plotly", *options, *FLAGS]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, cwd=home, env=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = threading.Timer(TIMEOUT_S, process.kill)
        deadline.start()
        try:
            # The first line means that kaleido is ready; it sometimes never answers an earlier request.
            if not process.stdout.readline():
                return {}
            process.stdin.write(request)
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline() or b"{}")
            return answer
        finally:
            deadline.cancel()
            process.kill()


def _kaleido() -> Path:
    """The folder of kaleido 0.2.1; later versions need a browser."""
    spec = importlib.util.find_spec("kaleido")
    home = Path(spec.origin).parent / "executable" if spec and spec.origin else None
    if home is None or not (home / "bin" / "kaleido").is_file():
        raise EnvironmentFailed(
            "pictures need kaleido 0.2.1, which is not installed",
            hint="pip install 'paceline[plot]', or write a page instead: --plot FILE.html",
        )
    return home


def write_curves(path: Path, curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Predicted curves: throughput with its intervals, and the terms of a step."""
    title = curves[0].label if len(curves) == 1 else common_label(curves)
    throughput = "throughput, with intervals of 50 % and 90 %"
    figures = [(throughput, throughput_curves(curves, names)), ("terms of a step", term_bars(curves, names))]
    write_plot(path, title, figures)


def write_simulated(path: Path, runs: Sequence[Simulated], title: str) -> None:
    """Plot simulated runs: the step at each number of devices, and its parts."""
    write_plot(path, title, [("where the time goes", simulated_shares(runs))])


def write_results(path: Path, store: Store, campaign: str) -> None:
    """Throughput of a campaign: a panel per network, frameworks and strategies side by side."""
    from paceline.report.figures.networks import ranked_bars, styles_of

    rankings = rank_launches(load_launches(store, campaign))
    if not rankings:
        raise InputError(f"no launch of {campaign} succeeded", hint="`paceline show` lists why they failed")
    styles = styles_of([place.name for ranking in rankings for place in ranking.places])
    networks = list(dict.fromkeys(ranking.network for ranking in rankings))[:MOST_PANELS]
    panels = [
        (
            name,
            ranked_bars(sorted((r for r in rankings if r.network == name), key=lambda r: (r.batch, r.ranks)), styles),
        )
        for name in networks
    ]
    write_plot(path, campaign, panels)


def write_launches(
    path: Path, groups: Sequence[Sequence[float]], names: tuple[str, str], comparison: Comparison
) -> None:
    """Every launch of two groups, and the verdict on them."""
    from paceline.report.figures.campaign import launch_points

    ratio = comparison.ratio
    title = f"{comparison.verdict}: ratio {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    write_plot(path, title, [(f"{names[0]} against {names[1]}", launch_points(groups, names))])


def write_plan_plot(path: Path, plan: Plan) -> None:
    """The candidate strategies of a plan, and why a longer bar may rank lower where one does."""
    title = f"{plan.network} on {plan.cluster}, global batch {plan.global_batch}"
    longest = max(one.predicted_throughput for one in plan.ranked)
    why = "; a longer bar ranks lower where stale or local steps make its samples worth less"
    panel = f"best: {plan.best.kind}{why * (plan.best.predicted_throughput < longest)}"
    write_plot(path, title, [(panel, plan_bars(plan))])


def write_explanation(path: Path, explanation: Explanation) -> None:
    """Plot the parts of the step, and the gains of the findings or the largest gap."""
    from paceline.report.figures.campaign import gain_bars, phase_bars, waterfall

    split = [case.breakdown for case in explanation.cases if case.breakdown is not None]
    known = [finding for finding in (*explanation.findings, *explanation.refuted) if not finding.unknown]
    panels = [("where the step goes", phase_bars(split[:MOST_ROWS]))] if split else []
    if known:
        panels.append(("what would help", gain_bars(known)))
    elif explanation.gaps:
        gap = explanation.gaps[0]
        panels.append((f"{gap.slow} against {gap.fast}", waterfall(gap)))
    if not panels:
        raise InputError(f"{explanation.campaign} has nothing to draw", hint="run it with protocol.phases = true")
    write_plot(path, explanation.title or explanation.study, panels)
