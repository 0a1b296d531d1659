"""`paceline calibrate`: fit the model to stored runs and collective sweeps."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.cli.options import FILE, json_option, store_option, study_argument
from paceline.measurements.profile import write_profile
from paceline.measurements.store import Store
from paceline.model.calibrate import calibrate_store
from paceline.model.calibration import write_calibration
from paceline.model.links import calibrate_tests, refuse_failed
from paceline.model.measured.prior import write_population
from paceline.model.validation.campaigns import published_series
from paceline.model.validation.origins import learnt
from paceline.report.documents import calibrated_document
from paceline.report.terminal import emit, say
from paceline.report.terminal.imports import link_document, show_links
from paceline.report.terminal.records import show_calibrated
from paceline.report.words import file_name

__all__ = ["command"]


@click.command()
@study_argument
@click.option("--output", type=FILE, default="calibration.json", show_default=True, help="The calibration's file.")
@click.option("--profiles", type=click.Path(path_type=Path, file_okay=False), help="Folder for one-rank profiles.")
@click.option("--population", is_flag=True, help="Learn the prior of `predict --measured` from the catalog instead.")
@click.option(
    "--nccl-tests", "tests", multiple=True, type=click.Path(path_type=Path),
    help="Fit to this output of nccl-tests instead, text or JSON; may be repeated.",
)  # fmt: skip
@click.option("--link", help="Compare --nccl-tests with this link or cluster of the catalog: PASS or FAIL.")
@store_option
@json_option
def command(
    study: str | None, output: Path, profiles: Path | None, population: bool, tests: tuple[Path, ...], link: str | None,
    store: Path, as_json: bool,
) -> None:  # fmt: skip
    """Fit collectives to stored sweeps, and distributed-training costs to the runs of STUDY (default: the newest).

    With --nccl-tests and --link, the exit code is 1 if a link fails.

    \b
    Examples:
      paceline bench-collectives --ranks 2 && paceline run study.toml && paceline calibrate
      paceline predict --profile profiles/resnet20.profile --cluster local --devices 2 --calibration calibration.json
      paceline calibrate --nccl-tests all_reduce.txt --link nvlink4
    """
    if population:
        write_population(learnt(published_series()))
        done = "wrote the prior of published campaigns"
        emit({"written": done}, "calibrate") if as_json else say(done)
        return
    if tests:
        _from_tests(tests, link, output, as_json)
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


def _from_tests(paths: tuple[Path, ...], link: str | None, output: Path, as_json: bool) -> None:
    calibration, verdicts = calibrate_tests(paths, link)
    write_calibration(calibration, output)
    emit(link_document(verdicts, output), "calibrate") if as_json else show_links(verdicts, output)
    refuse_failed(verdicts)
