"""`paceline calibrate`: fit the model to stored runs and collective sweeps."""

from __future__ import annotations

import re
from pathlib import Path

import click

from paceline.cli.output import emit, json_option, say, store_option, table
from paceline.measurements.profile import write_profile
from paceline.measurements.store import Store
from paceline.model.calibrate import Calibrated, calibrate_store
from paceline.model.calibration import write_calibration
from paceline.model.measured.prior import write_population
from paceline.model.validation.campaigns import published_series
from paceline.model.validation.origins import learnt
from paceline.units import SECONDS, format_share

__all__ = ["command"]


@click.command()
@click.argument("study", required=False)
@click.option("--output", type=click.Path(path_type=Path), default=Path("calibration.json"), show_default=True)
@click.option("--profiles", type=click.Path(path_type=Path, file_okay=False), help="Folder for one-rank profiles.")
@click.option("--population", is_flag=True, help="Learn the shipped prior of `predict --measured` anew instead.")
@store_option
@json_option
def command(
    study: str | None, output: Path, profiles: Path | None, population: bool, store: Path, as_json: bool
) -> None:
    """Fit collectives to stored sweeps, and the costs of being distributed to the runs of STUDY (else the newest).

    \b
    Examples:
      paceline bench-collectives --ranks 2 && paceline run study.toml && paceline calibrate
      paceline predict --profile profiles/resnet20.profile --cluster local --devices 2 --calibration calibration.json
    """
    if population:
        write_population(learnt(published_series()))
        say("wrote the prior of published campaigns")
        return
    found = calibrate_store(Store(store), study)
    write_calibration(found.calibration, output)
    if profiles is not None:
        profiles.mkdir(parents=True, exist_ok=True)
        for label, profile in found.profiles.items():
            write_profile(profile, profiles / (re.sub(r"[^A-Za-z0-9.-]+", "-", label) + ".profile"))
    if as_json:
        emit(_document(found, output), "calibrate")
    else:
        _show(found, output)


def _document(found: Calibrated, output: Path) -> dict[str, object]:
    fits = [vars(fit) for fit in found.calibration.collectives]
    return {
        "output": str(output),
        "source": found.calibration.source,
        "collectives": fits,
        "fixed_per_gradient_s": found.calibration.fixed_per_gradient.value,
        "slowdown": found.calibration.slowdown.value,
        "crowding": found.calibration.crowding,
        "overlap_rate": found.calibration.overlap_rate,
        "copy_per_byte": found.calibration.copy_per_byte,
        "profiles": sorted(found.profiles),
        "fitted": [vars(one) for one in found.fitted],
    }


def _show(found: Calibrated, output: Path) -> None:
    columns = ["collective", ">ranks", "form", ">start-up", ">GB/s", ">spread"]
    rows = [
        (fit.operation, fit.ranks, fit.form, SECONDS.format(fit.startup),
         f"{1e-9 / fit.per_byte:.2f}" if fit.per_byte else "", format_share(fit.spread))
        for fit in found.calibration.collectives
    ]  # fmt: skip
    table("collectives", columns, rows)
    judged = [
        (one.label, one.ranks, SECONDS.format(one.measured_s), SECONDS.format(one.predicted_s),
         format_share(one.predicted_s / one.measured_s - 1))
        for one in found.fitted
    ]  # fmt: skip
    if judged:
        table("\nruns that were fitted", ["case", ">ranks", ">measured", ">fitted", ">off"], judged)
    else:
        say("\nno run on several ranks beside its profile: nothing was fitted to them")
    known = found.calibration
    fixed, slow, crowd = known.fixed_per_gradient.value, known.slowdown.value, known.crowding
    say(f"\nfixed {SECONDS.format(fixed)} per gradient, slowdown {format_share(slow)} of hidden communication")
    say(f"crowding {format_share(crowd)} for each further rank of a host")
    if known.overlap_rate < 1:
        say(f"beside compute an exchange runs at {format_share(known.overlap_rate)} of its speed")
    if known.copy_per_byte is not None:
        say(f"copies in memory {1e-9 / known.copy_per_byte:.1f} GB/s")
    say(f"wrote {output}")
