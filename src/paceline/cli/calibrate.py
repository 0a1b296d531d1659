"""`paceline calibrate`: fit the model to stored runs and collective sweeps."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.options import json_option, store_option, study_argument
from paceline.measurements.profile import write_profile
from paceline.measurements.store import Store
from paceline.model.calibrate import calibrate_store
from paceline.model.calibration import write_calibration
from paceline.model.measured.prior import write_population
from paceline.model.validation.campaigns import published_series
from paceline.model.validation.origins import learnt
from paceline.report.documents import calibrated_document
from paceline.report.terminal import emit, say
from paceline.report.terminal.records import show_calibrated
from paceline.report.words import file_name

__all__ = ["command"]


@click.command()
@study_argument
@click.option("--output", type=click.Path(path_type=Path), default=Path("calibration.json"), show_default=True)
@click.option("--profiles", type=click.Path(path_type=Path, file_okay=False), help="Folder for one-rank profiles.")
@click.option("--population", is_flag=True, help="Learn the prior of `predict --measured` from the catalog instead.")
@store_option
@json_option
def command(
    study: str | None, output: Path, profiles: Path | None, population: bool, store: Path, as_json: bool
) -> None:
    """Fit collectives to stored sweeps, and distributed-training costs to the runs of STUDY (default: the newest).

    \b
    Examples:
      paceline bench-collectives --ranks 2 && paceline run study.toml && paceline calibrate
      paceline predict --profile profiles/resnet20.profile --cluster local --devices 2 --calibration calibration.json
    """
    if population:
        write_population(learnt(published_series()))
        say("wrote the prior of published campaigns")
        return
    result = calibrate_store(Store(store), study)
    write_calibration(result.calibration, output)
    if profiles is not None:
        profiles.mkdir(parents=True, exist_ok=True)
        for label, profile in result.profiles.items():
            write_profile(profile, profiles / f"{file_name(label)}.profile")
    if as_json:
        emit(calibrated_document(result, output), "calibrate")
    else:
        show_calibrated(result)
        say(f"wrote {output}")
