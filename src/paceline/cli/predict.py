"""`paceline predict`: how fast will it be, and how sure is that?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli.curves import show_curve
from paceline.cli.output import emit, json_option
from paceline.cli.questions import calibration_of, counts_of, knee_option, question_of, question_options
from paceline.model.changes import changed, parse_changes
from paceline.model.measured.extrapolate import extrapolate
from paceline.model.measured.points import read_points
from paceline.model.measured.population import shipped_population
from paceline.model.prediction import Curve
from paceline.model.scaling import predict_curve

__all__ = ["command"]


@click.command()
@question_options
@knee_option
@click.option("--measured", type=click.Path(path_type=Path), help="A CSV file of measured throughputs.")
@click.option("--at", help="With --measured: numbers of devices to predict.")
@json_option
def command(
    devices: str, changes: tuple[str, ...], calibration: Path | None, knee: float, measured: Path | None,
    at: str | None, as_json: bool, **asked: Any,
) -> None:  # fmt: skip
    """Predict step time and throughput with intervals, from a catalog network, a profile, or measured points.

    A points file has the columns network, framework or strategy, device, link, devices_per_host, devices,
    batch_per_device, samples_per_s, and spread if it is known. Names are what people write.

    \b
    Examples:
      paceline predict --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --devices 1,8,32
      paceline predict --network resnet50 --cluster v100-10gbe-8x4 --batch 64 --framework cntk
      paceline predict --profile my-run.profile --cluster my-cluster.toml --devices 8,64
      paceline predict --measured points.csv --at 32,64 --json
    """
    if measured is not None:
        counts = counts_of(at or devices, "--at")
        curves = extrapolate(read_points(measured), counts, population=shipped_population(), knee_gain=knee)
    else:
        question = changed(question_of(**asked), parse_changes(changes))
        counts = counts_of(at or devices, "--devices")
        curves = (predict_curve(question, counts, calibration=calibration_of(calibration), knee_gain=knee),)
    if as_json:
        emit(_document(curves), "predict")
        return
    for curve in curves:
        show_curve(curve)


def _document(curves: tuple[Curve, ...]) -> dict[str, Any]:
    """All predictions in one list, each with its series, and what each curve shows."""
    plain = [curve.as_dict() for curve in curves]
    predictions = [{"series": curve["label"], **one} for curve in plain for one in curve.pop("predictions")]
    return {"predictions": predictions, "curves": plain}
