"""Curves for people: a table of predictions, the terms of a step, and a plot in characters."""

from __future__ import annotations

import click

from paceline.cli.output import table
from paceline.model.prediction import Curve, Prediction
from paceline.units import SECONDS, format_share

__all__ = ["show_curve"]

WIDTH = 56


def show_curve(curve: Curve) -> None:
    """Table, plot, and what the curve tells."""
    priced = any(prediction.cost is not None for prediction in curve.predictions)
    columns = [">devices", ">step", ">samples/s", ">50 %", ">90 %", ">efficiency", "dominant"]
    rows = [_row(prediction, priced) for prediction in curve.predictions]
    table(curve.label, columns + ([">cost/1M samples"] if priced else []), rows)
    table("\nterms of a step", [">devices", *_names(curve)], [_terms(p, _names(curve)) for p in curve.predictions])
    click.echo("\n" + "\n".join(_plot(curve.predictions)))
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


def _plot(predictions: tuple[Prediction, ...]) -> list[str]:
    """One line per count: the 90 % interval as dots, the 50 % interval as dashes, the prediction as a mark."""
    top = max(prediction.samples_per_s.interval_90[1] for prediction in predictions)
    lines = [f"{'devices':>8}  samples/s, 0 to {top:,.0f}"]
    for prediction in predictions:
        rate = prediction.samples_per_s
        cells = [" "] * (WIDTH + 1)
        for (low, high), mark in ((rate.interval_90, "."), (rate.interval_50, "-")):
            for place in range(round(low / top * WIDTH), round(high / top * WIDTH) + 1):
                cells[place] = mark
        cells[round(rate.value / top * WIDTH)] = "o"
        lines.append(f"{prediction.devices:>8} |{''.join(cells)}")
    return lines
