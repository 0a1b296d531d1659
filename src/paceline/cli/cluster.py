"""`paceline cluster`: start, stop and list virtual clusters, and inspect real clusters."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from paceline.bench.sites.target import LaunchTarget
from paceline.cli import Commands
from paceline.cli.options import Finite, complete_clusters, json_option, place_options
from paceline.files import write_output
from paceline.report.terminal import emit, print_rows, say

__all__ = ["command"]


@click.group(cls=Commands)
def command() -> None:
    """Virtual clusters on this machine, and inspection of real clusters.

    \b
    Examples:
      paceline cluster up examples/clusters/four-1gbe.toml
      paceline cluster list
      paceline cluster down four-1gbe
      paceline cluster inspect --on slurm --out mine.toml
    """


@command.command()
@click.argument("file", metavar="CLUSTER", shell_complete=complete_clusters)
@click.option("--name", help="Name of the virtual cluster; default: the name in the file.")
@click.option(
    "--dilation",
    type=Finite(1, 1e6),
    default=1.0,
    show_default=True,
    help="Factor by which emulated time is slower than real time.",
)
@json_option
def up(file: str, name: str | None, dilation: float, as_json: bool) -> None:
    """Start the hosts and links of CLUSTER (a file, or a name of the catalog) on this machine; needs root.

    \b
    Examples:
      paceline cluster up examples/clusters/four-1gbe.toml
      paceline cluster up examples/clusters/four-1gbe.toml --name mine --dilation 10
    """
    from paceline.bench.virtual.lifecycle import bring_up
    from paceline.catalog import cluster

    made = bring_up(cluster(file), name=name, dilation=dilation)
    if as_json:
        rows = [{"name": seat.name, "address": seat.address} for seat in made.layout.seats]
        emit({"cluster": made.name, "hosts": rows, "links": [str(check) for check in made.checks]}, "cluster.up")
        return
    print_rows(f"{made.name} is up", ["host", "address"], [(seat.name, seat.address) for seat in made.layout.seats])
    for check in made.checks:
        say(f"  {check}")


@command.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All clusters that no running study created.")
@json_option
def down(names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Stop virtual clusters, including those that a crash left behind.

    \b
    Examples:
      paceline cluster down four-1gbe
      paceline cluster down --all
    """
    from paceline.bench.virtual import state
    from paceline.bench.virtual.lifecycle import opened, take_down
    from paceline.errors import InputError

    if not names and not everything:
        raise InputError("no cluster named", hint="give its name, or --all; `paceline cluster list` shows them")
    swept = state.sweep(older_than_s=0.0)
    listed = [home for home in state.listing() if not opened(home.name).owned]
    chosen = listed if everything else [state.find(name) for name in names if name not in swept]
    for home in chosen:
        take_down(home)
    gone = [*swept, *(home.name for home in chosen)]
    if as_json:
        emit({"down": gone}, "cluster.down")
    else:
        say(f"down: {', '.join(gone) or 'nothing was up'}")


@command.command(name="list")
@json_option
def list_clusters(as_json: bool) -> None:
    """List running virtual clusters; those of a running study end with it."""
    from paceline.bench.virtual import state
    from paceline.bench.virtual.lifecycle import opened

    clusters = [opened(home.name) for home in state.listing()]
    rows = [(item.name, len(item.cluster.hosts), item.layout.dilation, item.processes.holder) for item in clusters]
    if as_json:
        emit(
            {"clusters": [dict(zip(("name", "hosts", "dilation", "pid"), row, strict=True)) for row in rows]},
            "clusters",
        )
    elif not rows:
        say("no virtual cluster is running; `paceline cluster up CLUSTER` starts one")
    else:
        print_rows("virtual clusters", ["name", ">hosts", ">dilation", ">process"], rows)


@command.command()
@place_options
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the cluster file here.")
@click.option("--name", default="mine", show_default=True, help="Name of the cluster in the file.")
@json_option
def inspect(target: LaunchTarget, out: Path | None, name: str, as_json: bool) -> None:
    """Detect the hardware of hosts and measure the links between them; print or write a cluster file.

    \b
    Examples:
      paceline cluster inspect
      paceline cluster inspect --on ssh --hosts a,b --out mine.toml
    """
    from paceline.bench.sites.survey import cluster_text, hosts_of, survey_hosts
    from paceline.bench.sites.target import make_launcher

    with make_launcher(target) as launcher:
        survey = survey_hosts(launcher, hosts_of(target))
    text = cluster_text(survey, name=name, how=f"paceline cluster inspect --on {target.on}")
    if out is not None:
        write_output(out, text)
    if as_json:
        emit(asdict(survey), "cluster.inspect")
    elif out is None:
        click.echo(text, nl=False)
    else:
        say(f"wrote {out}")
