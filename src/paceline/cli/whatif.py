"""`paceline whatif`: the same prediction with something changed, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.curves import plot_lines, plot_option, write_plot
from paceline.cli.output import emit, json_option, table
from paceline.cli.questions import calibration_of, counts_of, knee_option, question_of, question_options
from paceline.errors import InputError
from paceline.model.changes import changed, parse_changes
from paceline.model.prediction import Curve, reasons
from paceline.model.scaling import predict_curve
from paceline.units import SECONDS, format_share

__all__ = ["command"]


@click.command()
@question_options
@knee_option
@plot_option
@json_option
def command(
    devices: str, changes: tuple[str, ...], calibration: Path | None, knee: float, plot: Path | None, as_json: bool,
    **asked: Any,
) -> None:  # fmt: skip
    """Predict twice, as it is and with --set applied, and show what the change is worth.

    \b
    Examples:
      paceline whatif --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 8,32 \\
        --set link.bandwidth=100Gb/s
      paceline whatif --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --set strategy.bucket=64MiB
      paceline whatif --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --set framework=cntk --plot whatif.svg
    """
    if not changes:
        raise InputError("nothing to change", hint="for example --set link.bandwidth=100Gb/s")
    question = question_of(**asked)
    known, counts = calibration_of(calibration), counts_of(devices, "--devices")
    before, after = (
        predict_curve(one, counts, calibration=known, knee_gain=knee)
        for one in (question, changed(question, parse_changes(changes)))
    )
    if plot is not None:
        write_plot(plot, (before, after), ("as it is", ", ".join(changes)))
    if as_json:
        emit({"changes": list(changes), "before": before.as_dict(), "after": after.as_dict(),
              "reasons": reasons(before, after)}, "whatif")  # fmt: skip
    else:
        _show(before, after, changes)


def _show(before: Curve, after: Curve, changes: tuple[str, ...]) -> None:
    rows = [
        (
            old.devices,
            SECONDS.format(old.step_s.value),
            SECONDS.format(new.step_s.value),
            f"{new.samples_per_s.value:,.1f}",
            "{:,.1f}-{:,.1f}".format(*new.samples_per_s.interval_90),
            format_share(new.samples_per_s.value / old.samples_per_s.value - 1),
            f"{old.dominant} -> {new.dominant}",
        )
        for old, new in zip(before.predictions, after.predictions, strict=True)
    ]
    columns = [">devices", ">step before", ">step after", ">samples/s after", ">90 %", ">gain", "dominant"]
    table(f"{before.label}; {', '.join(changes)}", columns, rows)
    ends, names = [p for pair in zip(before.predictions, after.predictions, strict=True) for p in pair], []
    for one in before.predictions:
        names += [f"{one.devices} before", "after"]
    click.echo("\n" + "\n".join(plot_lines(ends, names)))
    click.echo(f"\nwhy, at {ends[-1].devices} devices: {'; '.join(reasons(before, after))}")
    click.echo(f"to narrow the interval: {after.advice}")
