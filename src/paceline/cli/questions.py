"""The options of `predict`, `whatif` and `simulate`, as arguments of the front door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from paceline.cli import completion
from paceline.cli.options import COUNT, Finite, options
from paceline.errors import InputError
from paceline.model.calibration import CATALOG_ONLY, Calibration, read_calibration
from paceline.spec.strategy import PRECISIONS
from paceline.units import SECONDS

__all__ = [
    "asked_of",
    "calibration_of",
    "change_option",
    "knee_option",
    "precision_option",
    "question_options",
    "seconds_of",
]

knee_option = click.option(
    "--knee",
    default=0.5,
    show_default=True,
    type=Finite(0, 1, min_open=True),
    help="Gain of a doubling that defines the knee.",
)
precision_option = click.option(
    "--precision", metavar="|".join(PRECISIONS),
    help="Precision of compute; amp: mixed precision. Default: what the framework does on the device.",
)  # fmt: skip
change_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE",
    help="Change link, inside, device, host, strategy, batch or framework; may be repeated.",
)  # fmt: skip
question_options = options(
    click.option("--network", shell_complete=completion.networks,
                 help="A network of the catalog (`paceline networks`)."),
    click.option("--profile", type=click.Path(path_type=Path), help="A profile of one step on one device."),
    click.option("--cluster", shell_complete=completion.clusters,
                 help="A cluster of the catalog, or a .toml file that describes one."),
    click.option("--framework", default="pytorch", show_default=True, shell_complete=completion.frameworks,
                 help="Framework, or framework/mode."),
    click.option("--batch", type=COUNT, help="Samples per device and step; default: the batch of the profile."),
    precision_option,
    click.option("--devices", default="1,2,4,8", show_default=True, help="Numbers of devices, separated by commas."),
    click.option("--input", "source", type=click.Choice(["resident", "copied", "files"]), default="resident",
                 show_default=True, help="Where batches come from."),
    change_option,
    click.option("--calibration", type=click.Path(path_type=Path), help="Calibration file of `paceline calibrate`."),
)  # fmt: skip


def asked_of(*, network: str | None, profile: Path | None, cluster: str | None, batch: int | None,
             source: str, precision: str | None) -> dict[str, Any]:  # fmt: skip
    """The options as arguments of `paceline.predict`; one error if what a question needs is missing."""
    if cluster is None:
        raise InputError("no cluster given", hint="--cluster NAME; `paceline catalog clusters` lists them")
    if (network is None) == (profile is None):
        raise InputError("give one of --network, --profile or --measured")
    if network is not None and batch is None:
        raise InputError("no batch given", hint="--batch 64: samples per device and step")
    return {"network": network, "profile": profile, "cluster": cluster, "batch": batch, "input": source,
            "precision": precision}  # fmt: skip


def calibration_of(path: Path | None) -> Calibration:
    """The calibration of a file, or the default calibration of the catalog."""
    return read_calibration(path) if path else CATALOG_ONLY


def seconds_of(text: str, option: str) -> float:
    """A duration such as `10 min`."""
    try:
        return SECONDS.parse(text)
    except InputError as error:
        raise InputError(f"{option}: {error.message}", hint=error.hint) from None
