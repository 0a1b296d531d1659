"""`paceline doctor`: check this machine, or the links between hosts, before measuring."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paceline import catalog
from paceline.bench.environments import cache_folders
from paceline.bench.machine import describe_machine, diagnose
from paceline.bench.sites.fabric import probe_target
from paceline.bench.sites.target import LaunchTarget
from paceline.cli.options import Finite, json_option, place_options, store_option
from paceline.errors import InputError
from paceline.model.links import LEAST_SHARE, judge_fabric
from paceline.report.documents import checks_document
from paceline.report.terminal import emit, say
from paceline.report.terminal.imports import fabric_document, show_fabric
from paceline.report.terminal.records import show_caches, show_checks

__all__ = ["command"]


@click.command()
@click.option(
    "--ranks", type=click.IntRange(min=1), default=2, show_default=True, help="Number of ranks to run on this machine."
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="Threads of each rank; default: an even share of the cores."
)
@place_options
@click.option("--cluster", "where", help="Test the links of this cluster: a file, or a name of the catalog.")
@click.option("--link", help="Link of the catalog that connects the hosts, such as 10gbe.")
@click.option("--least", type=Finite(0.01, 1.0), default=LEAST_SHARE, show_default=True,
              help="Share of a link's bandwidth below which it fails.")  # fmt: skip
@click.option("--nccl-tests", "program", help="all_reduce_perf, built with MPI=1; on GPUs the one in the PATH.")
@store_option
@json_option
def command(
    ranks: int, threads: int | None, target: LaunchTarget, where: str | None, link: str | None, least: float,
    program: str | None, store: Path, as_json: bool,
) -> None:  # fmt: skip
    """Check for conditions that disturb a measurement: observed, expected, and how to fix them.

    `paceline run` performs the same checks first and stores their results with every run. With --on, the command tests
    the links between the hosts instead, and names slow hosts. Exit code 1 if a check fails.

    \b
    Examples:
      paceline doctor
      paceline doctor --ranks 8 --threads 1
      paceline doctor --on slurm --link 100gbe
      paceline doctor --on ssh --hosts a,b,c --link 10gbe
    """
    if target.on != "local":
        sys.exit(_test_hosts(target, where, link, program, least, as_json=as_json))
    if where or link or program:
        raise InputError("this machine has no link to itself", hint="--on slurm, ssh, mpi or virtual")
    checks, folders = diagnose(store, ranks=ranks, threads=threads), cache_folders()
    if as_json:
        emit(checks_document(describe_machine(), checks, folders), "doctor")
    else:
        show_checks(checks)
        say("")
        show_caches(folders)
    sys.exit(any(check.status == "bad" for check in checks))


def _test_hosts(
    target: LaunchTarget, where: str | None, link: str | None, program: str | None, least: float, *, as_json: bool
) -> int:
    """Test the links between hosts; the exit code."""
    if link is not None:
        catalog.link(link)  # an unknown name is an error before any host is contacted
    probed = probe_target(target, where, link, program)
    verdict = judge_fabric(probed.test, probed.rates, probed.cluster if probed.known else None, least)
    emit(fabric_document(verdict), "doctor") if as_json else show_fabric(verdict, slurm="slurm" in target.on)
    return 0 if verdict.status == "PASS" else 1
