"""`paceline run`: measure every case of a study."""

from __future__ import annotations

import contextlib
from pathlib import Path

import click

from paceline.bench.adapters import adapter_of
from paceline.bench.campaign import Campaign, run_campaign
from paceline.bench.doctor import diagnose
from paceline.bench.environments import find_environment, prepare
from paceline.bench.job import Launcher
from paceline.bench.launchers.table import make_launcher
from paceline.bench.machine import describe_machine
from paceline.bench.opening import open_campaign
from paceline.catalog import shipped_catalog
from paceline.cli.options import Wish, json_option, place_options, store_option
from paceline.measurements.store import Store
from paceline.report.documents import results_document
from paceline.report.terminal import emit, print_rows
from paceline.report.terminal.campaign import show_results
from paceline.report.terminal.progress import Display
from paceline.spec.cluster import place
from paceline.spec.load import load_cases
from paceline.spec.study import Case

__all__ = ["command", "prepare_all"]


@click.command()
@click.argument("study_file", metavar="STUDY", type=click.Path(path_type=Path))
@click.option("--resume", is_flag=True, help="Go on with the newest campaign that asked for the same.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured, and stop.")
@place_options
@store_option
@json_option
def command(study_file: Path, resume: bool, dry_run: bool, wish: Wish, store: Path, as_json: bool) -> None:
    """Measure every case of STUDY, a TOML file, and store what happened.

    Cases are launched in turn and in random order, each at least `protocol.launches` times, until the interval of its
    throughput is narrow enough. A launch that fails is stored with its reason, and the study goes on. Interrupt at any
    time: what is finished is kept, and --resume goes on from there.

    \b
    Examples:
      paceline run examples/studies/demo.toml
      paceline run examples/studies/demo.toml --dry-run
      paceline run my.toml --resume --store /shared/results
      paceline run examples/studies/virtual-demo.toml --on virtual
      paceline run my.toml --on ssh --hosts a,b
    """
    study, cases = load_cases(study_file, shipped_catalog())
    if dry_run:
        _say_plan(study.name, cases, as_json)
        return
    stored = Store(store)
    stored.clean()
    with (
        contextlib.closing(make_launcher(wish)) as launcher,
        Display(quiet=as_json) as display,
        open_campaign(study, cases, stored, resume=resume, launcher=launcher.name) as name,
    ):
        ranks = max(_ranks_here(case, launcher) for case in cases)
        checks = diagnose(store, ranks=ranks, threads=study.protocol.threads)
        display.checks(checks)
        prepare_all(cases, display)
        campaign = Campaign(name, study, cases, launcher, describe_machine(checks))
        with display.interruptible(f"paceline run {study_file} --resume{wish.words}"):
            display.follow(run_campaign(campaign, stored), study.protocol, cases)
    if as_json:
        emit(results_document(stored, name), "run")
    else:
        show_results(stored, name)


def _ranks_here(case: Case, launcher: Launcher) -> int:
    """Ranks that compute on this machine at the same time; emulated devices only wait."""
    placed = place(case.cluster, case.ranks, spread=case.placement == "spread")
    computing = sum(item.device.emulation is None for item in placed)
    return max(1, computing) if launcher.one_machine else 1


def prepare_all(cases: tuple[Case, ...], display: Display) -> None:
    """Make the environments that these cases need and that are not there yet."""
    names = {adapter_of(case.framework).environment(case.framework.split("/")[1]) for case in cases}
    for name in sorted(names):
        if find_environment(name) is None:
            with display.making(name) as progress:
                prepare(name, progress)


def _say_plan(name: str, cases: tuple[Case, ...], as_json: bool) -> None:
    if as_json:
        rows = [{"id": case.id, "label": case.label, **case.canonical} for case in cases]
        emit({"study": name, "cases": rows}, "run.plan")
    else:
        print_rows(f"{name}: {len(cases)} cases", ["case", "what"], [(case.id, case.label) for case in cases])
