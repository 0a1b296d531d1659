"""`paceline run`: measure every case of a study."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.bench.measure import estimate_duration, measure
from paceline.bench.sites.target import LaunchTarget
from paceline.catalog import shipped_catalog
from paceline.cli.options import json_option, place_options, store_option
from paceline.measurements.store import Store
from paceline.report.documents import cases_document, results_document
from paceline.report.terminal import emit
from paceline.report.terminal.campaign import show_cases, show_results
from paceline.report.terminal.progress import Display
from paceline.spec.load import load_cases

__all__ = ["command"]


@click.command()
@click.argument("study_file", metavar="STUDY", type=click.Path(path_type=Path))
@click.option("--resume", is_flag=True, help="Continue the newest campaign of the same study.")
@click.option("--dry-run", is_flag=True, help="Print the cases and how long they would take, without measuring.")
@place_options
@store_option
@json_option
def command(study_file: Path, resume: bool, dry_run: bool, target: LaunchTarget, store: Path, as_json: bool) -> None:
    """Measure every case of STUDY, a TOML file, and store the runs.

    Cases are launched in turn and in random order, each at least `protocol.launches` times, until the interval of its
    throughput is narrow enough. A failed launch is stored with its reason, and the study continues. You can interrupt
    at any time: finished launches are kept, and --resume continues.

    \b
    Examples:
      paceline run examples/studies/demo.toml
      paceline run examples/studies/demo.toml --dry-run
      paceline run my.toml --resume --store /shared/results
      paceline run examples/studies/virtual-demo.toml --on virtual
      paceline run my.toml --on ssh --hosts a,b
    """
    study, cases = load_cases(study_file, shipped_catalog())
    stored = Store(store)
    if dry_run:
        duration = estimate_duration(study, cases, stored)
        if as_json:
            emit({**cases_document(study.name, cases), "estimate": vars(duration)}, "run.plan")
        else:
            show_cases(study.name, cases, duration)
        return
    stored.clean()
    with (
        Display(quiet=as_json) as display,
        measure(study, cases, stored, target=target, resume=resume, installing=display.installing) as measurement,
    ):
        display.checks(measurement.checks)
        with display.interruptible(f"paceline run {study_file} --resume{target.arguments}"):
            display.follow(measurement.events, study.protocol, cases)
    if as_json:
        emit(results_document(stored, measurement.campaign), "run")
    else:
        show_results(stored, measurement.campaign)
