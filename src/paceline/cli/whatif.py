"""`paceline whatif`: compare a prediction with and without a change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline import api
from paceline.cli.options import json_option, plot_option
from paceline.cli.questions import best_bucket, knee_option, question_arguments, question_options, requested_counts
from paceline.errors import InputError
from paceline.model.changes import parse_changes
from paceline.model.prediction import reasons
from paceline.report.plots import check_plot, write_curves
from paceline.report.terminal import emit
from paceline.report.terminal.predictions import show_buckets, show_changed

__all__ = ["command"]


@click.command()
@question_options
@knee_option
@click.option("--buckets", is_flag=True, help="Print the best bucket_cap_mb of DDP, and its gain over the default.")
@plot_option
@json_option
def command(
    devices: str | None, changes: tuple[str, ...], calibration: Path | None, knee: float, buckets: bool,
    plot: Path | None, as_json: bool,
    **asked: Any,
) -> None:  # fmt: skip
    """Predict with and without the changes of --set, and show the difference; --precision alone counts as a change.

    \b
    Examples:
      paceline whatif --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 8,32 \\
        --set link.bandwidth=100Gb/s
      paceline whatif --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --set strategy.bucket=64MiB
      paceline whatif --network resnet50 --cluster dgx-a100 --batch 64 --precision amp
      paceline whatif --network resnet50 --cluster "4x rtx-4090 over 10gbe x 4" --devices 16 --set link=100gbe
      paceline whatif --network bert-base --cluster v100-10gbe-8x4 --batch 32 --devices 32 --buckets
      paceline whatif --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --set framework=cntk --plot whatif.svg
    """
    if buckets:
        answer = best_bucket(asked, requested_counts(devices, asked["cluster"])[-1], changes, calibration)
        emit(answer.as_dict(), "buckets") if as_json else show_buckets(answer)
        return
    if asked["precision"] is not None and not changes:
        changes, asked = (f"strategy.precision={asked['precision']}",), {**asked, "precision": None}
    if not changes:
        raise InputError("nothing to change", hint="for example --set link.bandwidth=100Gb/s")
    check_plot(plot)
    framework, counts = asked.pop("framework"), requested_counts(devices, asked["cluster"])
    before, after = (
        api.predict(
            **question_arguments(**asked),
            devices=counts,
            framework=framework,
            calibration=calibration,
            changes=change,
            knee=knee,
        ).curve
        for change in ({}, parse_changes(changes))
    )
    if plot is not None:
        write_curves(plot, (before, after), ("as it is", ", ".join(changes)))
    if as_json:
        emit({"changes": list(changes), "before": before.as_dict(), "after": after.as_dict(),
              "reasons": reasons(before, after)}, "whatif")  # fmt: skip
    else:
        show_changed(before, after, changes)
