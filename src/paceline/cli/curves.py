"""Curves for people: a table of predictions, the terms of a step, and a plot in characters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from paceline.cli.output import table
from paceline.errors import InputError
from paceline.model.prediction import Curve, Prediction, reasons
from paceline.report.curve_plot import curves_svg
from paceline.units import SECONDS, format_share

__all__ = ["plot_lines", "plot_option", "show_comparison", "show_curve", "write_file", "write_plot"]

WIDTH = 56
plot_option = click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="Also draw it into this file, as SVG."
)


def write_plot(path: Path, curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Draw curves into a file."""
    title = curves[0].label if len(curves) == 1 else _common(curves)
    write_file(path, curves_svg(curves, names, title=title))


def write_file(path: Path, text: str) -> None:
    """Write a picture, or say why not."""
    if path.suffix.lower() != ".svg":
        raise InputError(f"--plot {path}: pictures are written as SVG", hint=f"--plot {path.with_suffix('.svg')}")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}", hint="--plot needs a file that can be written") from None


def _common(curves: Sequence[Curve]) -> str:
    """What all labels say."""
    parts = [curve.label.split(", ") for curve in curves]
    return ", ".join(part for part in parts[0] if all(part in other for other in parts)) or "predictions"


def show_comparison(curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Throughput of each at every count, and why each differs from the first."""
    counts = [prediction.devices for prediction in curves[0].predictions]
    rows = [
        [name, *(f"{p.samples_per_s.value:,.1f}" for p in curve.predictions), *_last(curve, curves[0])]
        for name, curve in zip(names, curves, strict=True)
    ]
    columns = ["framework", *(f">{count}" for count in counts), ">90 %", ">against first", ">knee after", "dominant"]
    table(f"{_common(curves)}: samples/s by devices", columns, rows)
    click.echo("\n" + "\n".join(plot_lines([curve.predictions[-1] for curve in curves], names)))
    click.echo(f"\nwhy, against {names[0]} at {counts[-1]} devices")
    for name, curve in zip(names[1:], curves[1:], strict=True):
        click.echo(f"{name}: {'; '.join(reasons(curves[0], curve))}")


def _last(curve: Curve, first: Curve) -> list[str]:
    end, base = curve.predictions[-1], first.predictions[-1]
    interval = "{:,.0f}-{:,.0f}".format(*end.samples_per_s.interval_90)
    gain = end.samples_per_s.value / base.samples_per_s.value - 1
    return [interval, f"{100 * gain:+.1f} %", str(curve.knee or "none"), end.dominant]


def show_curve(curve: Curve) -> None:
    """Table, plot, and what the curve tells."""
    priced = any(prediction.cost is not None for prediction in curve.predictions)
    columns = [">devices", ">step", ">samples/s", ">50 %", ">90 %", ">efficiency", "dominant"]
    rows = [_row(prediction, priced) for prediction in curve.predictions]
    table(curve.label, columns + ([">cost/1M samples"] if priced else []), rows)
    table("\nterms of a step", [">devices", *_names(curve)], [_terms(p, _names(curve)) for p in curve.predictions])
    click.echo("\n" + "\n".join(plot_lines(curve.predictions)))
    gain = format_share(curve.knee_gain)
    knee = f"after {curve.knee} devices" if curve.knee else "not reached"
    click.echo(f"\nknee (a doubling adds less than {gain}): {knee}")
    choices = curve.detail.get("fusion", {})
    if choices:
        said = [f"{name} {one['exchanges']} ({SECONDS.format(one['exposed_s'])})" for name, one in choices.items()]
        click.echo(f"exchanges (exposed) at {curve.predictions[-1].devices} devices: {', '.join(said)}")
    for line in curve.basis:
        click.echo(f"rests on: {line}")
    click.echo(f"to narrow the interval: {curve.advice}")


def _row(prediction: Prediction, priced: bool) -> list[object]:
    rate = prediction.samples_per_s
    cells: list[object] = [
        prediction.devices,
        SECONDS.format(prediction.step_s.value),
        f"{rate.value:,.1f}",
        "{:,.1f}-{:,.1f}".format(*rate.interval_50),
        "{:,.1f}-{:,.1f}".format(*rate.interval_90),
        format_share(prediction.efficiency),
        prediction.dominant,
    ]
    return [*cells, "" if prediction.cost is None else f"{prediction.cost:,.2f}"] if priced else cells


def _names(curve: Curve) -> list[str]:
    """Terms that are not zero everywhere."""
    first = curve.predictions[0].terms
    return [name for name in first if any(prediction.terms[name] > 0 for prediction in curve.predictions)]


def _terms(prediction: Prediction, names: list[str]) -> list[object]:
    return [prediction.devices, *(SECONDS.format(prediction.terms[name]) for name in names)]


def plot_lines(predictions: Sequence[Prediction], names: Sequence[str] = ()) -> list[str]:
    """One line per count or name: the 90 % interval as dots, the 50 % interval as dashes, the prediction as a mark."""
    top = max(prediction.samples_per_s.interval_90[1] for prediction in predictions)
    labels = list(names) or [str(prediction.devices) for prediction in predictions]
    wide = max(8, *(len(label) for label in labels))
    lines = [f"{'' if names else 'devices':>{wide}}  samples/s, 0 to {top:,.0f}  (o predicted, - 50 %, . 90 %)"]
    for label, prediction in zip(labels, predictions, strict=True):
        rate = prediction.samples_per_s
        cells = [" "] * (WIDTH + 1)
        for (low, high), mark in ((rate.interval_90, "."), (rate.interval_50, "-")):
            for place in range(round(low / top * WIDTH), round(high / top * WIDTH) + 1):
                cells[place] = mark
        cells[round(rate.value / top * WIDTH)] = "o"
        lines.append(f"{label:>{wide}} |{''.join(cells).rstrip()}")
    return lines
