"""`paceline predict`: predict step time and throughput with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline import api
from paceline.cli.options import COUNT, counts_of, json_option, plot_option
from paceline.cli.questions import asked_of, knee_option, question_options
from paceline.errors import InputError
from paceline.model.changes import parse_changes
from paceline.report.documents import predictions_document
from paceline.report.plots import check_plot, write_curves
from paceline.report.terminal import emit
from paceline.report.terminal.predictions import show_curves

__all__ = ["command"]


@click.command()
@question_options
@knee_option
@click.option("--measured", type=click.Path(path_type=Path), help="A CSV file of measured throughputs.")
@click.option("--at", help="With --measured: numbers of devices to predict.")
@click.option("--global-batch", type=COUNT, help="With --measured: samples of all devices per step.")
@click.option("--force", is_flag=True, help="With --measured: predict beyond the supported distance, too.")
@plot_option
@json_option
def command(
    devices: str, changes: tuple[str, ...], calibration: Path | None, knee: float, measured: Path | None,
    at: str | None, global_batch: int | None, force: bool, plot: Path | None, as_json: bool, framework: str,
    **asked: Any,
) -> None:  # fmt: skip
    """Predict step time and throughput with intervals, from a catalog network, a profile, or measured points.

    Several frameworks, separated by commas, are compared, each with the reasons why it differs from the first.

    A points file has the columns devices and samples_per_s. Better with network, framework or strategy, device, link,
    devices_per_host (of a full host, in use or not), batch_per_device or global_batch, and spread (a standard
    deviation: the interval rests on it). Names are what people write.

    \b
    Examples:
      paceline predict --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 1,8,32
      paceline predict --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --framework pytorch,mxnet,cntk,caffe-mpi
      paceline predict --profile my-run.profile --cluster my-cluster.toml --devices 8,64 --plot curve.svg
      paceline predict --measured points.csv --at 32,64 --json
      paceline predict --measured points.csv --at 32 --global-batch 512
    """
    check_plot(plot)
    if measured is not None:
        _only_measured(asked)
        at_counts = counts_of(at or devices, "--at")
        answer = api.extrapolate(measured, at=at_counts, global_batch=global_batch, force=force, knee=knee)
        names = [curve.label for curve in answer.curves]
    elif global_batch is not None or force:
        raise InputError("--global-batch and --force belong to --measured", hint="--batch: samples per device and step")
    else:
        names = [name.strip() for name in framework.split(",") if name.strip()]
        answer = api.predict(
            **asked_of(**asked), devices=counts_of(at or devices, "--devices"), framework=names,
            calibration=calibration, changes=parse_changes(changes), knee=knee,
        )  # fmt: skip
    curves = answer.curves
    if plot is not None:
        write_curves(plot, curves, names)
    if as_json:
        emit(predictions_document(curves, compared=measured is None), "predict")
    else:
        show_curves(curves, names, compared=measured is None)


def _only_measured(asked: dict[str, Any]) -> None:
    """Refuse options that a points file replaces."""
    given = [f"--{name}" for name in ("network", "profile", "cluster", "batch") if asked[name] is not None]
    if given:
        hint = "the file says what was run; give --at alone"
        raise InputError(f"--measured together with {', '.join(given)}", hint=hint)
