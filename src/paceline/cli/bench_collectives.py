"""`paceline bench-collectives`: measure all-reduce and other collectives over sizes and ranks."""

from __future__ import annotations

from pathlib import Path

import click

from paceline.bench.collectives import COLLECTIVES, Sweep, collective_times, run_sweep
from paceline.bench.machine import describe_machine
from paceline.bench.sites.target import LaunchTarget, make_launcher
from paceline.catalog import cluster
from paceline.cli.options import Finite, complete_clusters, counts_of, json_option, place_options, store_option
from paceline.errors import LaunchFailed
from paceline.measurements.store import Store
from paceline.report.documents import sweep_document
from paceline.report.terminal import emit
from paceline.report.terminal.records import show_sweep
from paceline.units import BYTES

__all__ = ["command"]

SIZES = "1 KiB,4 KiB,16 KiB,64 KiB,256 KiB,1 MiB,4 MiB,16 MiB,64 MiB"


@click.command()
@place_options
@click.option("--cluster", "where", default="local", show_default=True, shell_complete=complete_clusters,
              help="Cluster file, or a name of the catalog.")  # fmt: skip
@click.option("--ranks", default="2", show_default=True, help="Numbers of ranks, such as 2,4,8.")
@click.option("--sizes", default=SIZES, show_default=True, help="Sizes of the buffer of a rank.")
@click.option("--collectives", default=",".join(COLLECTIVES), show_default=True, help="Collectives to measure.")
@click.option("--transport", default="gloo", show_default=True, help="gloo, nccl on GPUs, or mpi with --on mpi.")
@click.option(
    "--seconds", type=Finite(1e-3, 3600), default=0.8, show_default=True, help="Time for each collective and size."
)
@store_option
@json_option
def command(
    target: LaunchTarget, where: str, ranks: str, sizes: str, collectives: str, transport: str, seconds: float,
    store: Path, as_json: bool,
) -> None:  # fmt: skip
    """Measure collectives on a cluster and store them as runs.

    \b
    Examples:
      paceline bench-collectives --ranks 2
      paceline bench-collectives --on virtual --cluster examples/clusters/four-1gbe.toml --ranks 2,4
    """
    made = []
    with make_launcher(target) as launcher:
        for count in counts_of(ranks, "--ranks", noun="ranks"):
            sweep = Sweep(
                cluster=cluster(where),
                ranks=count,
                sizes=tuple(int(BYTES.parse(size)) for size in sizes.split(",")),
                collectives=tuple(name.strip() for name in collectives.split(",")),
                transport=transport,
                seconds_per_size=seconds,
            )
            data = run_sweep(sweep, launcher, describe_machine(()))
            Store(store).write(data)
            made.append(data)
            if not as_json:
                show_sweep(data, collective_times(data.spans, count))
    if as_json:
        emit({"sweeps": [sweep_document(data) for data in made]}, "bench-collectives", version=2)
    if failed := sum(data.run.failure is not None for data in made):
        raise LaunchFailed(f"{failed} of the sweeps failed", hint="each stored sweep contains the end of its log")
