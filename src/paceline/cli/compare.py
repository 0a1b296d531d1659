"""`paceline compare`: test whether two groups of launches differ."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline.cli.options import Finite, json_option, plot_option, store_option
from paceline.errors import InputError
from paceline.measurements.results import usage_of_group
from paceline.measurements.store import Store
from paceline.measurements.summary import compare, gate_code
from paceline.measurements.tables import throughputs_where
from paceline.report.documents import comparison_document
from paceline.report.plots import check_plot, write_launches
from paceline.report.terminal import emit, say
from paceline.report.terminal.campaign import gate_lines, show_launch_comparison

__all__ = ["command"]


@click.command()
@click.argument("sample")
@click.argument("base")
@click.option("--confidence", type=Finite(0.5, 0.999), default=0.95, show_default=True)
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
    sample: str, base: str, confidence: float, least: float | None, store: Path, plot: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Compare the throughput of SAMPLE with that of BASE: ratio of medians, its t interval, a t test.

    Each side selects launches by conditions `field=value`, separated by commas: study, campaign, network,
    framework, strategy, cluster, launcher, ranks, batch, input, case_id; or the name of a study. Launches of the same
    rounds of a campaign are compared in pairs. Verdicts include "no difference shown" and "too few launches".

    With --fail-below the whole interval decides. Below the ratio: the loss is shown, exit code 1. Above the ratio: no
    loss, exit code 0. Otherwise more launches are needed, exit code 2.

    \b
    Examples:
      paceline compare study=demo,ranks=2 study=demo,ranks=1
      paceline compare framework=jax/data_parallel,network=resnet20 framework=pytorch,network=resnet20
      paceline compare study=demo,ranks=2 study=demo,ranks=1 --plot compare.svg
      paceline compare this-branch main --fail-below 0.97
    """
    check_plot(plot)
    groups = [throughputs_where(Store(store), text) for text in (sample, base)]
    for text, group in zip((sample, base), groups, strict=True):
        if not group.samples_per_s:
            hint = "`paceline show --list` lists what is stored"
            raise InputError(f"no successful launch matches {text!r}", hint=hint)
    (ours, our_rounds), (theirs, their_rounds) = ((group.samples_per_s, group.rounds) for group in groups)
    result = compare(ours, theirs, confidence=confidence, rounds=(our_rounds, their_rounds))
    usages = [usage_of_group(group) for group in groups]
    if plot is not None:
        write_launches(plot, (ours, theirs), (sample, base), result)
    code = None if least is None else gate_code(result, least)
    if as_json:
        document = comparison_document(result, sample, base, usages)
        emit({**document, "fail_below": least, "exit_code": code or 0}, "compare")
    else:
        show_launch_comparison(result, (sample, base), confidence, usages)
        say(*gate_lines(code, least))
    if code:
        sys.exit(code)
