"""`paceline compare`: test whether two groups of launches differ."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline.cli.options import Finite, TwoSides, json_option, plot_option, split_sides, store_option
from paceline.explain.compared import compare_sides, side_of
from paceline.measurements.store import Store
from paceline.measurements.summary import gate_code
from paceline.report.documents import comparison_document
from paceline.report.plots import check_plot, write_launches
from paceline.report.terminal import emit, say
from paceline.report.terminal.campaign import gate_lines, show_launch_comparison

__all__ = ["command"]


@click.command(cls=TwoSides)
@click.argument("names", nargs=-1, required=True, metavar="SAMPLE... [--] BASE...")
@click.option("--confidence", type=Finite(0.5, 0.999), default=0.95, show_default=True, help="Of the interval.")
@click.option(
    "--fail-below",
    "least",
    type=Finite(0, 10, min_open=True),
    metavar="RATIO",
    help="For CI: exit code 1 if the ratio is shown to be below this, 2 if that cannot be decided.",
)
@store_option
@plot_option
@json_option
def command(
    names: tuple[str, ...], confidence: float, least: float | None, store: Path, plot: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Compare the throughput of SAMPLE with that of BASE: ratio of medians, its t interval, a t test.

    Each side selects launches by conditions `field=value`, separated by commas: study, campaign, network,
    framework, strategy, cluster, launcher, ranks, batch, input, case_id; or the name of a study; or is a log or a trace
    (a folder: the traces of one job), imported for this comparison only. Several names of a side: A1 A2 -- B1 B2.
    Launches of the same rounds of a campaign are compared in pairs.

    With fewer than three launches of a side, the steps decide, at least 20 of each launch; they depend on each other,
    and how much launches differ remains unknown. Verdicts include "no difference shown" and "too few launches".

    With --fail-below the whole interval decides. Below the ratio: the loss is shown, exit code 1. Above the ratio: no
    loss, exit code 0. Otherwise more launches are needed, exit code 2.

    \b
    Examples:
      paceline compare study=demo,ranks=2 study=demo,ranks=1
      paceline compare framework=jax/data_parallel,network=resnet20 framework=pytorch,network=resnet20
      paceline compare study=demo,ranks=2 study=demo,ranks=1 --plot compare.svg
      paceline compare this-branch main --fail-below 0.97
      paceline compare new1.log new2.log new3.log -- old1.log old2.log old3.log --fail-below 0.97
    """
    check_plot(plot)
    sample, base = (side_of(side, Store(store)) for side in split_sides(names))
    result, notes = compare_sides(sample, base, confidence)
    titles, usages = (sample.name, base.name), [sample.usage, base.usage]
    if plot is not None:
        write_launches(plot, (sample.launches.samples_per_s, base.launches.samples_per_s), titles, result)
    code = None if least is None else gate_code(result, least)
    if as_json:
        document = comparison_document(result, *titles, usages)
        emit({**document, "notes": notes, "fail_below": least, "exit_code": code or 0}, "compare")
    else:
        show_launch_comparison(result, titles, confidence, usages)
        say(*(f"  Note: {note}" for note in notes), *gate_lines(result, code, least))
    if code:
        sys.exit(code)
