"""`paceline plan`: choose a strategy and a batch split for a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from paceline import api
from paceline.cli.options import COUNT, FILE, complete_clusters, complete_networks, json_option, plot_option
from paceline.cli.questions import change_option, job_options, precision_option, requested_changes
from paceline.errors import InputError
from paceline.model.plan.file import write_plan
from paceline.report.plots import check_plot, write_plan_plot
from paceline.report.terminal import emit
from paceline.report.terminal.predictions import show_plan

__all__ = ["command"]


@click.command()
@click.option("--network", shell_complete=complete_networks, help="Catalog name, or a file ending in .toml.")
@click.option("--profile", type=FILE, help="A profile of one step on one device, in place of --network.")
@click.option("--cluster", required=True, shell_complete=complete_clusters, help="Name, devices, or .toml file.")
@click.option(
    "--global-batch",
    type=COUNT,
    help="Samples per step of all devices; default: the profile's, or the usual ones of the network, on each.",
)
@precision_option
@job_options
@change_option
@click.option("--framework", default="paceline", show_default=True, help="Framework, or framework/mode, of a group.")
@click.option("--calibration", type=FILE, help="Calibration file of `paceline calibrate`.")
@click.option("--measured", type=FILE, help="A CSV file of throughputs of this network on this cluster.")
@click.option("--output", type=FILE, help="Write the best plan to this file, as TOML.")
@plot_option
@json_option
def command(
    network: str | None, profile: Path | None, cluster: str, global_batch: int | None, framework: str,
    calibration: Path | None, measured: Path | None, precision: str | None, changes: tuple[str, ...],
    samples: int | None, tokens: int | None, epochs: float, price: str | None, output: Path | None,
    plot: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Choose strategy and batch split for a cluster of unequal devices, with the reason.

    Candidates are one balanced synchronous group of all or some hosts, and several groups, divided at slow links, that
    exchange every H steps. Throughput is predicted as by `paceline predict`, from the catalog, a profile, a calibration
    or measured points. Candidates are ranked by throughput times statistical efficiency, which staleness and local
    steps reduce.

    \b
    Examples:
      paceline plan --network resnet50 --cluster mixed-lab --global-batch 512
      paceline plan --network resnet50 --cluster '4x rtx-4090 over 25gbe x 2'
      paceline plan --profile my.profile --calibration c.json --cluster mine.toml
      paceline plan --network gpt2 --cluster my-cluster.toml --global-batch 256 --output plan.toml
    """
    if (network is None) == (profile is None):
        raise InputError("give either --network or --profile", hint="--network resnet50, or --profile FILE")
    check_plot(plot)
    plan = api.plan(
        network, cluster=cluster, global_batch=global_batch, framework=framework, profile=profile,
        calibration=calibration, measured=measured, precision=precision, samples=samples, tokens=tokens, epochs=epochs,
        price=price, changes=requested_changes(changes, precision=precision),
    ).plan  # fmt: skip
    if output is not None:
        write_plan(plan, output)
    if plot is not None:
        write_plan_plot(plot, plan)
    if as_json:
        emit(plan.as_dict(), "plan")
    else:
        show_plan(plan)
