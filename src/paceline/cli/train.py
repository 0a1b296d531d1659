"""`paceline train`: run a training script on all devices of a cluster."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import click

from paceline.bench.environments import environment_python, prepare, worker_path
from paceline.bench.launchers.local import LocalLauncher, free_ports
from paceline.catalog import known
from paceline.cli.output import emit, json_option, say
from paceline.errors import InputError, LaunchFailed
from paceline.model.plan.file import PlanFile, read_plan
from paceline.runtime.launch import Ended, Grouping, TrainingJob, processes_of, watch
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
@json_option
def command(
    script: Path,
    arguments: tuple[str, ...],
    name: str,
    ranks: int | None,
    plan_file: Path | None,
    restarts: int,
    threads: int,
    as_json: bool,
) -> None:
    """Run SCRIPT on every device of a cluster; `paceline.runtime.join` in it makes them one group.

    The ranks authenticate with a secret made for this job. A rank that dies is left behind, and the others go on; with
    --restarts it comes back and takes part again. ARGUMENTS after the script go to the script.

    \b
    Examples:
      paceline train examples/training/train_digits.py --ranks 2
      paceline train train.py --cluster my-cluster.toml --restarts 3 -- --epochs 5
    """
    cluster = known().cluster(name)
    plan = read_plan(plan_file) if plan_file else None
    chosen = _chosen(plan) if plan else tuple(range(ranks or (cluster.num_devices if name != "local" else 1)))
    if max(chosen) >= cluster.num_devices:
        raise InputError(
            f"rank {max(chosen)} is asked for, cluster {cluster.name!r} has {cluster.num_devices} devices",
            hint="lower --ranks, or name the cluster that the plan was made for",
        )
    placed = place(cluster, max(chosen) + 1)
    with tempfile.TemporaryDirectory(prefix="paceline-train-") as folder:
        own = importlib.util.find_spec("torch") is not None
        job = TrainingJob(
            script=script,
            arguments=arguments,
            python=Path(sys.executable) if own else environment_python(prepare("pytorch", say)),
            folder=Path(folder),
            placement=tuple(placed[old].model_copy(update={"rank": new}) for new, old in enumerate(chosen)),
            meet=("127.0.0.1", free_ports(1)[0]),
            threads=threads,
            path=None if own else worker_path(),
            grouping=_grouping(plan) if plan is not None and len(plan.group) > 1 else None,
        )
        ended = _follow(job, restarts, quiet=as_json)
    if as_json:
        emit({"ok": ended.ok, "codes": ended.codes, "restarts": ended.restarts}, "train")
    if not ended.ok:
        raise LaunchFailed(f"the training did not come to its end: exit codes {ended.codes}")


def _chosen(plan: PlanFile) -> tuple[int, ...]:
    """The devices that the plan uses; those it leaves out are not started."""
    return tuple(sorted(member.rank for group in plan.group for member in group.members))


def _grouping(plan: PlanFile) -> Grouping:
    count, order = len(plan.group), _chosen(plan)
    ports = free_ports(2 * count)
    return Grouping(
        groups=tuple(tuple(order.index(member.rank) for member in group.members) for group in plan.group),
        samples=tuple(sum(member.samples for member in group.members) for group in plan.group),
        local_steps=plan.local_steps,
        quorum=plan.quorum,
        meets=ports[:count],
        shards=ports[count:],
    )


def _follow(job: TrainingJob, restarts: int, *, quiet: bool) -> Ended:
    for told in watch(LocalLauncher(), processes_of(job), restarts=restarts):
        if isinstance(told, Ended):
            return told
        if not quiet:
            say(told)
    raise AssertionError("a watched job always ends")
