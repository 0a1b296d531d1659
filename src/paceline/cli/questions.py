"""The options of `predict`, `whatif` and `simulate`, as arguments of `paceline.api`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paceline import api
from paceline.catalog.clusters import default_counts
from paceline.cli.options import (
    COUNT,
    Finite,
    Whole,
    complete_clusters,
    complete_frameworks,
    complete_networks,
    complete_studies,
    complete_words,
    counts_of,
    options,
    store_option,
)
from paceline.errors import InputError
from paceline.model.calibration import CATALOG_ONLY, Calibration, read_calibration
from paceline.model.changes import changed, parse_changes
from paceline.spec.strategy import PRECISIONS
from paceline.units import SECONDS

if TYPE_CHECKING:
    from paceline.model.plan.bucket_size import BucketRecommendation
    from paceline.report.frames import PredictionTable

__all__ = [
    "best_bucket",
    "calibration_of",
    "change_option",
    "extrapolated",
    "job_options",
    "knee_option",
    "points_options",
    "precision_option",
    "question_arguments",
    "question_options",
    "requested_changes",
    "requested_counts",
    "seconds_of",
]

USUAL = "1,2,4,8"
"""Default numbers of devices if no cluster is given."""
knee_option = click.option(
    "--knee",
    default=0.5,
    show_default=True,
    type=Finite(0, 1, min_open=True),
    help="Gain of a doubling that defines the knee.",
)
precision_option = click.option(
    "--precision", metavar="|".join(PRECISIONS), shell_complete=complete_words(PRECISIONS),
    help="Precision of compute; amp: mixed precision. Default: what the framework does on the device.",
)  # fmt: skip
change_option = click.option(
    "--set", "changes", multiple=True, metavar="KEY=VALUE",
    help="Change link, inside, device, host, strategy, batch or framework; may be repeated.",
)  # fmt: skip
job_options = options(
    click.option("--samples", type=COUNT, help="Samples of an epoch: adds time, money and energy."),
    click.option("--tokens", type=Whole(1, 10**18), help="The same as tokens of texts, such as 10B."),
    click.option("--epochs", type=Finite(0, min_open=True), default=1.0, show_default=True, help="Epochs of the run."),
    click.option("--price", metavar="PRICE", help="Price of one device and hour, such as '2.50 EUR/h'; "
                 "default: the catalog's."),
)  # fmt: skip
question_options = options(
    click.option("--network", shell_complete=complete_networks,
                 help="A network of the catalog (`paceline networks`)."),
    click.option("--profile", type=click.Path(path_type=Path), help="A profile of one step on one device."),
    click.option("--from", "run", metavar="RUN", shell_complete=complete_studies,
                 help="Layer times of a stored run: a study, a campaign, or a run of `paceline watch` or `import`."),
    store_option,
    click.option("--cluster", shell_complete=complete_clusters,
                 help="A cluster of the catalog, its devices ('4x rtx-4090 over 25gbe x 8'), or a .toml file."),
    click.option("--framework", default="pytorch", show_default=True, shell_complete=complete_frameworks,
                 help="Framework, or framework/mode."),
    click.option("--batch", type=COUNT, help="Samples per device and step; default: the profile's, else 64 images or "
                 "8,192 tokens, as the output states."),
    precision_option,
    click.option("--devices", help="Numbers of devices, separated by commas.  [default: 1,2,4,8, up to the size of the "
                 "cluster, and all]"),
    click.option("--threads", type=click.IntRange(min=1),
                 help="Compute threads of each rank on a processor; default: an even share of the host's cores."),
    click.option("--input", "source", type=click.Choice(["resident", "copied", "files"]), default="resident",
                 show_default=True, help="Where batches come from."),
    change_option,
    click.option("--calibration", type=click.Path(path_type=Path), help="Calibration file of `paceline calibrate`."),
)  # fmt: skip


def question_arguments(*, network: str | None, profile: Path | None, run: str | None, store: Path, cluster: str | None,
             batch: int | None, source: str, threads: int | None, precision: str | None) -> dict[str, Any]:  # fmt: skip
    """The options as arguments of `paceline.predict`; an error if a required option is missing."""
    if cluster is None:
        raise InputError("no cluster given", hint="--cluster NAME; `paceline catalog clusters` lists them")
    if sum(given is not None for given in (network, profile, run)) != 1:
        raise InputError(
            "give one of --network, --profile, --from or --measured", hint="`paceline networks` lists the networks"
        )
    known = profile if run is None else api.profile_of_run(run, store)
    return {"network": network, "profile": known, "cluster": cluster, "batch": batch, "input": source,
            "threads": threads, "precision": precision}  # fmt: skip


def requested_changes(changes: tuple[str, ...], **options: Any) -> dict[str, str]:
    """The changes of --set; an error if an option and --set contradict each other."""
    parsed = parse_changes(changes)
    for name, given in options.items():
        key = next((key for key in parsed if key.rpartition(".")[2] == name), None)
        if key is not None and given is not None and parsed[key] != str(given):
            raise InputError(f"--{name} {given} and --set {key}={parsed[key]}: expected one of them")
    return parsed


def requested_counts(devices: str | None, cluster: str | None) -> tuple[int, ...]:
    """Numbers of devices: as given, or the default numbers up to the size of the cluster."""
    if devices is None and cluster is not None:
        return default_counts(cluster)
    return counts_of(devices or USUAL, "--devices")


def calibration_of(path: Path | None) -> Calibration:
    """The calibration of a file, or the default calibration of the catalog."""
    return read_calibration(path) if path else CATALOG_ONLY


def seconds_of(text: str, option: str) -> float:
    """A duration such as `10 min`."""
    try:
        return SECONDS.parse(text)
    except InputError as error:
        raise InputError(f"{option}: {error.message}", hint=error.hint) from None


_each_points_option = options(
    click.option("--measured", type=click.Path(path_type=Path), help="A CSV file of measured throughputs."),
    click.option("--fact", "facts", multiple=True, metavar="COLUMN=VALUE",
                 help="With --measured: a column that the file does not have, such as link=25gbe; may be repeated."),
    click.option("--at", help="With --measured: numbers of devices to predict."),
    click.option("--global-batch", type=COUNT, help="Samples per step of all devices, in place of --batch."),
    click.option("--force", is_flag=True, help="With --measured: also predict beyond the supported distance."),
)  # fmt: skip
_POINTS = ("measured", "facts", "at", "global_batch", "force")


def points_options(verb: Callable[..., None]) -> Callable[..., None]:
    """The options about measured points; the verb receives them as `points`."""

    @functools.wraps(verb)
    def wrapped(**given: Any) -> None:
        verb(points={name: given.pop(name) for name in _POINTS}, **given)

    return _each_points_option(wrapped)


def extrapolated(
    asked: dict[str, Any], devices: str | None, knee: float, *, measured: Path | None, facts: tuple[str, ...],
    at: str | None, global_batch: int | None, force: bool,
) -> PredictionTable | None:  # fmt: skip
    """The prediction from a points file; none if there is no file."""
    if measured is None:
        if force or facts:
            raise InputError("--fact and --force belong to --measured", hint="--set changes a cluster")
        return None
    counts = counts_of(at or devices or USUAL, "--at")
    said = _facts_of(asked, facts)
    return api.extrapolate(measured, at=counts, global_batch=global_batch, force=force, knee=knee, facts=said)


def _facts_of(asked: dict[str, Any], facts: tuple[str, ...]) -> dict[str, str]:
    """Facts of the points from the command line; refuses options that points replace."""
    replaced = {"profile": "--profile", "run": "--from", "cluster": "--cluster"}
    given = [option for name, option in replaced.items() if asked[name] is not None]
    if given:
        hint = "the points file states what was run; --fact adds missing columns, such as --fact link=25gbe"
        raise InputError(f"--measured together with {', '.join(given)}", hint=hint)
    names = {"network": "network", "batch": "batch_per_device", "precision": "precision"}
    said = {column: str(asked[name]) for name, column in names.items() if asked[name] is not None}
    return {**said, **parse_changes(facts)}


def best_bucket(
    asked: dict[str, Any], count: int, changes: tuple[str, ...], calibration: Path | None
) -> BucketRecommendation:
    """The best bucket size."""
    from paceline.model.plan.bucket_size import choose_bucket

    framework = asked.pop("framework")
    question = changed(
        api.question_about(**question_arguments(**asked), framework=framework, devices=count), parse_changes(changes)
    )
    return choose_bucket(question, count, calibration=calibration_of(calibration))
