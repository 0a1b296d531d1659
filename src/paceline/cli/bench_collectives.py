"""`paceline bench-collectives`: measure all-reduce and its relatives by size and ranks."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.bench.collectives import COLLECTIVES, Sweep, collective_times, run_sweep
from paceline.bench.machine import describe_machine
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.catalog import cluster
from paceline.cli.output import emit, json_option, say, store_option, table
from paceline.cli.place import place_options
from paceline.errors import InputError, LaunchFailed
from paceline.measurements.run import RunData
from paceline.measurements.store import Store
from paceline.units import BANDWIDTH, BYTES, SECONDS

__all__ = ["command"]

SIZES = "1 KiB,4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB"


@click.command()
@place_options
@click.option("--cluster", "where", default="local", show_default=True, help="Cluster file, or a name of the catalog.")
@click.option("--ranks", default="2", show_default=True, help="Numbers of ranks, such as 2,4,8.")
@click.option("--sizes", default=SIZES, show_default=True, help="Sizes of one rank's buffer.")
@click.option("--collectives", default=",".join(COLLECTIVES), show_default=True, help="Which ones.")
@click.option("--transport", default="gloo", show_default=True, help="gloo, nccl on GPUs, or mpi with --on mpi.")
@click.option("--seconds", default=0.8, show_default=True, help="Time for each collective and size.")
@store_option
@json_option
def command(
    target: LaunchTarget,
    where: str,
    ranks: str,
    sizes: str,
    collectives: str,
    transport: str,
    seconds: float,
    store: Path,
    as_json: bool,
) -> None:
    """Measure collectives on a cluster and store them like runs.

    \b
    Examples:
      paceline bench-collectives --ranks 2
      paceline bench-collectives --on virtual --cluster examples/clusters/four-1gbe.toml --ranks 2,4
    """
    place, found = Store(store), cluster(where)
    failed = 0
    with make_launcher(target) as launcher:
        for count in _numbers(ranks):
            sweep = Sweep(
                cluster=found,
                ranks=count,
                sizes=tuple(int(BYTES.parse(size)) for size in sizes.split(",")),
                collectives=tuple(name.strip() for name in collectives.split(",")),
                transport=transport,
                seconds_per_size=seconds,
            )
            data = run_sweep(sweep, launcher, describe_machine(()))
            place.write(data)
            failed += _show(data, as_json)
    if failed:
        raise LaunchFailed(f"{failed} of the sweeps failed", hint="what is stored of them holds the end of their logs")


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise InputError(f"{text!r} are not numbers of ranks", hint="such as --ranks 2,4,8") from None


def _show(data: RunData, as_json: bool) -> bool:
    """Print a sweep; says whether it failed."""
    run = data.run
    if as_json:
        failure = run.failure.model_dump(mode="json") if run.failure else None
        found = {"run": run.id, "ranks": run.ranks, "collectives": run.facts["collectives"], "failure": failure}
        emit(found, "bench-collectives")
        return failure is not None
    if run.failure:
        last = run.failure.log_tail.strip().splitlines()[-1:]
        say("\n  ".join([f"failed: {run.failure.message} (stored as {run.id})", *last]))
        return True
    rows = [
        (
            item.collective,
            BYTES.format(item.size_bytes),
            SECONDS.format(item.seconds),
            BANDWIDTH.format(item.bus_bandwidth),
        )
        for item in collective_times(data.spans, run.ranks)
    ]
    title = f"{run.framework} on {run.cluster}, {run.ranks} ranks"
    table(title, ["collective", ">size", ">time", ">bus bandwidth"], rows)
    say(f"stored as {run.id}")
    return False
