"""`paceline plan`: which strategy and which split suit a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.catalog import shipped_catalog
from paceline.cli.output import emit, json_option, say, table
from paceline.model.plan.cost import workload
from paceline.model.plan.file import plain_plan, write_plan
from paceline.model.plan.search import Plan, make_plan
from paceline.units import SECONDS, format_share

__all__ = ["command"]


@click.command()
@click.option("--network", required=True, help="Catalog name, or a file ending in .toml.")
@click.option("--cluster", required=True, help="Catalog name, or a file ending in .toml.")
@click.option("--global-batch", required=True, type=click.IntRange(min=1), help="Samples of a step of all devices.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the best plan there, as TOML.")
@json_option
def command(network: str, cluster: str, global_batch: int, output: Path | None, as_json: bool) -> None:
    """Choose strategy and batch split for a cluster of unequal devices, and say why.

    Compared are one balanced synchronous group of all or some hosts, and groups along the seams of the cluster that
    exchange every H steps. Throughput is predicted from the catalog's figures; candidates are ranked by throughput
    times efficiency, which is what staleness and local steps leave of a sample's worth.

    \b
    Examples:
      paceline plan --network resnet50 --cluster mixed-lab --global-batch 512
      paceline plan --network gpt2 --cluster my-cluster.toml --global-batch 256 --output plan.toml
    """
    names = shipped_catalog()
    plan = make_plan(names.cluster(cluster), workload(names.network(network)), global_batch=global_batch)
    if output is not None:
        write_plan(plan, output)
    if as_json:
        emit(plain_plan(plan), "plan")
    else:
        _show(plan)


def _show(plan: Plan) -> None:
    columns = [
        "way",
        ">groups",
        ">devices",
        ">H",
        ">K",
        ">samples/s",
        ">step",
        ">utilisation",
        ">staleness",
        ">efficiency",
    ]
    rows = [
        (
            candidate.kind,
            len(candidate.groups),
            sum(1 for shares in candidate.shares for n in shares if n),
            candidate.local_steps,
            candidate.quorum,
            f"{candidate.predicted_throughput:.1f}",
            SECONDS.format(candidate.predicted_step),
            format_share(candidate.predicted_utilisation),
            f"{candidate.staleness:.2f}",
            f"{candidate.efficiency:.2f}",
        )
        for candidate in plan.ranked
    ]
    table(f"{plan.network} on {plan.cluster}, global batch {plan.global_batch}", columns, rows)
    best = plan.best
    say(f"best: {best.kind}, because {best.reason}")
    split = {plan.members[i].host: 0 for group in best.groups for i in group}
    for group, shares in zip(best.groups, best.shares, strict=True):
        for i, n in zip(group, shares, strict=True):
            split[plan.members[i].host] += n
    if len(split) <= 16:
        say("split: " + ", ".join(f"{host} {n}" for host, n in split.items()))
