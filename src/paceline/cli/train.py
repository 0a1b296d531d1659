"""`paceline train`: run a training script on all devices of a cluster."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.bench.sites.site import Site
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.catalog import shipped_catalog
from paceline.cli.options import json_option, place_options
from paceline.errors import InputError, LaunchFailed
from paceline.model.plan.file import PlanFile, read_plan
from paceline.report.terminal import emit, say
from paceline.runtime.launch import Ended, Grouping, TrainingJob, num_ports, processes_of, reduced, watch
from paceline.spec.cluster import place

__all__ = ["command"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--cluster", "name", default="local", show_default=True, help="Catalog name, or a file ending in .toml.")
@click.option("--ranks", type=click.IntRange(min=1), help="Processes, one per device; all devices if not given.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="Groups as `paceline plan --output` wrote.")
@click.option("--restarts", type=click.IntRange(min=0), default=0, help="How often killed ranks are started again.")
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Compute threads of each rank."
)
@place_options
@json_option
def command(
    script: Path,
    arguments: tuple[str, ...],
    name: str,
    ranks: int | None,
    plan_file: Path | None,
    restarts: int,
    threads: int,
    target: LaunchTarget,
    as_json: bool,
) -> None:
    """Run SCRIPT on every device of a cluster; `paceline.runtime.join` in it makes them one group.

    With --on the same script runs on other hosts, where it must be at the same path, or on a virtual cluster of this
    machine. The ranks authenticate with a secret made for this job. A rank that dies is left behind, and the others go
    on; with --restarts it comes back and takes part again. ARGUMENTS after the script go to the script.

    \b
    Examples:
      paceline train examples/training/train_digits.py --ranks 2
      paceline train train.py --cluster my-cluster.toml --restarts 3 -- --epochs 5
      paceline train train.py --cluster my-cluster.toml --on virtual
      paceline train train.py --cluster my-cluster.toml --on slurm
    """
    cluster = shipped_catalog().cluster(name)
    plan = read_plan(plan_file) if plan_file else None
    chosen = _chosen(plan) if plan else tuple(range(ranks or (cluster.num_devices if name != "local" else 1)))
    if max(chosen) >= cluster.num_devices:
        raise InputError(
            f"rank {max(chosen)} is asked for, cluster {cluster.name!r} has {cluster.num_devices} devices",
            hint="lower --ranks, or name the cluster that the plan was made for",
        )
    used, grouping = reduced(cluster, chosen), _grouping(plan) if plan is not None and len(plan.group) > 1 else None
    with (
        tempfile.TemporaryDirectory(prefix="paceline-train-") as folder,
        make_launcher(_in_real_time(target)) as launcher,
        launcher.open(used, used.num_devices, num_ports=num_ports(grouping)) as site,
    ):
        own = importlib.util.find_spec("torch") is not None
        job = TrainingJob(
            script=script,
            arguments=arguments,
            python=Path(sys.executable) if own else environment_python(prepare("pytorch", say)),
            folder=Path(folder),
            placement=place(used, used.num_devices),
            rendezvous=site.rendezvous,
            threads=threads,
            path=None if own else worker_path(),
            grouping=grouping,
        )
        ended = _follow(site, job, restarts, quiet=as_json)
    if as_json:
        emit({"ok": ended.ok, "codes": ended.codes, "restarts": ended.restarts}, "train")
    if not ended.ok:
        raise LaunchFailed(f"the training did not come to its end: exit codes {ended.codes}")


def _chosen(plan: PlanFile) -> tuple[int, ...]:
    """The devices that the plan uses; those it leaves out are not started."""
    return tuple(sorted(member.rank for group in plan.group for member in group.members))


def _grouping(plan: PlanFile) -> Grouping:
    order = _chosen(plan)
    return Grouping(
        groups=tuple(tuple(order.index(member.rank) for member in group.members) for group in plan.group),
        samples=tuple(sum(member.samples for member in group.members) for group in plan.group),
        local_steps=plan.local_steps,
        quorum=plan.quorum,
    )


def _in_real_time(target: LaunchTarget) -> LaunchTarget:
    """Training runs in real time unless it is asked for otherwise."""
    return replace(target, dilation=1.0) if target.on == "virtual" and target.dilation is None else target


def _follow(site: Site, job: TrainingJob, restarts: int, *, quiet: bool) -> Ended:
    # Agents on hosts see by this file whether they share this folder.
    (job.folder / "job.json").write_text("{}", encoding="utf-8")
    for told in watch(site, processes_of(job), restarts=restarts):
        if isinstance(told, Ended):
            return told
        if not quiet:
            say(told)
    raise AssertionError("a watched job always ends")
