"""`paceline predict`: predict step time and throughput with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline import api
from paceline.cli.options import json_option, plot_option
from paceline.cli.questions import (
    extrapolated,
    job_options,
    knee_option,
    points_options,
    question_arguments,
    question_options,
    requested_changes,
    requested_counts,
)
from paceline.report.documents import predictions_document
from paceline.report.plots import check_plot, write_curves
from paceline.report.terminal import emit
from paceline.report.terminal.predictions import show_curves

__all__ = ["command"]


@click.command()
@question_options
@knee_option
@job_options
@points_options
@plot_option
@json_option
def command(
    devices: str | None, changes: tuple[str, ...], calibration: Path | None, knee: float, points: dict[str, Any],
    plot: Path | None, as_json: bool, framework: str, samples: int | None, tokens: int | None, epochs: float,
    price: str | None,
    **asked: Any,
) -> None:  # fmt: skip
    """Predict step time and throughput with intervals, from a catalog network, a profile, or measured points.

    Several frameworks, separated by commas, are compared, each with the reasons why it differs from the first.

    A points file has two columns at least: a number of devices (gpus, n_gpus, world_size, ...) and a throughput
    (images_per_sec, img/s, tokens_per_s, ..., or step_time_ms with a batch). Better with network, framework or
    strategy, device, link, devices_per_host (of a full host, in use or not), batch_per_device or global_batch, and
    spread (a standard deviation: the interval rests on it), as columns or as --network, --batch and --fact. What is
    missing is assumed, and the output names it.

    \b
    Examples:
      paceline predict --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 1,8,32
      paceline predict --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --framework pytorch,mxnet,cntk,caffe-mpi
      paceline predict --profile my-run.profile --cluster my-cluster.toml --devices 8,64 --plot curve.svg
      paceline predict --from my-run --cluster dgx-a100 --devices 1,8
      paceline predict --network gpt2 --cluster "p4d.24xlarge x 4" --batch 16 --precision amp --devices 8,32 \\
        --samples 9000000 --epochs 3
      paceline predict --network resnet50 --cluster dgx-a100 --global-batch 512 --devices 2,4,8
      paceline predict --measured points.csv --at 32,64 --json
      paceline predict --measured points.csv --at 32 --global-batch 512
      paceline predict --measured points.csv --at 64 --network resnet50 --fact link=25gbe --fact devices_per_host=4
    """
    check_plot(plot)
    answer = extrapolated(asked, devices, knee, **points)
    measured = answer is not None
    if answer is None:
        names = [name.strip() for name in framework.split(",") if name.strip()]
        answer = api.predict(
            **question_arguments(**asked), framework=names,
            devices=requested_counts(points["at"] or devices, asked["cluster"]),
            calibration=calibration, knee=knee, samples=samples, tokens=tokens, epochs=epochs, price=price,
            changes=requested_changes(changes, batch=asked["batch"], precision=asked["precision"]),
            global_batch=points["global_batch"],
        )  # fmt: skip
    else:
        names = [curve.label for curve in answer.curves]
    curves = answer.curves
    if plot is not None:
        write_curves(plot, curves, names)
    if as_json:
        emit(predictions_document(curves, compared=not measured), "predict")
    else:
        show_curves(curves, names, compared=not measured)
