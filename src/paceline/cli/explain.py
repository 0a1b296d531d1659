"""`paceline explain`: phases of the step, causes of differences, and the change with the largest gain."""

from __future__ import annotations

from pathlib import Path

import click

from paceline import api
from paceline.bench.adapters import adapter_of
from paceline.bench.measure import measure
from paceline.bench.sites.target import LaunchTarget
from paceline.cli.options import json_option, plot_option, store_option, study_argument
from paceline.explain.confirm import plan_trials, with_measured
from paceline.explain.explanation import Explanation
from paceline.measurements.results import load_launches
from paceline.measurements.store import Store
from paceline.report.documents import explanation_document
from paceline.report.plots import check_plot, write_explanation
from paceline.report.terminal import emit, say
from paceline.report.terminal.campaign import explanation_lines
from paceline.report.terminal.progress import Display

__all__ = ["command"]


@click.command()
@study_argument
@click.option(
    "--confirm", is_flag=True, help="Measure the advised changes that can be tested on this machine, and show the gain."
)
@click.option("--most", default=3, show_default=True, help="Maximum number of findings to confirm.")
@store_option
@plot_option
@json_option
def command(study: str | None, confirm: bool, most: int, store: Path, plot: Path | None, as_json: bool) -> None:
    """Explain the newest campaign of STUDY (default: of all studies).

    Every finding comes with its evidence, the share of the time per sample that it would save, and the exact change.
    With --confirm, one setting at a time is changed and measured, interleaved with the unchanged case.

    \b
    Examples:
      paceline explain demo
      paceline explain demo --confirm
      paceline explain demo --json
      paceline explain demo --plot why.png
    """
    check_plot(plot)
    explanation = api.explain(study, store=store).explanation
    if confirm:
        explanation = _confirmed(explanation, Store(store), most, quiet=as_json)
    if plot is not None:
        write_explanation(plot, explanation)
    if as_json:
        emit(explanation_document(explanation), "explain")
    else:
        say(*explanation_lines(explanation))


def _confirmed(explanation: Explanation, store: Store, most: int, *, quiet: bool) -> Explanation:
    """The explanation with the measured gains of its trials, each in a separate campaign."""
    trials = plan_trials(explanation, most, lambda case: adapter_of(case.framework).refusal(case))
    target, rates = LaunchTarget(on=explanation.launcher), {}
    for trial in trials.confirmations:
        study = trial.study(explanation.study)
        with (
            Display(quiet=quiet) as display,
            measure(study, trial.cases, store, target=target, installing=display.installing) as measurement,
        ):
            display.follow(measurement.events, study.protocol, trial.cases)
        launches = {item.first.case_id: item.by_round for item in load_launches(store, measurement.campaign)}
        rates[trial.key] = (launches.get(trial.before.id, {}), launches.get(trial.after.id, {}))
    return with_measured(explanation, trials, rates)
