"""`paceline train`: run a training script on all devices of a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.bench.sites.target import LaunchTarget
from paceline.catalog import shipped_catalog
from paceline.cli.options import complete_clusters, json_option, place_options
from paceline.errors import LaunchFailed
from paceline.model.plan.file import read_plan
from paceline.report.terminal import emit, say
from paceline.report.terminal.predictions import show_reached
from paceline.runtime.launch import TrainingRequest, run_training

__all__ = ["command"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--cluster", "name", default="local", show_default=True, shell_complete=complete_clusters,
              help="Catalog name, or a file ending in .toml.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=1), help="Number of processes, one per device; default: all devices.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), help="Plan file of `paceline plan --output`.")
@click.option("--restarts", type=click.IntRange(min=0), default=0, show_default=True,
              help="How often a killed rank is restarted.")  # fmt: skip
@click.option(
    "--threads", type=click.IntRange(min=1), help="Compute threads of each rank; default: an even share of the cores."
)
@click.option("--python", type=click.Path(path_type=Path), help="Interpreter of the ranks, with torch.")
@click.option("--env", "environment", help="Environment of the ranks, of `paceline frameworks`: pytorch, keras, ...")
@place_options
@json_option
def command(
    script: Path, arguments: tuple[str, ...], name: str, ranks: int | None, plan_file: Path | None, restarts: int,
    threads: int | None, python: Path | None, environment: str | None, target: LaunchTarget, as_json: bool,
) -> None:  # fmt: skip
    """Run SCRIPT on every device of a cluster; `paceline.runtime.join` in the script connects the ranks.

    With --on the same script runs on other hosts, where it must be at the same path, or on a virtual cluster of this
    machine. The ranks authenticate with a secret made for this job. Training continues without a rank that fails; with
    --restarts the rank is restarted and rejoins. ARGUMENTS after the script go to the script.

    With --plan the ranks start from the plan's groups, global batch and split, and at the end the command prints
    predicted and achieved throughput. A plan for another cluster is refused.

    \b
    Examples:
      paceline train examples/training/train_digits.py --ranks 2
      paceline train train.py --ranks 2 --python env/bin/python
      paceline train examples/training/keras_digits.py --ranks 2 --env keras
      paceline train train.py --cluster my-cluster.toml --plan plan.toml
      paceline train train.py --cluster my-cluster.toml --restarts 3 -- --epochs 5
      paceline train train.py --cluster my-cluster.toml --on virtual
      paceline train train.py --cluster my-cluster.toml --on slurm
    """
    cluster = shipped_catalog().cluster(name)
    request = TrainingRequest(
        script,
        arguments,
        cluster,
        ranks=ranks or (cluster.num_devices if name != "local" else 1),
        plan=read_plan(plan_file) if plan_file else None,
        restarts=restarts,
        threads=threads,
        python=python,
        environment=environment,
    )
    result = run_training(request, target, (lambda line: None) if as_json else say)
    if as_json:
        predicted = {"predicted_throughput": request.plan.predicted_throughput} if request.plan else {}
        emit({"ok": result.ok, **vars(result), **predicted}, "train")
    elif request.plan is not None:
        show_reached(request.plan, result.reached, result.reached_90)
    if not result.ok:
        raise LaunchFailed(f"the training failed: exit codes {result.codes}")
